"""Show a run's progress: each finished case's result, and a bar on a terminal."""

import sys
from statistics import median
from typing import Any, TextIO

from harness.measure.nvml import heat_note, is_hot
from harness.schema.reason import clipped, counted
from harness.schema.record import Record
from harness.workers.machine_load import is_loaded, load_note
from harness.workers.scheduler import Event

_BAR_WIDTH, _NUMBERS_WIDTH = 10, 40


class Progress:
    """Context manager that shows a run's progress, and on a terminal the case that began last.

    title: name of the run. stream: by default stderr.
    """

    def __init__(self, title: str = "", stream: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich

        stream = stream or sys.stderr
        self._title, self._done, self.total = title, 0, 0
        self._rich = Rich(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=_BAR_WIDTH),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=stream, highlight=False),
            disable=not stream.isatty(),
        )
        self._task = self._rich.add_task(title, total=None)

    def __enter__(self) -> "Progress":
        self._rich.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._rich.__exit__(*error)

    def __call__(self, event: Event) -> None:
        changes: dict[str, Any] = {}
        slot = f"{event.slot}: " if event.slot else ""
        if event.kind == "plan":
            self.total = event.total
            kept = f", {event.kept} finished earlier" if event.kept else ""
            self._print(f"{self._title + ': ' if self._title else ''}{counted(event.total, 'case')} to run{kept}")
        elif event.kind == "start" and event.planned is not None:
            room = max(12, self._rich.console.width - _BAR_WIDTH - _NUMBERS_WIDTH)
            changes["description"] = clipped(slot + event.planned.case.label, room)
        elif event.record is not None:
            self._done += 1
            counter = f"[{self._done:>{len(str(self.total))}}/{self.total}]"
            self._print(f"{counter} {slot}{outcome(event.record)}")
        self._rich.update(self._task, total=self.total or None, completed=self._done, **changes)

    def _print(self, line: str) -> None:
        self._rich.console.print(line, markup=False, emoji=False, soft_wrap=True)


def outcome(record: Record) -> str:
    """Return a case's result on one line: status, label, median time or failure reason."""
    result = record.reason
    if record.samples_ms:
        latency_ms = median(record.samples_ms)
        result = f"{latency_ms * 1e3:.4g} µs" if latency_ms < 1 else f"{latency_ms:.4g} ms"
        result += f", median of {counted(len(record.samples_ms), 'sample')}"
        if is_hot(record.environment):
            result += f", {heat_note(record.environment)}"
        elif any(record.throttled):
            result += ", power-capped"
    if result and record.status != "skipped" and is_loaded(record.environment):
        result += f", {load_note(record.environment)}"
    return f"{record.status:<7} {record.case.label}{': ' + result if result else ''}"
