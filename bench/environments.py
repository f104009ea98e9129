"""Choose the command that starts each system's worker process.

By default, the current Python starts it. A backend that `make venv-vllm` or `make venv-mamba` installs uses the
Python of `.venv-vllm` or `.venv-mamba` in the current folder, if it exists. A `systems.toml` there overrides both:

["transformer/vllm"]
python = "~/.venvs/vllm/bin/python"  # or command = ["docker", "run", "-i", "IMAGE", "python"], which has priority
env = { VLLM_USE_FLASHINFER_SAMPLER = "0" }

ttt-bench's --gpus selects a job's GPU by two variables, which docker must pass on: ["docker", "run", "-i", "--gpus",
"all", "--env", "CUDA_VISIBLE_DEVICES", "--env", "CUDA_DEVICE_ORDER", "IMAGE", "python"]. A case on another GPU fails.
"""

import os
import re
import sys
from collections import defaultdict
from collections.abc import Container
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from bench.catalogue.systems import ADAPTERS, MAMBA, VLLM, Adapter
from bench.errors import UserError, unknown
from harness.measure.nvml import VARIABLE as GPU_VARIABLE
from harness.measure.nvml import visible_gpus
from harness.schema.files import read_toml
from harness.schema.reason import invalid
from harness.workers.process import Launch

SYSTEMS_FILE = Path("systems.toml")  # of the current folder; optional
# A worker on the CPU sees no GPU. GNU OpenMP spins GOMP_SPINCOUNT times before a thread sleeps. The default count is
# slow on contended cores, and 0 on idle cores.
CPU_ENV = {"GOMP_SPINCOUNT": "30000", GPU_VARIABLE: ""}
_LOCKS = {VLLM: ("vllm",), MAMBA: ("cuda", "mamba")}  # lock files, by the command that installs them


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    python: str | None = None
    command: Annotated[list[str], Field(min_length=1)] | None = None
    env: dict[str, str] = {}


def launch_notes(labels: Container[str]) -> list[str]:
    """Return a note on the `labels` in systems.toml or run by a .venv-NAME; [] if there are none."""
    entries, systems = _read(), defaultdict[str, list[str]](list)
    for each in (adapter for adapter in ADAPTERS if adapter.label in labels):
        entry = entries.get(each.label, _Entry())
        if each.label in entries:
            systems[f"{SYSTEMS_FILE} in this folder configures"].append(each.label)
        if not (entry.command or entry.python) and (program := _interpreter(each)) != sys.executable:
            systems[f"{program} runs"].append(each.label)
    return ["; ".join(f"{words} {', '.join(own)}" for words, own in systems.items())] if systems else []


def worker_launches(device: str = "") -> dict[tuple[str, str], Launch]:
    """Return {(system, backend): how to start its worker}; systems.toml overrides the default.

    device: "cpu" hides the GPU from the workers. Raises UserError if systems.toml cannot be read or has a mistake.
    """
    entries = _read()
    here = ("cuda" if visible_gpus() else "cpu",)  # the lock that `make bench` installs
    unset = {name: value for name, value in CPU_ENV.items() if name == GPU_VARIABLE or name not in os.environ}
    found = {}
    for each in ADAPTERS:
        entry = entries.get(each.label, _Entry())
        command = entry.command or [os.path.expanduser(entry.python or _interpreter(each))]
        env, locked = (unset if device == "cpu" else {}) | entry.env, _locked(*_LOCKS.get(each.install, here))
        found[each.system, each.backend] = Launch(command, each.entry, env, locked=locked)
    return found


def _interpreter(adapter: Adapter) -> str:
    program = f".venv-{adapter.install.removeprefix('make venv-')}/bin/python"
    return program if os.path.lexists(program) else sys.executable  # a broken link is reported, not replaced


@cache
def _locked(*names: str) -> dict[str, str]:
    files = [Path(__file__).parent / "requirements" / f"{name}.txt" for name in names]
    return dict(re.findall(r"^([\w.-]+)(?:\[.+\])?==([^\s;]+)", "".join(map(Path.read_text, files)), re.MULTILINE))


def no_interpreter(launch: Launch) -> str:
    """Return a message if the path of a worker's interpreter does not exist; otherwise ""."""
    program = launch.command[0]
    if os.sep not in program or os.path.exists(program):
        return ""
    remedy = "recreate it: `make baselines`" if program.startswith(".venv-") else f"correct its path in {SYSTEMS_FILE}"
    return f"its interpreter does not exist; {remedy}"


def _read() -> dict[str, _Entry]:
    if not os.path.lexists(SYSTEMS_FILE):
        return {}
    tables = read_toml(SYSTEMS_FILE, UserError)
    names = [adapter.label for adapter in ADAPTERS]
    for label in tables:
        if label not in names:
            raise unknown(f"{SYSTEMS_FILE}: system [{label}]", label, names)
    try:
        return TypeAdapter(dict[str, _Entry]).validate_python(tables)
    except ValidationError as error:
        raise UserError(f"{SYSTEMS_FILE}: {invalid(error)}") from None
