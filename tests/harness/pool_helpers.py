"""Jobs on fake GPUs: such a GPU is only a value of CUDA_VISIBLE_DEVICES, with no device behind it."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness_helpers import HERE, ROOT, case, launch

from harness.schema.record import Record
from harness.schema.run import Run
from harness.workers.process import GpuSlot, Launch
from harness.workers.scheduler import Options, run_jobs

GPUS = ("0", "1", "2", "3")

SYSTEMS = ("a", "b", "c", "d", "e", "f")


def slot(gpu: str, **fields: Any) -> GpuSlot:
    return GpuSlot(f"GPU {gpu}", {"CUDA_VISIBLE_DEVICES": gpu}, **fields)


def worker_launches(*systems: str, entry: str = "fake_gpus:OnGpu", **env: str) -> dict[tuple[str, str], Launch]:
    return {(system, "cpu"): launch(entry, **env) for system in systems}


def cases_of(systems: Sequence[str], count: int = 3, do: str = "work") -> list[Any]:
    return [case(do, system=system, batch=number + 1) for system in systems for number in range(count)]


def pooled(
    run: Run,
    of: dict[tuple[str, str], Launch],
    slots: Sequence[GpuSlot] = tuple(map(slot, GPUS)),
    **arguments: Any,
) -> list[Record]:
    return run_jobs(run, of, Options(**arguments), slots)


def program(text: str, *arguments: Path) -> subprocess.Popen[str]:
    """Start a Python program that imports this folder's modules."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return subprocess.Popen(command, env=env, cwd=HERE, stderr=subprocess.PIPE, text=True)
