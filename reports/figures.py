"""Which lines does each figure have, and what was held fixed in it?

A figure refers to the rows of `stats.frame` by number; the page draws it (`figures.js`), so that one
copy of the numbers serves figures, tables and downloads. Figures 8, 15 and 20 are those of the TTT
paper, arXiv 2407.04620.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle
from typing import Any

import pandas as pd

from harness.interval import FEWEST
from reports.stats import NOTES, option_columns

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
    "mamba-ssm": "mamba-ssm",
    "vllm": "vLLM",
    "triton-dual": "Triton dual",
    "flash-attn": "FlashAttention",
    "triton-primal": "Triton primal",
    "torch": "PyTorch",
    "torch-compile": "torch.compile",
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
_BACKEND_DASH = {"triton-dual": 1, "flash-attn": 1, "triton-primal": 3, "torch": 2, "fla": 4, "torch-compile": 5}
FLOOR = "floor_ms"
_FLOOR_DASHES = ("dot", "dashdot")
# Suites whose question is answered by a table.
_TABLES_ONLY = ("generate-fidelity",)
WIDE_RANGE = 30  # largest over smallest value of a figure, from which its first choice of axis is logarithmic
_TIMINGS = {"graph": "timed in CUDA graphs", "eager": "timed eagerly"}


@dataclass(frozen=True)
class Recipe:
    """A figure of a suite: its cases of one phase, `y` against `x` (columns of `stats.frame`).

    split: one figure for each value of these columns. forms: a second figure of primal over dual, where both are.
    floor: lines of `floor_ms` too.
    """

    suite: str
    phase: str
    title: str
    x: str = "context"
    y: str = "us_per_token"
    source: str = ""
    y_log: bool = False
    best: bool = False
    split: tuple[str, ...] = ()
    forms: bool = False
    floor: bool = False


_KERNEL = Recipe("", "", "", y="latency_ms", y_log=True, split=("system",), forms=True, floor=True)
RECIPES = (
    Recipe("quick", "forward", "Forward latency per token"),
    Recipe("quick", "generate", "Generate latency per token", x="batch"),
    Recipe("fig15-forward", "forward", "Forward latency per token", source="Figure 15, left"),
    Recipe("fig15-generate", "generate", "Generate latency per token", source="Figure 15, right"),
    Recipe("fig20-throughput", "forward", "Forward throughput", "batch", "tokens_per_s", "Figure 20", best=True),
    Recipe("fig20-throughput", "generate", "Generate throughput", "batch", "tokens_per_s", "Figure 20", best=True),
    Recipe("fig8-minibatch", "forward", "Time of computing W and z", "mini_batch", "latency_ms", "Figure 8, right"),
    Recipe("prompt-then-128", "request", "A prompt, then new tokens: latency of the whole", "context", "latency_ms"),
    Recipe("dual-vs-primal", "forward", "One layer's forward", y="latency_ms", y_log=True, forms=True),
    replace(_KERNEL, suite="kernel-forward", phase="forward", title="One layer's forward", split=("batch", "system")),
    replace(_KERNEL, suite="kernel-generate", phase="generate", title="One layer's step of generate", x="batch"),
)


@dataclass(frozen=True)
class Line:
    """One (device, system, backend, size, options) of a figure: rows of the frame, in order of x.

    `tone`, `marker` and `dash` index or name its look; `hollow` sets lines of one system and backend
    apart. With `base_rows`, the line is the ratio of each row to the base row in the same place. `y` is
    the column of a line that is not of the figure's, such as a floor.
    """

    name: str
    system: str
    tone: int
    marker: str
    dash: str
    hollow: bool
    rows: list[int]
    base_rows: list[int] = field(default_factory=list)
    y: str = ""


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
    looks = _numbered(system_order(table))
    return [figure for recipe in _recipes(table) for figure in _drawn(table, recipe, looks)]


def system_looks(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """`tone` and `marker` of each system in the figures of more than one."""
    return {system: _look(number) for system, number in _numbered(system_order(table)).items()}


def system_order(table: pd.DataFrame) -> list[str]:
    """The systems of the table: ours and the baselines in a fixed order, unknown ones after them by name."""
    found = set(table["system"])
    return [*SYSTEM_LABELS, *sorted(found - set(SYSTEM_LABELS))]


def system_label(system: str) -> str:
    return SYSTEM_LABELS.get(system, system)


def backend_label(backend: str) -> str:
    return BACKEND_LABELS.get(backend, backend)


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _look(number: int) -> dict[str, Any]:
    return {"tone": number % TONES, "marker": MARKERS[number % len(MARKERS)]}


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
        if suite not in _TABLES_ONLY:
            yield Recipe(suite, phase, f"{suite}: {phase}", _widest_axis(rows), "latency_ms", y_log=True, forms=True)


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
    for panel, titled in _panels(rows, recipe, looks):
        yield from _panel(panel, titled, looks)


def _panels(rows: pd.DataFrame, recipe: Recipe, looks: dict[str, int]) -> Iterator[tuple[pd.DataFrame, Recipe]]:
    """The rows of each figure of a recipe, with the recipe under the figure's own title."""
    if not recipe.split:
        yield rows, recipe
        return
    groups = dict(iter(rows.groupby(list(recipe.split), sort=False)))
    for key in sorted(groups, key=lambda key: [looks.get(value, value) for value in key]):
        values = dict(zip(recipe.split, key, strict=True))
        said = [system_label(value) if name == "system" else _said(name, value) for name, value in values.items()]
        yield groups[key], replace(recipe, title=f"{recipe.title}: {', '.join(reversed(said))}")


