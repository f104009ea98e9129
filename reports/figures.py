"""Which lines does each figure have, and what was held fixed in it?

A figure refers to the rows of `stats.frame` by number; the page draws it (`figures.js`), so that one
copy of the numbers serves figures, tables and downloads. Figures 8, 15 and 20 are those of the TTT
paper, arXiv 2407.04620.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pandas as pd

from reports.stats import option_columns

SYSTEM_LABELS = {
    "ttt-linear": "TTT-Linear",
    "ttt-mlp": "TTT-MLP",
    "transformer": "Transformer",
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
    "gated-deltanet": "Gated DeltaNet",
    "rwkv7": "RWKV-7",
}
BACKEND_LABELS = {
    "thunderkittens": "ThunderKittens",
    "vllm": "vLLM",
    "mamba-ssm": "mamba-ssm",
    "triton-dual": "Triton dual",
    "flash-attn": "FlashAttention",
    "triton-primal": "Triton primal",
    "torch": "PyTorch",
    "fla": "flash-linear-attention",
    "sdpa-cudnn": "SDPA cuDNN",
    "sdpa-flash": "SDPA flash",
}
AXIS_TITLES = {
    "context": "Context length (tokens)",
    "batch": "Batch size (sequences)",
    "mini_batch": "Mini-batch size (tokens)",
    "us_per_token": "Latency per token (µs)",
    "latency_ms": "Latency (ms)",
    "tokens_per_s": "Throughput (tokens/s)",
}
TONES = 8
MARKERS = ("circle", "square", "diamond", "triangle-up", "pentagon", "triangle-down", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_BACKEND_DASH = {"triton-dual": 1, "flash-attn": 1, "triton-primal": 3, "torch": 2, "fla": 4}
_TIMINGS = {"graph": "timed in CUDA graphs", "eager": "timed eagerly"}


@dataclass(frozen=True)
class Recipe:
    """A figure of a suite: its cases of one phase, `y` against `x` (columns of `stats.frame`)."""

    suite: str
    phase: str
    title: str
    x: str = "context"
    y: str = "us_per_token"
    source: str = ""
    y_log: bool = False
    best: bool = False


RECIPES = (
    Recipe("quick", "forward", "Forward latency per token"),
    Recipe("quick", "generate", "Generate latency per token", x="batch"),
    Recipe("fig15-forward", "forward", "Forward latency per token", source="Figure 15, left"),
    Recipe("fig15-generate", "generate", "Generate latency per token", source="Figure 15, right"),
    Recipe("fig20-throughput", "forward", "Forward throughput", "batch", "tokens_per_s", "Figure 20", best=True),
    Recipe("fig20-throughput", "generate", "Generate throughput", "batch", "tokens_per_s", "Figure 20", best=True),
    Recipe("fig8-minibatch", "forward", "Time of computing W and z", "mini_batch", "latency_ms", "Figure 8, right"),
    Recipe("prompt-then-128", "request", "A prompt, then new tokens: latency of the whole", "context", "latency_ms"),
)


@dataclass(frozen=True)
class Line:
    """One (device, system, backend, size, options) of a figure: rows of the frame, in order of x.

    `tone`, `marker` and `dash` index or name its look; `hollow` sets lines of one system and backend
    apart. With `base_rows`, the line is the ratio of each row to the base row in the same place.
    """

    name: str
    system: str
    tone: int
    marker: str
    dash: str
    hollow: bool
    rows: list[int]
    base_rows: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Figure:
    """What the page needs to draw one figure; `x` and `y` are columns, `y_log` its first choice of axis."""

    id: str
    suite: str
    title: str
    source: str
    caption: str
    x: str
    y: str
    x_title: str
    y_title: str
    y_log: bool
    best: bool
    lines: list[Line]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def figures(table: pd.DataFrame) -> list[Figure]:
    """The figures of the suites in `table` (of `stats.frame`): the recipes first, then a default for every other."""
    table = _with_device(table)
    looks = {system: index for index, system in enumerate(system_order(table))}
    return [figure for recipe in _recipes(table) for figure in _drawn(table, recipe, looks)]


def system_order(table: pd.DataFrame) -> list[str]:
    """The systems of the table: ours and the baselines in a fixed order, unknown ones after them by name."""
    found = set(table["system"])
    return [*SYSTEM_LABELS, *sorted(found - set(SYSTEM_LABELS))]


def system_label(system: str) -> str:
    return SYSTEM_LABELS.get(system, system)


def backend_label(backend: str) -> str:
    return BACKEND_LABELS.get(backend, backend)


def _with_device(table: pd.DataFrame) -> pd.DataFrame:
    """Where one machine alone is known, records that broke before naming theirs belong to it."""
    known = [device for device in table["device"].unique() if device]
    return table.assign(device=table["device"].where(table["device"] != "", known[0])) if len(known) == 1 else table


def _recipes(table: pd.DataFrame) -> Iterator[Recipe]:
    present = dict.fromkeys(zip(table["suite"], table["phase"], strict=True))
    for recipe in RECIPES:
        if (recipe.suite, recipe.phase) in present:
            del present[recipe.suite, recipe.phase]
            yield recipe
    for suite, phase in present:
        rows = table[(table["suite"] == suite) & (table["phase"] == phase)]
        title = "Dual and primal form" if suite == "dual-vs-primal" else suite
        yield Recipe(suite, phase, f"{title}: {phase}", _widest_axis(rows), "latency_ms", y_log=True)


def _widest_axis(rows: pd.DataFrame) -> str:
    """The axis with the most values in the case of the suites that have no recipe."""
    axes = [axis for axis in ("context", "batch", "mini_batch") if axis in rows]
    return max(axes, key=lambda axis: rows[axis].nunique())


def _drawn(table: pd.DataFrame, recipe: Recipe, looks: dict[str, int]) -> Iterator[Figure]:
    rows = table[(table["suite"] == recipe.suite) & (table["phase"] == recipe.phase)]
    if recipe.x not in rows:
        return
    rows = rows[rows[recipe.x].notna()].sort_values([recipe.x, "started_at"], kind="stable")
    if rows.empty:
        return
    lines = _lines(rows, recipe.x, looks)
    figure = Figure(
        id=f"{recipe.suite}-{recipe.phase}",
        suite=recipe.suite,
        title=recipe.title,
        source=recipe.source,
        caption=_caption(rows, recipe, lines),
        x=recipe.x,
        y=recipe.y,
        x_title=_axis_title(recipe.x, recipe.phase),
        y_title=AXIS_TITLES[recipe.y],
        y_log=recipe.y_log,
        best=recipe.best,
        lines=lines,
    )
    yield figure
    # The paper's figures compare models; forms are compared where they are the suite's question.
    if recipe not in RECIPES and (pairs := _form_pairs(rows, recipe.x, looks)):
        title = f"Primal over dual: {recipe.phase}"
        yield replace(
            figure,
            id=f"{figure.id}-ratio",
            title=title,
            y_title="Latency of primal ÷ dual",
            y_log=False,
            lines=pairs,
        )


def _axis_title(x: str, phase: str) -> str:
    return "Prompt length (tokens)" if (x, phase) == ("context", "request") else AXIS_TITLES[x]


def _identity(rows: pd.DataFrame, x: str) -> list[str]:
    """The columns that set two lines of a figure apart."""
    columns = ["system", "backend", "device", "size", "batch", "context", "dtype", "state_dtype", "timing", "l2"]
    return [column for column in [*columns, *option_columns(rows)] if column != x]


def _grouped(rows: pd.DataFrame, columns: list[str], x: str) -> dict[tuple, list[int]]:
    """Row numbers by identity; a case measured again begins a second line, whose key ends in its number."""
    groups: dict[tuple, list[int]] = {}
    repeats: dict[tuple, int] = {}
    keys = rows[columns].astype(object).where(rows[columns].notna(), None)
    for number, at, key in zip(rows.index, rows[x], keys.itertuples(index=False, name=None), strict=True):
        repeats[key, at] = repeats.get((key, at), 0) + 1
        groups.setdefault((*key, repeats[key, at]), []).append(number)
    return groups


def _lines(rows: pd.DataFrame, x: str, looks: dict[str, int]) -> list[Line]:
    columns = _identity(rows, x)
    groups = _grouped(rows, columns, x)
    telling = _telling_columns(rows, columns)
    lines: list[Line] = []
    variants: dict[tuple, int] = {}
    for key in sorted(groups, key=lambda key: _rank(key, looks)):
        values = dict(zip([*columns, "run"], key, strict=True))
        look = values["system"], values["backend"]
        variants[look] = variants.get(look, -1) + 1
        lines.append(_line(_name(values, telling), *look, variants[look], groups[key], looks))
    return lines


def _line(name: str, system: str, backend: str, variant: int, rows: list[int], looks: dict[str, int]) -> Line:
    """Colour and marker say the system, the dash its backend; further lines of both are hollow, with the next dash."""
    look = looks[system]
    return Line(
        name=name,
        system=system,
        tone=look % TONES,
        marker=MARKERS[look % len(MARKERS)],
        dash=DASHES[(_BACKEND_DASH.get(backend, 0) + variant) % len(DASHES)],
        hollow=variant % 2 == 1,
        rows=rows,
    )


def _rank(key: tuple, looks: dict[str, int]) -> tuple:
    """Systems in their order, then backends, then numbers before words."""
    backends = [*BACKEND_LABELS]
    backend = backends.index(key[1]) if key[1] in backends else len(backends)
    rest = [(0, value, "") if isinstance(value, int | float) else (1, 0, str(value)) for value in key[1:]]
    return looks[key[0]], backend, rest


def _telling_columns(rows: pd.DataFrame, columns: list[str]) -> list[str]:
    """Columns worth saying in a legend: what differs in the figure or, of what only some systems have, within one."""
    own = {"state_dtype", *option_columns(rows)}
    by_system = rows.groupby("system", sort=False)
    return [
        column
        for column in columns
        if column not in ("system", "backend")
        and (by_system[column].nunique(dropna=False).max() if column in own else rows[column].nunique()) > 1
    ]


def _name(values: dict[str, Any], telling: list[str]) -> str:
    parts = [system_label(values["system"]), backend_label(values["backend"])]
    parts += [said for column in telling if (said := _said(column, values[column]))]
    parts += [f"run {values['run']}"] if values["run"] > 1 else []
    return " · ".join(parts)


def _said(column: str, value: Any) -> str:
    """A setting in the words of a legend or caption; "" for one that was not set."""
    if value is None or pd.isna(value) or value == "":
        return "device not recorded" if column == "device" else ""
    if column in ("size", "device", "dtype"):
        return str(value)
    if column == "part":
        return {"w": "W", "z": "z"}.get(value, str(value))
    if column == "timing":
        return _TIMINGS.get(value, f"timing {value}")
    if column == "form":
        return f"{value} form"
    names = {"l2": "L2", "mini_batch": "mini-batch", "state_dtype": "state"}
    return f"{names.get(column, column)} {value}"


def _caption(rows: pd.DataFrame, recipe: Recipe, lines: list[Line]) -> str:
    """One sentence: what was held fixed, and what points and bars are."""
    columns = ["batch", "context", "size", "dtype", "timing", "l2", *option_columns(rows)]
    unsaid = {recipe.x, "sweep", "part"}
    unsaid |= {"form"} if _forms(rows).nunique() > 1 else set()
    unsaid |= {"l2"} if set(rows["l2"]) == {"warm"} else set()
    fixed = [_held(column, rows[column]) for column in columns if column not in unsaid]
    devices = " and ".join(_said("device", device) for device in rows["device"].unique())
    samples = rows.loc[rows["status"] == "ok", "samples"]
    sentence = ", ".join([*filter(None, fixed), f"on {devices}"])
    if len(samples):
        ends = dict.fromkeys((samples.min(), samples.max()))
        sentence += f"; medians of {'–'.join(map(str, ends))} samples with their 95% intervals"
    if recipe.best:
        sentence += "; rings mark the best batch of each line"
    if any(rows.loc[line.rows, "status"].eq("ok").nunique() > 1 for line in lines):
        sentence += "; crosses below mark cases without a result"
    return sentence[0].upper() + sentence[1:] + "."


def _held(column: str, values: pd.Series) -> str:
    """One value, or all of them where the lines differ (their names then say which is whose)."""
    found = [said for value in values.dropna().unique() if (said := _said(column, value))]
    if len(found) <= 3:
        return " or ".join(found)
    return f"{len(found)} values of {column.replace('_', '-')}"


def _form_pairs(rows: pd.DataFrame, x: str, looks: dict[str, int]) -> list[Line]:
    """Lines of primal over dual, for rows that are alike in all but the form."""
    forms = _forms(rows)
    if set(forms) < {"dual", "primal"}:
        return []
    alike = rows.assign(backend=rows["backend"].str.removesuffix("-dual").str.removesuffix("-primal"))
    columns = [column for column in _identity(rows, x) if column != "form"]
    primal, dual = (_grouped(alike[forms == form], columns, x) for form in ("primal", "dual"))
    telling = _telling_columns(rows, columns)
    lines = []
    for key in sorted(primal.keys() & dual.keys(), key=lambda key: _rank(key, looks)):
        values = dict(zip([*columns, "run"], key, strict=True))
        at_x = dict(zip(rows.loc[dual[key], x], dual[key], strict=True))
        pairs = [(row, at_x[at]) for row, at in zip(primal[key], rows.loc[primal[key], x], strict=True) if at in at_x]
        if pairs:
            line = _line(_name(values, telling), values["system"], values["backend"], 0, [], looks)
            lines.append(replace(line, rows=[row for row, _ in pairs], base_rows=[base for _, base in pairs]))
    return lines


def _forms(rows: pd.DataFrame) -> pd.Series:
    """The form of each row: its option, or else what its backend is called after."""
    called = rows["backend"].str.extract(r"-(dual|primal)$", expand=False)
    return rows["form"].where(rows["form"].notna(), called) if "form" in rows else called
