"""Compare two profiles of the same work, the largest difference first."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from harness.schema.profile import Profile
from harness.schema.reason import format_number
from harness.schema.run import Run
from reports.profiles.parts import IDLE, LABELS, kernel_parts, parts, within_sentence
from reports.profiles.peaks import with_common_peaks
from reports.profiles.words import TOLERANCE, bound_of, cause, short
from reports.resources import TEMPLATES

_MIN_SHARE = 0.1  # `sentence` omits smaller parts (share of the summed |ms|) and a smaller rest (of the total |ms|)
_TABLE_KERNELS = 12  # kernels per table


@dataclass(frozen=True)
class TimeDiff:
    """A part's or kernel's ms per unit of work, such as a step, in two profiles; None if absent."""

    name: str
    a_ms: float | None
    b_ms: float | None

    @property
    def ms(self) -> float:
        return (self.b_ms or 0.0) - (self.a_ms or 0.0)


@dataclass(frozen=True)
class Diff:
    """Two profiles of the same work to compare, and their titles."""

    a: Profile
    b: Profile
    a_title: str
    b_title: str

    @property
    def parts(self) -> list[TimeDiff]:
        sides = ({part.name: part.time_us / each.units / 1e3 for part in parts(each)} for each in (self.a, self.b))
        return _rows(*sides)

    @property
    def digits(self) -> int:
        """Decimals in the tables, so that `b.unit_ms` has at least four significant digits."""
        return max(0, 3 - math.floor(math.log10(self.b.unit_ms)))

    @property
    def tables(self) -> list[tuple[str, list[TimeDiff], str]]:
        """(heading, rows, sentence on omitted rows) for a table of parts and one of kernels."""
        kernels = _rows(*map(_kernel_ms, (self.a, self.b)))
        labelled = [TimeDiff(LABELS[row.name], row.a_ms, row.b_ms) for row in self.parts]
        rest = kernels[_TABLE_KERNELS:]
        omitted = f"{len(rest)} more kernels: {_signed(sum(row.ms for row in rest))} together" if rest else ""
        return [("Part", labelled, ""), ("Kernel", kernels[:_TABLE_KERNELS], omitted)]

    @property
    def sentence(self) -> str:
        """Total difference and its largest parts; if slower by over `TOLERANCE`, the bottleneck."""
        ms = self.b.unit_ms - self.a.unit_ms
        rows = self.parts
        whole = sum(abs(row.ms) for row in rows)
        named = [row for row in rows if abs(row.ms) >= _MIN_SHARE * whole] if whole else []
        changes = ", ".join(f"{within_sentence(row.name)} {_signed(row.ms)}" for row in named)
        rest = ms - sum(row.ms for row in named)
        changes += f", others {_signed(rest)}" if changes and abs(rest) >= _MIN_SHARE * abs(ms) else ""
        word = "slower" if ms > 0 else "faster"
        total = f"{format_number(abs(ms))} ms ({abs(ms) / self.a.unit_ms:.1%}) {word} than" if ms else "As fast as"
        why = self._bottleneck(rows) if ms > TOLERANCE * self.a.unit_ms else ""
        return f"{total} {self.a_title}{f': {changes}' if changes else ''}.{why and f' {why}'}"

    def _bottleneck(self, rows: list[TimeDiff]) -> str:
        longer = max(rows, key=lambda row: row.ms)
        if longer.name == IDLE:
            return f"Idle time: {cause(self.b)}."
        by_name, before = kernel_parts(self.b), _kernel_ms(self.a)
        grown = {
            kernel.time_us / self.b.units / 1e3 - before.get(short(kernel.name), 0.0): kernel
            for kernel in self.b.kernels
            if by_name[kernel.name] == longer.name
        }
        kernel = grown[max(grown)] if grown else None
        return f"{short(kernel.name)}: {bound_of(kernel, self.b)}." if kernel and kernel.counters else ""


def _kernel_ms(profile: Profile) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for kernel in profile.kernels:
        found[short(kernel.name)] += kernel.time_us / profile.units / 1e3
    return found


def _rows(a: Mapping[str, float], b: Mapping[str, float]) -> list[TimeDiff]:
    rows = [TimeDiff(name, a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])]
    return sorted(rows, key=lambda row: -abs(row.ms))


def _signed(ms: float) -> str:
    return f"{'+' if ms >= 0 else '−'}{format_number(abs(ms))} ms"


def diff_of_runs(a: Run, b: Run, names: tuple[str, str]) -> Markup:
    """Return HTML comparing cases profiled in both runs; "" for none. names: the runs' titles."""
    profiles = (with_common_peaks([*run.profiles().values()], run.records()) for run in (a, b))
    before, after = ({each.case.key: each for each in side if each.region_us} for side in profiles)
    pairs = [Diff(each, after[key], *names) for key, each in before.items() if key in after]
    pairs.sort(key=lambda pair: -abs(math.log(pair.b.unit_ms / pair.a.unit_ms)))
    return Markup(TEMPLATES.get_template("profiles/runs.html.j2").render(pairs=pairs) if pairs else "")