def _panel(rows: pd.DataFrame, recipe: Recipe, looks: dict[str, int]) -> Iterator[Figure]:
    lines = _lines(rows, recipe, looks)
    floors = _floors(rows, recipe.x, looks) if recipe.floor else []
    parts = [str(rows[name].iloc[0]) for name in recipe.split]
    figure = Figure(
        id="-".join([recipe.suite, recipe.phase, *parts]),
        suite=recipe.suite,
        title=recipe.title,
        source=recipe.source,
        caption=_caption(rows, recipe, lines + floors),
        x=recipe.x,
        y=recipe.y,
        x_title=_axis_title(recipe.x, recipe.phase),
        y_title=AXIS_TITLES[recipe.y],
        y_log=recipe.y_log or _spans_wide(rows[recipe.y]),
        best=recipe.best,
        lines=lines + floors,
    )
    yield figure
    # The paper's figures compare models; forms are compared where they are the suite's question.
    if recipe.forms and (pairs := _form_pairs(rows, recipe, looks)):
        yield replace(
            figure,
            id=f"{figure.id}-ratio",
            title=f"Primal over dual: {recipe.title[:1].lower()}{recipe.title[1:]}",
            y_title="Latency of primal ÷ dual",
            y_log=False,
            caption=_caption(rows, recipe, lines),
            lines=pairs,
        )


def _spans_wide(values: pd.Series) -> bool:
    """On a linear axis, would the lines of the fastest lie on each other at its foot?"""
    return bool(values.max() > WIDE_RANGE * values.min())


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


def _lines(rows: pd.DataFrame, recipe: Recipe, looks: dict[str, int]) -> list[Line]:
    x = recipe.x
    columns = _identity(rows, x)
    groups = _grouped(rows, columns, x)
    telling = _telling_columns(rows, columns)
    told, numbers = _told_by_look(rows, recipe, looks)
    lines: list[Line] = []
    for key in sorted(groups, key=lambda key: _rank(key, looks)):
        values = dict(zip([*columns, "run"], key, strict=True))
        line = _line(_name(values, telling), values["system"], groups[key], numbers[values[told]])
        lines.append(_dashed(line, values["backend"], lines))
    return lines


def _told_by_look(rows: pd.DataFrame, recipe: Recipe, looks: dict[str, int]) -> tuple[str, dict[str, int]]:
    """The column that colour and marker say, and the look of each of its values.

    It is the system; where each system has figures of its own, the state's precision or, if that is the same, the
    backend.
    """
    if "system" not in recipe.split or rows["backend"].nunique() == 1:
        return "system", looks
    column = "state_dtype" if rows["state_dtype"].nunique() > 1 else "backend"
    backends = [name for name in BACKEND_LABELS if name in set(rows["backend"])]
    order = backends if column == "backend" else []
    return column, _numbered(dict.fromkeys([*order, *sorted(rows[column].unique())]))


def _line(name: str, system: str, rows: list[int], look: int) -> Line:
    return Line(name=name, system=system, **_look(look), dash=DASHES[0], hollow=False, rows=rows)


def _dashed(line: Line, backend: str, others: Sequence[Line]) -> Line:
    """The dash says the backend; beside a line of `others` that looks so, hollow and filled in turn with the next."""
    taken = {(other.tone, other.marker, other.dash, other.hollow) for other in others}
    first = _BACKEND_DASH.get(backend, 0)
    for number in range(2 * len(DASHES)):
        turn, at = divmod(first + number, len(DASHES))
        look = replace(line, dash=DASHES[at], hollow=(number + turn) % 2 == 1)
        if (look.tone, look.marker, look.dash, look.hollow) not in taken:
            return look
    return line


