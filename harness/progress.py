"""How far is a run, how long will it take, and what came of each case? For terminals and for logs."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from types import TracebackType
from typing import Any, TextIO

from harness.record import Record
from harness.runner import Event


class Progress:
    """Shows the events of a run: a bar with the remaining time on a terminal, plain lines elsewhere.

    Use as a context manager and hand it to `run_cases(on_event=...)`. title: what runs; total: cases expected, until
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
        if event.kind == "plan":
            self._start = self._now()
            self._print(plan_line(self._title, event))
        elif event.kind == "record" and event.record is not None:
            left = remaining(event.done, event.total, self._now() - self._start)
            counter = f"[{event.done:>{len(str(event.total))}}/{event.total}]"
            self._print(f"{counter} {outcome(event.record)}{f'  ({left})' if left else ''}")

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class _Bar:
    """A bar at the bottom, finished cases scrolling above it."""

    def __init__(self, title: str, total: int, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich

        self._title = title
        self._rich = Rich(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[counts]}", markup=False),
            console=Console(file=stream, highlight=False),
        )
        self._task = self._rich.add_task(title, total=total or None, counts="")
        self._counts: Counter[str] = Counter()

    def open(self) -> None:
        self._rich.start()

    def close(self) -> None:
        self._rich.stop()

    def show(self, event: Event) -> None:
        changes: dict[str, Any] = {"total": event.total, "completed": event.done}
        if event.kind == "plan":
            self._print(plan_line(self._title, event))
        elif event.kind == "start" and event.case is not None:
            changes["description"] = event.case.label
        elif event.record is not None:
            self._print(outcome(event.record))
            self._counts[event.record.status] += 1
            changes["counts"] = ", ".join(f"{count} {status}" for status, count in sorted(self._counts.items()))
        self._rich.update(self._task, **changes)

    def _print(self, line: str) -> None:
        self._rich.console.print(line, markup=False, soft_wrap=True)


def plan_line(title: str, event: Event) -> str:
    """How many cases a run has before it."""
    kept = f", {event.kept} kept from before" if event.kept else ""
    return f"{title + ': ' if title else ''}{event.total} case{'' if event.total == 1 else 's'} to run{kept}"


def outcome(record: Record) -> str:
    """What came of a case, on one line: its status, its median or the reason for none, its label."""
    said = record.reason
    if record.samples_ms:
        said = f"{_milliseconds(median(record.samples_ms))} median of {len(record.samples_ms)}"
        said += ", throttled" if any(record.throttled) else ""
    return f"{record.status:<7} {record.case.label}{': ' + said if said else ''}"


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
