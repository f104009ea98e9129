"""Look up launch settings of the Triton kernels, and list settings to try on other GPUs."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("tuning.toml")
VARIABLE = "TTT_BENCH_TUNING"  # names the user's file, whose sections come before those of TABLE
FORWARD = "forward"  # the form of the portable forward kernels
# Names of the rows of form "forward" in `tuning.toml`, by operator
FORWARD_ROWS = {"ttt_linear": ("few", "crowded", "wide"), "ttt_mlp": ("narrow", "wide")}


@dataclass(frozen=True)
class Tuning:
    """Launch settings of one kernel; a row of `tuning.toml` has these fields as keys."""

    warps: int  # warps of the program that owns one head of one sequence
    block: int  # rows of W (Linear) or hidden units (MLP) rewritten at a time; forward: 0 without blocks
    matrix: bool = False  # MLP, dual: multiply weights by vectors on tensor cores, not in float32
    sm90: bool = False  # dual: run `generate_sm90.py`, which uses only warps and registers
    registers: int = 0  # most registers per thread; 0 lets the compiler choose
    stages: int = 0  # forward: pipeline stages of the loop's loads


@cache
def tuning(operator: str, form: str, row: str, name: str) -> Tuning:
    """Return a kernel's launch settings from the user's file or `tuning.toml`.

    Search the file that TTT_BENCH_TUNING names, then `tuning.toml`. In each, search the sections named by a prefix of
    `name`, longest first, then "default". Return the first `row` found.
    operator: "ttt_linear" or "ttt_mlp". form: "dual", "primal" or "forward". name: a result of `section_name`.
    row: the state's precision; for "forward", a class of problem sizes such as "wide", one of FORWARD_ROWS[operator].
    Raises KeyError if no section has the row, and ValueError if the user's file cannot be read.
    """
    for table in _tables():
        own = sorted((section for section in table if name.startswith(section)), key=len, reverse=True)
        for section in (*own, "default"):
            found = table.get(section, {}).get(operator, {}).get(form, {}).get(row)
            if found is not None:
                return Tuning(**found)
    raise KeyError(f"{TABLE}: no row {operator}.{form}.{row} for {name!r}, nor in [default]")


@cache
def _tables() -> list[dict[str, Any]]:
    tables = [tomllib.loads(TABLE.read_text())]
    if path := os.environ.get(VARIABLE):
        try:
            tables.insert(0, tomllib.loads(Path(path).read_text()))
        except (OSError, ValueError) as error:
            wanted = "name a file that `ttt-bench build --tune >FILE` wrote, or unset it"
            raise ValueError(f"{VARIABLE}={path} cannot be read ({error}): {wanted}") from None
    return tables


def candidates(operator: str, form: str, row: str, sm90: bool = False) -> Iterator[Tuning]:
    """Yield settings to try for a row of `tuning.toml`; with `sm90`, for `generate_sm90.py`."""
    linear, dual = operator == "ttt_linear", form == "dual"
    if form == FORWARD:
        blocks = (0,) if linear or row == "narrow" else (32, 64, 128)
        for w, b, s in product((2, 4, 8) if linear else (4, 8, 16), blocks, (1, 2, 3, 4) if linear else (1, 2, 3)):
            yield Tuning(warps=w, block=b, stages=s)
        return
    if sm90:
        for r in (0, 96, 112, 128, 168):
            yield Tuning(warps=1 if linear else 4, block=0, sm90=True, registers=r)
        return
    warps = (1, 2, 4) if linear else (4, 8, 16)
    blocks = ((16, 32, 64) if linear else (32, 64, 128)) if dual else (64,)  # primal rewrites the whole state at once
    matrix = (False, True) if dual and not linear and row != "float32" else (False,)
    for w, b, x, r in product(warps, blocks, matrix, (0, 128, 168)):
        yield Tuning(warps=w, block=b, matrix=x, registers=r)


def section(gpu: str, operator: str, form: str, rows: Mapping[str, Tuning]) -> str:
    """Format settings by row name as a section of `tuning.toml`, without default values."""
    lines = [f'["{gpu}".{operator}.{form}]']
    for row, chosen in rows.items():
        settings = [(f.name, getattr(chosen, f.name)) for f in fields(chosen) if getattr(chosen, f.name) != f.default]
        lines.append(f"{row} = {{ {', '.join(f'{name} = {str(value).lower()}' for name, value in settings)} }}")
    return "\n".join(lines)
