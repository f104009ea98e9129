"""Look up the launch settings of a generate kernel for this GPU."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("tuning.toml")


@dataclass(frozen=True)
class Tuning:
    """Launch settings of one generate kernel; the fields are the keys of `tuning.toml`."""

    warps: int  # warps of the program that owns one head of one sequence
    block: int  # rows (Linear) or hidden units (MLP) of the state rewritten at a time
    matrix: bool = False  # MLP, dual: products of a weight and a vector on tensor cores, else in float32
    sm90: bool = False  # dual: the kernel of `generate_sm90.py`, of which only warps and registers are settings
    registers: int = 0  # most registers a thread; 0 lets the compiler choose


@cache
def tuning(operator: str, form: str, precision: str, gpu: str) -> Tuning:
    """The row of the first section whose name `gpu` begins with, else of "default".

    Raises KeyError with the table's path when even the default has no such row.
    """
    table = _table()
    name = next((n for n in table if gpu.startswith(n)), "default")
    for section in (table[name], table["default"]):
        row = section.get(operator, {}).get(form, {}).get(precision)
        if row is not None:
            return Tuning(**row)
    raise KeyError(f"{TABLE}: no row {operator}.{form}.{precision} for {gpu!r}, nor in [default]")


@cache
def _table() -> dict[str, Any]:
    with TABLE.open("rb") as file:
        return tomllib.load(file)
