"""A/A: the same work measured again and again in fresh processes; does the interval that is shown hold the truth?"""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness.measure.interval import median_interval, repeats_interval
from harness.measure.system import Workload
from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.policy import Policy
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned, RunFile
from harness.workers.process import Launch
from harness.workers.scheduler import run_jobs

ROOT = Path(__file__).resolve().parent.parent.parent
PROCESSES = 3  # of one measurement, as `--repeats 3` makes them
POLICY = Policy(min_samples=20, budget_s=0.1)
CASE = Case("same", "cpu", "tiny", "forward", 1, 1)


class Same:
    """Some tenths of a millisecond of arithmetic."""

    packages = ()

    def unavailable(self) -> str:
        return ""

    def build(self, case: Case) -> Workload:
        return Workload(run=lambda: sum(range(20_000)), tokens=1)


@dataclass(frozen=True)
class Agreement:
    """How many intervals of so many measurements hold the grand median: as shown, and those of one process each."""

    measurements: int
    shown: int
    within: int


def attack(measurements: int) -> Agreement:
    """Measure the same work so many times, each in a few fresh processes."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    launches = {("same", "cpu"): Launch([sys.executable], "tests.attacks.same:Same", {"PYTHONPATH": paths})}
    file = RunFile(
        "measure",
        "cpu",
        (Job("same", "cpu", (Planned(CASE),)),),
        Catalogue(),
        POLICY,
        measurements * PROCESSES,
    )
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        records = run_jobs(Run.create(Path(folder) / "out", file), launches)
    samples = [record.samples_ms for record in records]
    grand = median(median(each) for each in samples)
    # Neighbours in time are apart: a measurement's processes are interleaved with those of all others.
    shown = [repeats_interval(samples[number::measurements]) for number in range(measurements)]
    within = [median_interval(samples[number]) for number in range(measurements)]
    return Agreement(
        measurements,
        sum(low <= grand <= high for _, low, high in shown),
        sum(low <= grand <= high for _, low, high in within),
    )
