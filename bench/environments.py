"""How to start each system's worker: with this Python, or as systems.toml defines.

["transformer/vllm"]
python = "~/.venvs/vllm/bin/python"       # overridden by: command = ["docker", "run", "-i", "IMAGE", "python"]
env = { VLLM_USE_FLASHINFER_SAMPLER = "0" }

With --gpus, a worker in a container must see the GPU of its job: ["docker", "run", "-i", "--gpus", "all", "--env",
"CUDA_VISIBLE_DEVICES", "--env", "CUDA_DEVICE_ORDER", "IMAGE", "python"]. A case that runs on another GPU fails.
"""

import os
import re
import sys
import tomllib
from collections.abc import Container
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from bench.catalogue.systems import ADAPTERS, MAMBA, VLLM
from bench.errors import UserError, unknown
from harness.measure.nvml import VARIABLE as GPU_VARIABLE
from harness.measure.nvml import visible_gpus
from harness.schema.files import read_regular, refusing
from harness.schema.reason import invalid
from harness.workers.process import Launch

SYSTEMS_FILE = Path("systems.toml")  # of the current folder
# A worker on the CPU sees no GPU. GNU OpenMP spins GOMP_SPINCOUNT times before a thread sleeps. With its default count,
# a contended core slows a step a hundredfold; without spinning, an idle machine loses a factor of four.
CPU_ENV = {"GOMP_SPINCOUNT": "30000", GPU_VARIABLE: ""}
_LOCKS = {VLLM: ("vllm",), MAMBA: ("cuda", "mamba")}  # lock files, by the command that installs them


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    python: str | None = None
    command: Annotated[list[str], Field(min_length=1)] | None = None
    env: dict[str, str] = {}


def notes_on_file(labels: Container[str]) -> list[str]:
    """Return [a sentence that names the `labels` (SYSTEM/BACKEND) in ./systems.toml]; [] if it has none."""
    own = [label for label in _read() if label in labels]
    return [f"{SYSTEMS_FILE} of this folder starts {', '.join(own)}"] if own else []


def worker_launches(device: str = "") -> dict[tuple[str, str], Launch]:
    """Return the launch of each (system, backend): from systems.toml, else with this interpreter.

    device: "cpu" hides the GPU from the workers. Raises UserError if systems.toml cannot be read or has a mistake.
    """
    entries = _read()
    here = ("cuda" if visible_gpus() else "cpu",)  # the lock that `make bench` installs
    unset = {name: value for name, value in CPU_ENV.items() if name == GPU_VARIABLE or name not in os.environ}
    found = {}
    for each in ADAPTERS:
        launch, locked = entries.get(each.label, Launch()), _locked(*_LOCKS.get(each.install, here))
        env = {**(unset if device == "cpu" else {}), **launch.env}
        found[each.system, each.backend] = replace(launch, entry=each.entry, locked=locked, env=env)
    return found


@cache
def _locked(*names: str) -> dict[str, str]:
    """Return {package: version} from lock files `names` (without .txt) of bench/requirements."""
    files = [Path(__file__).parent / "requirements" / f"{name}.txt" for name in names]
    return dict(re.findall(r"^([\w.-]+)(?:\[.+\])?==([^\s;]+)", "".join(map(Path.read_text, files)), re.MULTILINE))


def no_interpreter(launch: Launch) -> str:
    """Return a message if the path of a worker's interpreter does not exist; otherwise ""."""
    program = launch.command[0]
    missing = os.sep in program and not os.path.exists(program)
    return "its interpreter does not exist; `make baselines` creates the environments" if missing else ""


def _read() -> dict[str, Launch]:
    if not os.path.lexists(SYSTEMS_FILE):
        return {}
    with refusing(SYSTEMS_FILE, "read", UserError):
        content = read_regular(SYSTEMS_FILE)
    try:
        tables = tomllib.loads(content.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = '; a name with a slash needs quotes: ["transformer/vllm"]' if "table declaration" in str(error) else ""
        raise UserError(f"{SYSTEMS_FILE}: cannot be read as TOML: {error}{hint}") from None
    names = [adapter.label for adapter in ADAPTERS]
    for label in tables:
        if label not in names:
            raise unknown(f"{SYSTEMS_FILE}: system [{label}]", label, names)
    try:
        entries = TypeAdapter(dict[str, _Entry]).validate_python(tables)
    except ValidationError as error:
        raise UserError(f"{SYSTEMS_FILE}: {invalid(error)}") from None
    return {
        label: Launch(command=entry.command or [os.path.expanduser(entry.python or sys.executable)], env=entry.env)
        for label, entry in entries.items()
    }
