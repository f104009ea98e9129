"""Write the reports in `tests/harness/fixtures/`: `python -m tests.harness.make_profile_fixtures` on an H100.

The module profiles a small layer. The reports keep at most ten launches and no names of hosts, folders or other
programs.
"""

import csv
import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.profiling.tools import ncu

FIXTURES = Path(__file__).resolve().parent / "fixtures"
LAUNCHES = 10
LAYER = ("kernel-forward", "--systems", "ttt-linear/thunderkittens", "--batch", "1", "--context", "2048")
_CATEGORIES = ("kernel", "user_annotation", "cuda_runtime", "cuda_driver")
_ARGUMENTS = ("correlation", "registers per thread", "shared memory")


def main() -> None:
    """Profile a layer and prune the reports."""
    FIXTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        report = _profiled(Path(folder) / "ncu")
        done = subprocess.run(
            ncu.importing(report), capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}
        )
        (FIXTURES / "h100.ncu.csv").write_text(pruned_table(done.stdout))
        trace = next(report.parent.glob("*.trace.json.gz"))
        (FIXTURES / "h100.trace.json").write_text(pruned_trace(gzip.decompress(trace.read_bytes())))
    print(*sorted(path.name for path in FIXTURES.iterdir()), sep="\n")


def _profiled(run: Path) -> Path:
    command = [sys.executable, "-m", "bench", "profile", *LAYER, "--with", "ncu", "--out", str(run)]
    subprocess.run(command)
    found = sorted((run / "profiles").glob("*.ncu-rep"))
    if not found:
        raise SystemExit("ncu left no report; the sentences above say why")
    return found[0]


def pruned_table(text: str) -> str:
    """Prune a table of ncu to names, metrics and the first launches."""
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith('"ID"'))
    header, *rows = csv.reader(io.StringIO("\n".join(lines[start:])))
    kept = [place for place, name in enumerate(header) if name in ("ID", "Kernel Name", *ncu.METRICS)]
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([row[place] for place in kept] for row in [header, *rows[: 1 + LAUNCHES]])
    return out.getvalue()


def pruned_trace(text: bytes) -> str:
    """Prune a trace of Kineto to the first launches and their ranges."""
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
