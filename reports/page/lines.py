"""The lines of a figure: their rows, names and looks (color, marker, dash)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import cycle
from typing import Any

import pandas as pd

from harness.schema.catalogue import DASHES, MARKERS, TONES, Catalogue, FigureEntry
from reports.stats import SETTING_COLUMNS, option_columns
from reports.words import SEPARATOR, format_setting

BOUND = "lower_bound_ms"  # the column of the lower bound
_BOUND_DASHES = ("dot", "dashdot")
_BACKBONES = {"mamba": "(M)", "transformer": "(T)"}  # the paper's short names
_TIMINGS = {"graph": "timed in CUDA graphs", "eager": "timed eagerly", "engine": "timed by the engine itself"}
_REQUEST_TIMINGS = _TIMINGS | {"eager": "timed by the host's clock"}  # a request's steps may replay CUDA graphs


@dataclass(frozen=True)
class Look:
    """The color, marker and dash of a line in a figure.

    tone: the number of a color in style.css. marker, dash: Plotly's names. hollow: whether markers are not filled.
    """

    tone: int
    marker: str
    dash: str = DASHES[0]
    hollow: bool = False


@dataclass(frozen=True, kw_only=True)
class Line(Look):
    """A line of a figure: one device model, system, backend, size and set of options.

    short: label of the system, state dtype or backend, depending on which sets color and marker.
        For a roofline bound, "lower bound" or a text such as "bound for float32".
    rows: row numbers in the table of `reports.stats.frame`, in order of x.
    base_rows: for a line of ratios, the rows of the denominators; else [].
    primary: whether the line answers the figure's question; the other lines are hidden at first.
    y: the column of the line's values if it is not the figure's y, such as `lower_bound_ms`; else "".
    """

    name: str
    short: str
    system: str
    rows: list[int]
    primary: bool = True
    base_rows: list[int] = field(default_factory=list)
    y: str = ""


def system_looks(table: pd.DataFrame, catalogue: Catalogue) -> dict[str, Look]:
    """Return {system: look}; systems outside the catalogue get unused tones and markers, if any."""
    looks = {entry.name: Look(entry.tone % TONES, entry.marker) for entry in catalogue.systems}
    for number, name in enumerate(sorted(set(table["system"]) - set(looks)), len(looks)):
        tones = [tone for tone in range(TONES) if tone not in {look.tone for look in looks.values()}]
        markers = [marker for marker in MARKERS if marker not in {look.marker for look in looks.values()}]
        looks[name] = Look([*tones, number % TONES][0], [*markers, MARKERS[number % len(MARKERS)]][0])
    return looks


class Looks:
    """Color, marker, dash, order and label of a table's systems and backends, for all figures."""

    def __init__(self, table: pd.DataFrame, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.systems = system_looks(table, catalogue)
        self.used_tones = {self.systems[name].tone for name in table["system"].unique()}
        self.devices = table["device"].replace("", None).nunique()
        self.order = {name: number for number, name in enumerate(self.systems)}
        backends = [entry.name for entry in catalogue.backends]
        backends += sorted(set(table["backend"]) - set(backends))
        self.backends = {name: number for number, name in enumerate(backends)}
        self.dashes = {entry.name: entry.dash for entry in catalogue.backends}

    def words(self, column: str, value: Any, phase: str = "") -> str:
        """Return a column's value as legends show it; "" if missing, or "device not recorded" for a device.

        phase: the case's phase, on which the words for the column "timing" depend.
        """
        if value is None or pd.isna(value) or value == "":
            return "device not recorded" if column == "device" else ""
        if column == "system":
            return self.catalogue.system_label(value)
        if column == "backend":
            return self.catalogue.backend_label(value)
        if column == "device":
            return value
        if column == "timing":
            return (_REQUEST_TIMINGS if phase == "request" else _TIMINGS).get(value, f"timing {value}")
        if column == "backbone" and value in _BACKBONES:
            return f"backbone {_BACKBONES[value]}"
        return format_setting(self.catalogue.axis(column), value)


@dataclass(frozen=True)
class FigurePanel:
    """One figure of the catalogue and its rows in order of x; makes the figure's lines."""

    looks: Looks
    entry: FigureEntry
    rows: pd.DataFrame

    def identity(self) -> list[str]:
        """Return the columns whose values decide which rows form one line.

        `timing` is included only if a line would otherwise have two points at one x. A case has one record, so GPUs
        and commits do not double points.
        """
        case = ("system", "backend", "size", "batch", "context", *SETTING_COLUMNS, *option_columns(self.rows))
        x = self.entry.along or self.entry.x
        columns = [name for name in (*case, "device") if name not in ("timing", self.entry.x, x)]
        if self.rows.duplicated([*columns, x]).any():
            columns.append("timing")
        return columns

    def lines(self) -> list[Line]:
        columns = self.identity()
        groups = _grouped(self.rows, columns)
        stated, own_looks = self._stated_columns(columns), self._own_looks()
        pairs = {(key[0], key[1]) for key in groups}
        listed = {pair for pair in pairs if "/".join(pair) in self.entry.primary}
        unlisted = self.entry.primary_systems - {system for system, _ in listed}
        lines: list[Line] = []
        for key in sorted(groups, key=self._order):
            values, pair = dict(zip(columns, key, strict=True)), (key[0], key[1])
            own_dash = replace(self.looks.systems[pair[0]], dash=self.looks.dashes.get(pair[1], DASHES[0]))
            look = own_looks.get(values[self._look_column], own_dash)
            line = self._line(values, stated, groups[key], look, self.looks.catalogue.backend_label(pair[1]))
            lines.append(_distinct(replace(line, primary=pair in (listed or pairs) or pair[0] in unlisted), lines))
        return lines

    @cached_property
    def _look_column(self) -> str:
        differing = (name for name in ("state_dtype", "backend") if self.rows[name].nunique() > 1)
        return next(differing, "system") if "system" in self.entry.split else "system"

    def _own_looks(self) -> dict[str, Look]:
        column = self._look_column
        if column == "system":
            return {}
        found = sorted(self.rows[column].unique(), key=lambda value: (self.looks.backends.get(value, 0), value))
        own = self.looks.systems[self.rows["system"].iloc[0]]
        tones = [own.tone, *(tone for tone in range(TONES) if tone not in self.looks.used_tones)]
        markers = [own.marker, *(marker for marker in MARKERS if marker != own.marker)]
        looks = (Look(tones[at % len(tones)], markers[at % len(markers)]) for at in range(len(found)))
        return dict(zip(found, looks, strict=True))

    def _line(
        self, values: dict[str, Any], stated: dict[str, set[str]], rows: list[int], look: Look, backend_label: str
    ) -> Line:
        system, column = values["system"], self._look_column
        label = self.looks.catalogue.system_label(system)
        columns = [column for column, systems in stated.items() if system in systems]
        parts = filter(None, (self.looks.words(column, values[column]) for column in columns))
        return Line(
            name=SEPARATOR.join([label, backend_label, *parts]),
            short=self.looks.words(column, values[column]),
            system=system,
            rows=rows,
            **vars(look),
        )

    def _stated_columns(self, columns: list[str]) -> dict[str, set[str]]:
        """Return {column: systems whose line names must state its value}. columns: candidates."""
        rows, own = self.rows, {"state_dtype", *option_columns(self.rows)}
        systems, found = set(rows["system"]), {}
        for column in columns:
            if column in own:
                counts = self._with_default(column).groupby(rows["system"]).nunique(dropna=False)
                found[column] = set(counts[counts > 1].index)
            elif column not in ("system", "backend") and rows[column].nunique() > 1:
                found[column] = systems
        return found

    def _with_default(self, name: str) -> pd.Series:
        column, default = self.rows[name].astype(object), self.looks.catalogue.axis(name).default
        return column if default is None else column.where(column.notna(), default)

    def _order(self, key: tuple[Any, ...]) -> tuple:
        return self.looks.order[key[0]], self.looks.backends[key[1]], [sortable(value) for value in key[2:]]

    def bounds(self) -> list[Line]:
        """Return roofline lower bounds as lines, one per system, size, form and options."""
        rows = self.rows
        if BOUND not in rows or rows[BOUND].isna().all():
            return []
        known = self._with_defaults()[rows[BOUND].notna()]
        # Backends that do the same work share a bound.
        shared = ("backend", "timing", "l2", "form", "device")
        columns = [*(name for name in self.identity() if name not in shared), "form"]
        found: dict[tuple, tuple[dict[str, Any], list[int]]] = {}
        for key, numbers in _grouped(known, columns).items():
            values = dict(zip(columns, key, strict=True))
            work = tuple(value for name, value in values.items() if name != "state_dtype")
            once = list(dict(zip(rows.loc[numbers, self.entry.x], numbers, strict=True)).values())
            # State precisions share one line: that of the precision with the most values of x.
            if len(once) > len(found.get(work, ({}, []))[1]):
                found[work] = values, once
        stated = [name for name in columns if name != "system" and known[name].nunique() > 1]
        ordered = sorted(found.values(), key=lambda bound: str(bound[0].get("form")))
        return [self._bound(*bound, stated, dash) for bound, dash in zip(ordered, cycle(_BOUND_DASHES))]

    def _with_defaults(self) -> pd.DataFrame:
        filled = {name: self._with_default(name) for name in option_columns(self.rows)}
        forms = forms_of(self.rows)
        filled["form"] = forms.astype(object).where(forms.notna(), filled["form"]) if "form" in filled else forms
        return self.rows.assign(**filled)

    def _bound(self, values: dict[str, Any], rows: list[int], stated: list[str], dash: str) -> Line:
        parts = filter(None, (self.looks.words(name, values[name]) for name in stated))
        short = f"bound for {values['state_dtype']}" if "state_dtype" in stated else "lower bound"
        name, look = SEPARATOR.join(["Lower bound", *parts]), Look(0, MARKERS[0], dash)
        return Line(name=name, short=short, system=values["system"], rows=rows, y=BOUND, **vars(look))

    def form_pairs(self) -> list[Line]:
        """Return lines of primal / dual ratios, at equal x and equal other settings."""
        rows, x = self.rows, self.entry.x
        forms = forms_of(rows)
        if set(forms) < {"dual", "primal"}:
            return []
        formless = self._with_defaults()
        formless["backend"] = formless["backend"].str.removesuffix("-dual").str.removesuffix("-primal")
        columns = [*(column for column in self.identity() if column not in ("form", "timing")), "timing"]
        primal, dual = (_grouped(formless[forms == form], columns) for form in ("primal", "dual"))
        stated = self._stated_columns(columns)
        own_looks = self._own_looks() if self._look_column == "state_dtype" else {}
        lines: list[Line] = []
        for key in sorted(primal.keys() & dual.keys(), key=lambda key: [sortable(value) for value in key]):
            values = dict(zip(columns, key, strict=True))
            at_x = dict(zip(rows.loc[dual[key], x], dual[key], strict=True))
            pairs = [
                (row, at_x[at]) for row, at in zip(primal[key], rows.loc[primal[key], x], strict=True) if at in at_x
            ]
            if pairs:
                look = own_looks.get(values["state_dtype"]) or self.looks.systems[values["system"]]
                backend = self._shared_label(rows["backend"].loc[list(pairs[0])])
                line = self._line(values, stated, [row for row, _ in pairs], look, backend)
                line = replace(line, base_rows=[base for _, base in pairs])
                lines.append(_distinct(line, lines))
        return lines

    def _shared_label(self, backends: Iterable[str]) -> str:
        labels = [self.looks.catalogue.backend_label(backend).split() for backend in backends]
        return " ".join(words[0] for words in zip(*labels, strict=False) if len(set(words)) == 1)


def _grouped(rows: pd.DataFrame, columns: list[str]) -> dict[tuple[Any, ...], list[int]]:
    groups: dict[tuple[Any, ...], list[int]] = {}
    keys = rows[columns].astype(object).where(rows[columns].notna(), None)
    for number, key in zip(rows.index, keys.itertuples(index=False, name=None), strict=True):
        groups.setdefault(key, []).append(number)
    return groups


def _distinct(line: Line, others: Sequence[Line]) -> Line:
    """Return the line; if one of `others` looks the same, with an unused dash and marker fill."""
    taken = {(other.dash, other.hollow) for other in others if (other.tone, other.marker) == (line.tone, line.marker)}
    first = DASHES.index(line.dash)
    dashes = [*DASHES[first:], *DASHES[:first]]
    options = [(dash, hollow) for dash in dashes for hollow in (line.hollow, not line.hollow)]
    dash, hollow = next((each for each in options if each not in taken), options[0])
    return replace(line, dash=dash, hollow=hollow)


def sortable(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def forms_of(rows: pd.DataFrame) -> pd.Series:
    """Return each row's form ("dual", "primal", NaN), from option `form` or backend suffix."""
    suffix = rows["backend"].str.extract(r"-(dual|primal)$", expand=False)
    return rows["form"].astype(object).where(rows["form"].notna(), suffix) if "form" in rows else suffix
