"""Time the build of a site of many runs: `python -m tests.reports.time_site RUN [COUNT]` copies RUN COUNT times."""

import json
import random
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from reports.site.build import write_site

FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def copies(source: Path, folder: Path, count: int) -> list[Path]:
    """Write `count` runs like `source`, each of its own commit and up to 10% off in each case; return their folders."""
    chance = random.Random(1)
    made = [folder / f"run-{number:04d}" for number in range(count)]
    for number, run in enumerate(made):
        (run / "records").mkdir(parents=True)
        shutil.copy(source / "run.json", run)
        for file in (source / "records").glob("*.jsonl"):
            records = [json.loads(line) for line in file.read_text().splitlines()]
            for record in records:
                record["started_at"] = (FIRST + timedelta(hours=7 * number)).isoformat()
                record["environment"] |= {"commit": f"{number:040x}", "dirty": False}
                scale = chance.uniform(0.9, 1.1)
                record["samples_ms"] = [sample * scale for sample in record["samples_ms"]]
            (run / "records" / file.name).write_text("".join(json.dumps(record) + "\n" for record in records))
    return made


def main(source: Path, count: int = 1000) -> None:
    """Build the site, then update it with nothing changed; print the seconds of each."""
    with tempfile.TemporaryDirectory() as folder:
        runs, out = copies(source, Path(folder) / "runs", count), Path(folder) / "site"
        for _ in range(2):
            start = time.monotonic()
            built = write_site(runs, out)
            print(f"{built.runs} runs, {built.drawn} drawn: {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
