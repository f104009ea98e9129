"""Cases, policies and launches that the tests of the harness share."""

import os
import sys
from pathlib import Path
from typing import Any

from harness.case import Case
from harness.record import Record
from harness.runner import Launch
from harness.timer import Policy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
QUICK = Policy(min_samples=3, max_samples=4, budget_s=0.5, warmup_s=0, warmup_max_s=0)


def case(do: str = "work", **changes: Any) -> Case:
    """A case of the fake system that does what `do` says."""
    options = {"do": do} | changes.pop("options", {})
    values: dict[str, Any] = {
        "suite": "fake",
        "system": "fake",
        "backend": "cpu",
        "size": "tiny",
        "phase": "forward",
        "batch": 2,
        "context": 8,
        "options": tuple(options.items()),
    }
    return Case(**(values | changes))


def ok_record(of: Case | None = None, samples: tuple[float, ...] = (1.0, 2.0, 3.0)) -> Record:
    return Record(of or case(), "ok", samples_ms=list(samples), throttled=[False] * len(samples), stop="count")


def launch(name: str = "fake_systems:Fake", **env: str) -> Launch:
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    return Launch([sys.executable], name, {"PYTHONPATH": os.pathsep.join(filter(None, paths)), **env})


def systems(name: str = "fake_systems:Fake", **env: str) -> dict[tuple[str, str], Launch]:
    return {("fake", "cpu"): launch(name, **env)}
