"""Which interpreter runs which system? The defaults, and what the user's systems.toml says instead.

["transformer/vllm"]
python = "~/.venvs/vllm/bin/python"       # or: command = ["docker", "run", "-i", "IMAGE", "python"]
env = { VLLM_USE_FLASHINFER_SAMPLER = "0" }
"""

import os
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

from bench.errors import UserError
from bench.systems import SYSTEMS, SystemSpec
from harness.runner import Launch

DEFAULT_FILE = Path("systems.toml")


def launches(path: Path | None = None) -> dict[tuple[str, str], Launch]:
    """How to start the worker of every (system, backend); systems.toml is optional unless it is named."""
    entries = _read(path)
    return {(spec.system, spec.backend): _launch(spec, entries.get(spec.label)) for spec in SYSTEMS}


def _launch(spec: SystemSpec, entry: Launch | None) -> Launch:
    if entry is None:
        return Launch(command=[sys.executable], entry=spec.adapter, env={})
    return replace(entry, entry=spec.adapter)


def _read(path: Path | None) -> dict[str, Launch]:
    file = path or DEFAULT_FILE
    if not file.exists():
        if path is not None:
            raise UserError(f"{file}: no such file")
        return {}
    try:
        tables = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{file}: cannot be read as TOML: {error}") from None
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

    if label not in {spec.label for spec in SYSTEMS}:
        known = ", ".join(spec.label for spec in SYSTEMS)
        raise UserError(f"{file}: unknown system [{label}]; there are {known}")
    try:
        entry = Entry.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{file}: [{label}] {where + ': ' if where else ''}{first['msg']}") from None
    python = [os.path.expanduser(entry.python or sys.executable)]
    return Launch(command=entry.command or python, entry="", env=entry.env)
