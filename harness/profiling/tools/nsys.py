"""Write commands for Nsight Systems, and read kernels and ranges from its SQLite export."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from harness.measure.ranges import LEAD, TIMED, range_names
from harness.profiling.tools.trace import Launched, Span, demangled, paths_at, serialized
from harness.schema.profile import ProfileError

PROGRAM = "nsys"
_PUSH_POP = 59  # NVTX_EVENTS.eventType
_THREAD_BITS = 24  # low bits of a globalTid, for the thread; the rest is the globalPid
_PROCESS_WIDE = {LEAD, TIMED, *range_names("request")}  # they hold the launches of all threads, such as autograd's
_KERNELS, _LAUNCHES, _RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
_COPIES = (("CUPTI_ACTIVITY_KIND_MEMCPY", "memory copy"), ("CUPTI_ACTIVITY_KIND_MEMSET", "memory fill"))


def command_prefix(report: Path) -> list[str]:
    """Return a command prefix to run a worker under nsys; `report` must end in .nsys-rep."""
    return [
        PROGRAM,
        "profile",
        "--trace=cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--cuda-graph-trace=node",
        "--trace-fork-before-exec=true",
        "--force-overwrite=true",
        f"--output={report}",
    ]


def export_command(report: Path, database: Path) -> list[str]:
    """Return the command that exports a report to an SQLite database, which `read` reads."""
    return [PROGRAM, "export", "--type=sqlite", "--force-overwrite=true", f"--output={database}", str(report)]


def read(database: Path) -> tuple[list[Launched], list[Launched]]:
    """Return (launches of the timed runs, launches of the call with NVTX ranges).

    Raises ProfileError if the export cannot be read or nothing was captured.
    """
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            connection.text_factory = lambda raw: raw.decode(errors="replace")
            launched = _launched(connection)
    except sqlite3.Error as error:
        what = "is truncated or in another format, or nothing was captured"
        raise ProfileError(f"the export of Nsight Systems {what}: {error}") from None
    timed = [each for each in launched if TIMED in each.path]
    return timed, [each for each in launched if each.path and not {LEAD, TIMED}.intersection(each.path)]


def _launched(connection: sqlite3.Connection) -> list[Launched]:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    ranges = [
        Span(name or "", thread, start / 1e3, end / 1e3)
        for name, thread, start, end in connection.execute(
            f"SELECT COALESCE(text, value), globalTid, start, end FROM {_RANGES} "
            f"LEFT JOIN StringIds ON textId = StringIds.id WHERE eventType = {_PUSH_POP} AND end IS NOT NULL"
        )
    ]
    # An engine has several processes, each with launch numbers of its own.
    hosts = {
        (thread >> _THREAD_BITS, correlation): (thread, start / 1e3)
        for correlation, thread, start in connection.execute(
            f"SELECT correlationId, globalTid, start FROM {_LAUNCHES} WHERE globalTid IS NOT NULL"
        )
    }
    rows = list(_rows(connection, tables))
    moments = [hosts.get(((pid or 0) >> _THREAD_BITS, correlation), (None, 0.0)) for *_, pid, correlation in rows]
    outer = [replace(each, thread=each.thread >> _THREAD_BITS) for each in ranges if each.name in _PROCESS_WIDE]
    around = paths_at(outer, ((thread and thread >> _THREAD_BITS, at) for thread, at in moments))
    pairs = zip(around, paths_at(ranges, moments), strict=True)
    paths = [path if path[: len(first)] == first else (*first, "another thread", *path) for first, path in pairs]
    return serialized(
        Launched(name, start / 1e3, end / 1e3, (end - start) / 1e3, path, registers, shared, (pid, device, stream))
        for (name, start, end, registers, shared, device, stream, pid, _), path in zip(rows, paths, strict=True)
    )


def _rows(connection: sqlite3.Connection, tables: set[str]) -> Iterator[Sequence]:
    if _KERNELS in tables:
        # Nsight Systems demangles differently from torch.profiler.
        rows = connection.execute(
            "SELECT mangled.value, demangled.value, start, end, registersPerThread, "
            "staticSharedMemory + dynamicSharedMemory, deviceId, streamId, globalPid, correlationId "
            f"FROM {_KERNELS} JOIN StringIds AS demangled ON demangledName = demangled.id "
            "LEFT JOIN StringIds AS mangled ON mangledName = mangled.id"
        )
        yield from ((demangled(symbol) if symbol else name, *rest) for symbol, name, *rest in rows)
    for table, name in _COPIES:
        if table in tables:
            yield from connection.execute(
                f"SELECT '{name}', start, end, NULL, NULL, deviceId, streamId, globalPid, correlationId FROM {table}"
            )
