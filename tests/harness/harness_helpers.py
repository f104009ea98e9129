"""Cases, policies, worker commands and runs that several tests share."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.schema.case import Case, Mode
from harness.schema.catalogue import AxisEntry, Catalogue, FigureEntry, MetricEntry, SuiteEntry
from harness.schema.policy import Policy
from harness.schema.record import Record, RecordFile
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned, RunFile, jobs_of
from harness.workers.process import Launch, Limits
from harness.workers.scheduler import Event, Options, run_jobs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
QUICK = Policy(min_samples=3, budget_s=0.0)


class CaseLimits(threading.local):
    """Time limits that change when a case starts: 0.5 s for a case with do="hang", the default for others."""

    start_s, case_s = Limits.start_s, Limits.case_s

    def __call__(self, event: Event) -> None:
        if event.kind == "start" and event.planned:
            self.case_s = 0.5 if event.planned.case.option("do") == "hang" else Limits.case_s


SHORT_LIMITS: dict[str, Any] = dict.fromkeys(("limits", "on_event"), CaseLimits())


def case(do: str = "work", **changes: Any) -> Case:
    options = {"do": do} | changes.pop("options", {})
    values: dict[str, Any] = {
        "system": "fake",
        "backend": "cpu",
        "size": "tiny",
        "phase": "forward",
        "batch": 2,
        "context": 8,
        "options": tuple(options.items()),
    }
    return Case(**(values | changes))


def ok_record(of: Case | None = None, samples: tuple[float, ...] = (1.0, 2.0, 3.0), **fields: Any) -> Record:
    throttled = [False] * len(samples)
    return Record(of or case(), "ok", samples_ms=list(samples), throttled=throttled, stop="budget", **fields)


def launch(name: str = "fake_systems:Fake", **env: str) -> Launch:
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    return Launch([sys.executable], name, {"PYTHONPATH": os.pathsep.join(filter(None, paths)), **env})


def systems(name: str = "fake_systems:Fake", **env: str) -> dict[tuple[str, str], Launch]:
    return {("fake", "cpu"): launch(name, **env)}


def planned_jobs(cases: Iterable[Case | Planned]) -> tuple[Job, ...]:
    return jobs_of(each if isinstance(each, Planned) else Planned(each) for each in cases)


def catalogue(cases: Iterable[Case | Planned] = ()) -> Catalogue:
    keys = tuple((each.case if isinstance(each, Planned) else each).key for each in cases)
    figure = FigureEntry("forward", "Time per token", "context", "us_per_token")
    return Catalogue(
        metrics=(MetricEntry("us_per_token", "time per token", "us"),),
        axes=(AxisEntry("context", "context", "{} tokens"),),
        suites=(SuiteEntry("fake", "How fast is the fake?", (figure,), keys),),
    )


def run_file(
    cases: Sequence[Case | Planned], mode: Mode = "measure", policy: Policy = QUICK, repeats: int = 1, **changes: Any
) -> RunFile:
    values: dict[str, Any] = {"policy": policy, "repeats": repeats, "catalogue": catalogue(cases)}
    return RunFile(mode, "cpu", planned_jobs(cases), **(values | changes))


def new_run(folder: Path, cases: Sequence[Case | Planned], **changes: Any) -> Run:
    return Run.create(folder, run_file(cases, **changes))


def measured(
    folder: Path, cases: Sequence[Case | Planned] = (), launches: Any = None, **arguments: Any
) -> list[Record]:
    """Open the run in `folder`, or create it with `cases`; run it and return its records.

    launches: {(system, backend): how to start its worker}; None for `systems()`.
    arguments: mode, policy and repeats, used only to create the run, and fields of `Options`.
    """
    of_run = {name: arguments.pop(name) for name in ("mode", "policy", "repeats") if name in arguments}
    run = Run.open(folder) if Run.exists(folder) else new_run(folder, cases, **of_run)
    return run_jobs(run, launches or systems(), Options(**arguments))


def no_profiler(*_: object) -> dict[str, Any]:
    return {}


def lines_of(folder: Path, job: str = "fake-cpu") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records" / f"{job}.jsonl").read_text().splitlines()]


def file_of(folder: Path) -> RecordFile:
    return RecordFile(folder / "records" / "fake-cpu.jsonl")


def statuses(records: Iterable[Record]) -> list[str]:
    return [record.status for record in records]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


def fake_command(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def new_repository(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", folder.name)
    return git(folder, "rev-parse", "HEAD")
