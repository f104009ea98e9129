"""Measure whether a busy neighbour disturbs a GPU, on a host with two GPUs.

python -m tests.bench.neighbours OUT [ROUNDS]    measure
python -m tests.bench.neighbours --summary OUT   print the ratios, of processes of one round, so that drift cancels
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from statistics import median

from bench.cases import jobs_of
from bench.catalogue import catalogue
from bench.environments import launches
from harness.measure.interval import repeats_interval
from harness.schema.case import Case
from harness.schema.policy import Policy
from harness.schema.record import Record
from harness.schema.run import Run
from harness.schema.run_file import Planned, RunFile
from harness.workers.pool import cores_by_share, slots_of
from harness.workers.scheduler import run_jobs

SETTINGS = ("whole", "half", "beside")
POLICY, BUSY = Policy(budget_s=2.0), Policy(min_samples=3000, budget_s=15.0)
CASES = {
    "forward, bound by the host": Case("transformer", "torch", "125m", "forward", 1, 64),
    "forward, bound by the device": Case("transformer", "torch", "350m", "forward", 16, 2048),
    "generate, bound by the host": Case("transformer", "torch", "125m", "generate", 1, 64),
    "generate, bound by the device": Case("transformer", "torch", "350m", "generate", 64, 1024, timing="graph"),
}


def measured(folder: Path, gpu: str, cores: Sequence[int], policy: Policy = POLICY) -> list[Record]:
    os.sched_setaffinity(0, cores)
    jobs = jobs_of(Planned(case, 6) for case in CASES.values())
    run = Run.create(folder, RunFile("measure", "cuda", jobs, catalogue(()), policy))
    return run_jobs(run, launches(), slots=slots_of([gpu], "cuda"))


def neighbour(folder: Path) -> None:
    cores = cores_by_share(2)[1]
    with suppress(KeyboardInterrupt):  # a run raises it for SIGTERM
        for number in count():
            measured(folder / str(number), "1", sorted(cores), BUSY)


def compare(out: Path, rounds: int) -> None:
    whole, half = sorted(os.sched_getaffinity(0)), sorted(cores_by_share(2)[0])
    for number in range(rounds):
        # In turns, so that no setting is always first.
        for setting in (*SETTINGS[number % 3 :], *SETTINGS[: number % 3]):
            beside = start_neighbour(out / f"{number}-neighbour") if setting == "beside" else None
            try:
                measured(out / f"{number}-{setting}", "0", whole if setting == "whole" else half)
            finally:
                os.sched_setaffinity(0, whole)
                if beside:
                    beside.terminate()
                    beside.wait()
    print("\n".join(summary(out)))


def summary(out: Path) -> list[str]:
    rounds = len([*out.glob("*-whole")])
    found = {setting: [in_order(out / f"{number}-{setting}") for number in range(rounds)] for setting in SETTINGS}
    lines = [f"{rounds} rounds; ratio to the whole machine, with its 95% interval"]
    for index, name in enumerate(CASES):
        alone = [medians[index] for medians in found["whole"]]
        for setting in SETTINGS[1:]:
            ratios = [[medians[index] / one] for medians, one in zip(found[setting], alone, strict=True)]
            middle, low, high = repeats_interval(ratios)
            lines.append(f"{name:<32}{setting:<8}{median(alone):9.3f} ms  x {middle:.4f}  ({low:.4f} to {high:.4f})")
    return lines


def in_order(folder: Path) -> list[float]:
    by_case = {record.case: record for record in Run.open(folder).records()}
    for name, case in CASES.items():
        if by_case[case].status != "ok":
            sys.exit(f"{folder.name}: {name}: {by_case[case].status}: {by_case[case].reason}")
    return [median(by_case[case].samples_ms) for case in CASES.values()]


def start_neighbour(folder: Path) -> subprocess.Popen[bytes]:
    started = subprocess.Popen([sys.executable, "-m", "tests.bench.neighbours", "--neighbour", str(folder)])
    records = folder / "0" / "records" / "transformer-torch.jsonl"
    while not (records.exists() and records.stat().st_size):
        if started.poll() is not None:
            sys.exit("the neighbour ended before it began")
        time.sleep(0.2)
    return started


def main(arguments: list[str]) -> None:
    if arguments[0] == "--neighbour":
        neighbour(Path(arguments[1]))
    elif arguments[0] == "--summary":
        print("\n".join(summary(Path(arguments[1]))))
    else:
        compare(Path(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 6)


if __name__ == "__main__":
    main(sys.argv[1:])
