"""How to start the worker of each system: this interpreter, or what the current folder's systems.toml names instead.

["transformer/vllm"]
python = "~/.venvs/vllm/bin/python"       # or: command = ["docker", "run", "-i", "IMAGE", "python"]
env = { VLLM_USE_FLASHINFER_SAMPLER = "0" }

With --gpus, a container must be given the GPU of its job: ["docker", "run", "-i", "--gpus", "all", "--env",
"CUDA_VISIBLE_DEVICES", "--env", "CUDA_DEVICE_ORDER", "IMAGE", "python"]. A record of another GPU is refused.
"""

import os
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

from bench.catalogue.systems import ADAPTERS, Adapter
from bench.errors import UserError, unknown
from harness.measure.nvml import VARIABLE as GPU_VARIABLE
from harness.schema.files import read_regular, refusing
from harness.workers.process import Launch

SYSTEMS_FILE = Path("systems.toml")  # of the current folder
SIZE_LIMIT = 1 << 20
# How often OpenMP's threads look before they sleep. Where another program has a core, threads that look on keep the one
# that they wait for from running: a step of 2.4 ms takes 320 with GNU OpenMP's own count and 78 with this one, which
# costs nothing on an idle machine; asleep at once it takes 3.3, but on an idle machine 10 (ttt-linear's, two cores).
# No GPU is seen, or a system would take the one that is there.
OF_A_CPU = {"GOMP_SPINCOUNT": "30000", GPU_VARIABLE: ""}


def systems_of_file() -> list[str]:
    """The systems, each SYSTEM/BACKEND, that the current folder's systems.toml names; none where there is no file."""
    return list(_read(SYSTEMS_FILE))


def launches(device: str = "") -> dict[tuple[str, str], Launch]:
    """How to start the worker of every (system, backend); device: "cpu" or "cuda"."""
    entries = _read(SYSTEMS_FILE)
    found = {(each.system, each.backend): _launch(each, entries.get(each.label)) for each in ADAPTERS}
    if device != "cpu":
        return found
    unset = {name: value for name, value in OF_A_CPU.items() if name == GPU_VARIABLE or name not in os.environ}
    return {pair: replace(launch, env={**unset, **launch.env}) for pair, launch in found.items()}


def failed_install(launch: Launch) -> str:
    """One sentence where `make baselines` left only a log of the environment; "" for any other interpreter."""
    folder = Path(launch.command[0]).parent.parent
    log = Path(f"{folder}.log")
    left = log.exists() and not (folder / ".installed").exists()
    return f"its environment failed to install (log: {log})" if left else ""


def _launch(adapter: Adapter, entry: Launch | None) -> Launch:
    if entry is None:
        return Launch(command=[sys.executable], entry=adapter.entry, env={})
    return replace(entry, entry=adapter.entry)


def _read(file: Path) -> dict[str, Launch]:
    if not os.path.lexists(file):
        return {}
    with refusing(file, "read", UserError):
        content = read_regular(file, SIZE_LIMIT)
    try:
        tables = tomllib.loads(content.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = '; a name with a slash needs quotes: ["transformer/vllm"]' if "table declaration" in str(error) else ""
        raise UserError(f"{file}: cannot be read as TOML: {error}{hint}") from None
    return {label: _checked(file, label, table) for label, table in tables.items()}


def _checked(file: Path, label: str, table: object) -> Launch:
    from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

    class Entry(BaseModel):
        model_config = ConfigDict(extra="forbid", strict=True)
        python: str | None = None
        command: list[str] | None = None
        env: dict[str, str] = {}

        @model_validator(mode="after")
        def one_way_to_start(self) -> "Entry":
            if self.python is not None and self.command is not None:
                raise ValueError("has both python and command; name one")
            if self.command == []:
                raise ValueError("command is empty")
            return self

    names = [adapter.label for adapter in ADAPTERS]
    if label not in names:
        raise unknown(f"{file}: system [{label}]", label, names)
    for word in table.keys() - Entry.model_fields.keys() if isinstance(table, dict) else ():
        raise unknown(f"{file}: [{label}] {word}", word, Entry.model_fields)
    try:
        entry = Entry.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{file}: [{label}] {where + ': ' if where else ''}{first['msg']}") from None
    python = [os.path.expanduser(entry.python or sys.executable)]
    return Launch(command=entry.command or python, entry="", env=entry.env)
