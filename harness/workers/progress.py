"""Show how far a run is, how long the rest will take, and the result of each case, on terminals and in logs."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from harness.measure.nvml import heat_note, is_hot
from harness.schema.reason import counted
from harness.schema.record import Record
from harness.schema.run_file import Planned
from harness.workers.machine_load import is_loaded, load_note
from harness.workers.scheduler import Event

if TYPE_CHECKING:
    from rich.progress import TaskID

_BAR_WIDTH, _NUMBERS_WIDTH = 10, 40


class Progress:
    """Shows the events of a run: a bar with the remaining time on a terminal, plain lines elsewhere.

    Use as a context manager and hand it to `run_jobs(on_event=...)`. title: what runs; total: cases expected, until
    the run's own plan says how many are left. stream: stderr by default, so that stdout stays the results'.
    """

    def __init__(
        self,
        title: str = "",
        total: int = 0,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        stream = stream or sys.stderr
        self._view = _Bar(title, total, stream) if stream.isatty() else _Lines(title, stream, now)

    def __enter__(self) -> "Progress":
        self._view.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._view.close()

    def __call__(self, event: Event) -> None:
        self._view.show(event)


class _Lines:
    """One line at the end of each case."""

    def __init__(self, title: str, stream: TextIO, now: Callable[[], float]) -> None:
        self._title, self._stream, self._now = title, stream, now
        self._start = now()

    def open(self) -> None:
        """Nothing to draw yet."""

    def close(self) -> None:
        """Nothing to clear away."""

    def show(self, event: Event) -> None:
        if event.kind == "lost":
            self._print(event.message)
        elif event.kind == "plan":
            self._start = self._now()
            self._print(plan_line(self._title, event))
        elif event.kind == "record" and event.record is not None:
            left = remaining(event.done, event.total, self._now() - self._start)
            counter = f"[{event.done:>{len(str(event.total))}}/{event.total}]"
            self._print(f"{counter} {_placed(event, event.record)}{f'  ({left})' if left else ''}")

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class _Bar:
    """A bar at the bottom, what runs on each GPU in a line of its own, finished cases scrolling above them."""

    def __init__(self, title: str, total: int, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich

        self._title = title
        self._rich = Rich(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=_BAR_WIDTH),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[counts]}", markup=False),
            console=Console(file=stream, highlight=False),
        )
        self._task = self._rich.add_task(title, total=total or None, counts="")
        self._places: dict[str, TaskID] = {}
        self._counts: Counter[str] = Counter()

    def open(self) -> None:
        self._rich.start()

    def close(self) -> None:
        self._rich.stop()

    def show(self, event: Event) -> None:
        changes: dict[str, Any] = {"total": event.total, "completed": event.done}
        if event.kind == "lost":
            self._print(event.message)
        elif event.kind == "plan":
            self._print(plan_line(self._title, event))
        elif event.kind == "start" and event.planned is not None and event.place:
            self._show_at(event.place, event.planned)
        elif event.kind == "start" and event.planned is not None:
            changes["description"] = _shortened(event.planned.case.label, self._room())
        elif event.record is not None:
            self._print(_placed(event, event.record))
            self._counts[event.record.status] += 1
            lost = sum(count for status, count in self._counts.items() if status != "ok")
            changes["counts"] = f"{lost} without result" if lost else ""
        self._rich.update(self._task, **changes)

    def _show_at(self, place: str, planned: Planned) -> None:
        """What runs at one of several places."""
        if place not in self._places:
            self._places[place] = self._rich.add_task("", total=None, counts="")
        label = _shortened(f"{place}: {planned.case.label}", self._room())
        self._rich.update(self._places[place], description=label)

    def _print(self, line: str) -> None:
        self._rich.console.print(line, markup=False, soft_wrap=True)

    def _room(self) -> int:
        """Columns for what runs now, beside the bar, its numbers and its counts."""
        return max(12, self._rich.console.width - _BAR_WIDTH - _NUMBERS_WIDTH)


def plan_line(title: str, event: Event) -> str:
    """How many cases a run has before it."""
    kept = f", {event.kept} kept from before" if event.kept else ""
    return f"{title + ': ' if title else ''}{counted(event.total, 'case')} to run{kept}"


def outcome(record: Record) -> str:
    """The result of a case on one line: its status, its label, and its median or the reason why it has none."""
    result = record.reason
    if record.samples_ms:
        result = f"{_milliseconds(median(record.samples_ms))} median of {len(record.samples_ms)}"
        result += ", throttled" if any(record.throttled) else ""
        result += f", {heat_note(record.environment)}" if is_hot(record.environment) else ""
    if result and record.status != "skipped" and is_loaded(record.environment):
        result += f", {load_note(record.environment)}"
    return f"{record.status:<7} {record.case.label}{': ' + result if result else ''}"


def _placed(event: Event, record: Record) -> str:
    return f"{event.place}: {outcome(record)}" if event.place else outcome(record)


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _milliseconds(value: float) -> str:
    return f"{value * 1e3:.4g} µs" if value < 1 else f"{value:.4g} ms"


def remaining(done: int, total: int, elapsed_s: float) -> str:
    """How long the rest will take if its cases are like the finished ones; "" where that says nothing."""
    if not done or done >= total:
        return ""
    seconds = elapsed_s / done * (total - done)
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes < 90 else f"about {minutes / 60:.1f} h left"
