"""Write the reports in `tests/harness/fixtures/`: `python -m tests.harness.make_profile_fixtures` on an H100.

The module profiles a small layer with ncu, and a model with nsys if installed. The reports keep at most ten launches
and no names of hosts, folders or other programs.
"""

import csv
import gzip
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from harness.profiling.tools import ncu

FIXTURES = Path(__file__).resolve().parent / "fixtures"
LAUNCHES = 10
LAYER = ("kernel-forward", "--systems", "ttt-linear/thunderkittens", "--batch", "1", "--context", "2048")
MODEL = ("fig15-forward", "--systems", "ttt-linear/thunderkittens", "--context", "2048")
_TABLES = ("StringIds", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL")
_CATEGORIES = ("kernel", "user_annotation", "cuda_runtime", "cuda_driver")
_ARGUMENTS = ("correlation", "registers per thread", "shared memory")


def main() -> None:
    FIXTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        report = _profiled(LAYER, Path(folder) / "ncu", "ncu", ".ncu-rep")
        done = subprocess.run(
            ncu.importing(report), capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}
        )
        (FIXTURES / "h100.ncu.csv").write_text(pruned_table(done.stdout))
        trace = next(report.parent.glob("*.trace.json.gz"))
        (FIXTURES / "h100.trace.json").write_text(pruned_trace(gzip.decompress(trace.read_bytes())))
        if shutil.which("nsys"):
            pruned = Path(folder) / "pruned.sqlite"
            prune_database(_profiled(MODEL, Path(folder) / "nsys", "nsys", ".sqlite"), pruned)
            with closing(sqlite3.connect(pruned)) as database:
                (FIXTURES / "h100.nsys.sql").write_text("\n".join([*database.iterdump(), ""]))
    print(*sorted(path.name for path in FIXTURES.iterdir()), sep="\n")


def _profiled(what: Sequence[str], run: Path, way: str, suffix: str) -> Path:
    command = [sys.executable, "-m", "bench", "profile", *what, "--with", way, "--out", str(run)]
    subprocess.run(command)
    found = sorted((run / "profiles").glob(f"*{suffix}"))
    if not found:
        raise SystemExit(f"{way} left no report; the sentences above say why")
    return found[0]


def pruned_table(text: str) -> str:
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith('"ID"'))
    header, *rows = csv.reader(io.StringIO("\n".join(lines[start:])))
    kept = [place for place, name in enumerate(header) if name in ("ID", "Kernel Name", *ncu.METRICS)]
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([row[place] for place in kept] for row in [header, *rows[: 1 + LAUNCHES]])
    return out.getvalue()


def prune_database(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    with closing(sqlite3.connect(target)) as database:
        database.execute("ATTACH ? AS source", (str(source),))
        for table in _TABLES:
            [(declared,)] = database.execute("SELECT sql FROM source.sqlite_master WHERE name = ?", (table,))
            database.execute(declared)
        launched = database.execute(
            "SELECT kernel.rowid, launch.start FROM source.CUPTI_ACTIVITY_KIND_KERNEL AS kernel "
            "JOIN source.CUPTI_ACTIVITY_KIND_RUNTIME AS launch ON launch.correlationId = kernel.correlationId "
            "AND launch.globalTid >> 24 = kernel.globalPid >> 24 ORDER BY launch.start"
        ).fetchall()
        ranges = "FROM source.NVTX_EVENTS WHERE text LIKE 'layer %'"
        [(layer,)] = database.execute(f"SELECT COALESCE(MIN(start), 0) {ranges}")
        rows = [row for row, start in launched if start >= layer][: LAUNCHES // 2]
        rows += [row for row, _ in launched[-LAUNCHES // 2 :] if row not in rows]
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT * FROM source.CUPTI_ACTIVITY_KIND_KERNEL "
            f"WHERE rowid IN ({', '.join(map(str, rows))})"
        )
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT * FROM source.CUPTI_ACTIVITY_KIND_RUNTIME "
            "WHERE correlationId IN (SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL)"
        )
        database.execute(
            "INSERT INTO NVTX_EVENTS SELECT * FROM source.NVTX_EVENTS WHERE eventType = 59 "
            "AND EXISTS (SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME AS launch "
            "WHERE launch.start BETWEEN source.NVTX_EVENTS.start AND source.NVTX_EVENTS.end)"
        )
        database.execute(
            "INSERT INTO StringIds SELECT * FROM source.StringIds WHERE id IN "
            "(SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL "
            "UNION SELECT mangledName FROM CUPTI_ACTIVITY_KIND_KERNEL UNION SELECT textId FROM NVTX_EVENTS)"
        )
        database.commit()
        database.execute("DETACH source")
        database.execute("VACUUM")


def pruned_trace(text: bytes) -> str:
    events = [event for event in json.loads(text)["traceEvents"] if event.get("cat") in _CATEGORIES]
    kernels = sorted((event for event in events if event["cat"] == "kernel"), key=lambda event: event["ts"])[:LAUNCHES]
    launches = {event["args"].get("correlation") for event in kernels}
    kept = [*kernels, *(event for event in events if event["cat"] != "kernel" and _belongs(event, launches))]
    return json.dumps({"traceEvents": [_bare(event) for event in kept]}, indent=0)


def _belongs(event: dict[str, Any], launches: set[Any]) -> bool:
    return event["cat"] == "user_annotation" or event.get("args", {}).get("correlation") in launches


def _bare(event: dict[str, Any]) -> dict[str, Any]:
    arguments = {name: value for name, value in event.get("args", {}).items() if name in _ARGUMENTS}
    return {name: event[name] for name in ("ph", "cat", "name", "ts", "dur", "tid")} | {"args": arguments}


if __name__ == "__main__":
    main()