def _floors(rows: pd.DataFrame, x: str, looks: dict[str, int]) -> list[Line]:
    """One line of `floor_ms` for each form: that of the state precision with the most values of x."""
    if FLOOR not in rows or rows[FLOOR].isna().all():
        return []
    known = rows[rows[FLOOR].notna()].assign(form=_forms(rows))
    # Backends that do the same work share its floor.
    columns = [name for name in _identity(known, x) if name not in ("backend", "timing", "l2")]
    found: dict[tuple, tuple[dict[str, Any], list[int]]] = {}
    for key, numbers in _grouped(known, columns, x).items():
        values = dict(zip([*columns, "run"], key, strict=True))
        work = tuple(value for name, value in values.items() if name != "state_dtype")
        if values["run"] == 1 and len(numbers) > len(found.get(work, ({}, []))[1]):
            found[work] = values, numbers
    telling = [name for name in columns if name != "system" and known[name].nunique() > 1]
    lines = []
    ordered = sorted(found.values(), key=lambda floor: str(floor[0].get("form")))
    for (values, numbers), dash in zip(ordered, cycle(_FLOOR_DASHES)):
        name = " · ".join(["Floor", *(said for name in telling if (said := _said(name, values[name])))])
        lines.append(replace(_line(name, values["system"], numbers, 0), dash=dash, y=FLOOR))
    return lines


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
    unsaid = {recipe.x, "sweep", "part", "scope"}
    unsaid |= {"form"} if _forms(rows).nunique() > 1 else set()
    unsaid |= {"l2"} if set(rows["l2"]) == {"warm"} else set()
    fixed = [_held(column, rows[column]) for column in columns if column not in unsaid]
    devices = " and ".join(_said("device", device) for device in rows["device"].unique())
    samples = rows.loc[rows["status"] == "ok", "samples"]
    sentence = ", ".join([*filter(None, fixed), f"on {devices}"])
    if len(samples):
        ends = dict.fromkeys((samples.min(), samples.max()))
        sentence += f"; medians of {'–'.join(map(str, ends))} samples with their 95% intervals"
        sentence += f" (below {FEWEST} samples their range)" if samples.min() < FEWEST else ""
    if recipe.best:
        sentence += "; rings mark the best batch of each line that turns within the batches tried"
    if any(line.y for line in lines):
        sentence += (
            "; the floor is the longer of the least bytes at a copy's bandwidth and the FLOPs at the rate of a large "
            "product, both measured in the process of the case"
        )
    if NOTES in rows and (noted := (rows["status"].eq("ok") & rows[NOTES].fillna("").ne("")).sum()):
        sentence += f"; the table has notes on {noted} of the points"
    if any(rows.loc[line.rows, "status"].eq("ok").nunique() > 1 for line in lines):
        sentence += "; crosses below mark cases without a result"
    return sentence[0].upper() + sentence[1:] + "."


def _held(column: str, values: pd.Series) -> str:
    """One value, or all of them where the lines differ (their names then say which is whose)."""
    found = [said for value in values.dropna().unique() if (said := _said(column, value))]
    if len(found) <= 3:
        return " or ".join(found)
    return f"{len(found)} values of {column.replace('_', '-')}"


def _form_pairs(rows: pd.DataFrame, recipe: Recipe, looks: dict[str, int]) -> list[Line]:
    """Lines of primal over dual, for rows that are alike in all but the form."""
    forms, x = _forms(rows), recipe.x
    if set(forms) < {"dual", "primal"}:
        return []
    alike = rows.assign(backend=rows["backend"].str.removesuffix("-dual").str.removesuffix("-primal"))
    columns = [column for column in _identity(rows, x) if column != "form"]
    primal, dual = (_grouped(alike[forms == form], columns, x) for form in ("primal", "dual"))
    telling = _telling_columns(rows, columns)
    told, numbers = _told_by_look(rows, recipe, looks)
    told, numbers = (told, numbers) if told != "backend" else ("system", looks)
    lines = []
    for key in sorted(primal.keys() & dual.keys(), key=lambda key: _rank(key, looks)):
        values = dict(zip([*columns, "run"], key, strict=True))
        at_x = dict(zip(rows.loc[dual[key], x], dual[key], strict=True))
        pairs = [(row, at_x[at]) for row, at in zip(primal[key], rows.loc[primal[key], x], strict=True) if at in at_x]
        if pairs:
            line = _line(_name(values, telling), values["system"], [row for row, _ in pairs], numbers[values[told]])
            line = replace(line, base_rows=[base for _, base in pairs])
            lines.append(_dashed(line, values["backend"], []))
    return lines


def _forms(rows: pd.DataFrame) -> pd.Series:
    """The form of each row: its option, or else what its backend is called after."""
    called = rows["backend"].str.extract(r"-(dual|primal)$", expand=False)
    return rows["form"].where(rows["form"].notna(), called) if "form" in rows else called
