"""Compare two runs case by case: the ratio B/A with an interval, what differs between them, and what may be concluded.

Two stored runs of the same commit differ by 0.7% in the median and by 2% in one case of twenty, a whole system at once,
so they are reported, and judged only beyond `STORED_BAR`. The two sides of `ttt-bench ab` were measured in turns and
are judged by `reports.compare.judge`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from harness.measure.interval import FEWEST
from harness.schema.reason import counted
from harness.schema.record import Record, RecordError
from harness.schema.run import Run
from reports.compare.judge import BAR, LEAST_ROUNDS, MOST_ROUNDS, Judged, judge
from reports.compare.side import GPU_UNIT, CaseSide, Side, case_sides, run_side

STORED_BAR = 0.05  # two stored runs are not judged below it: the same case has differed by up to 2.6%
# Within which 95% of cases lie in two runs of the same commit: of one GPU, of two of a kind, of a CPU.
BETWEEN_RUNS = {"gpu": 0.02, "gpus": 0.03, "cpu": 0.3}
VERDICTS = ("slower", "lost", "faster", "gained", "same", "undecided", "not judged")
LOG_LIMIT = 700.0  # of what a float can hold
NAMED = 3  # values of a setting that are named one by one
_UNFINISHED = "no record in {}, which is unfinished"


class NotComparable(RecordError):
    """Two runs whose difference says nothing of what was measured; one sentence that says why."""


@dataclass(frozen=True)
class Difference:
    """What is not the same on the two sides. where: the systems, empty for all. a, b: None where cases vary."""

    what: str
    a: str | None = None
    b: str | None = None
    where: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The difference in words."""
        where = f" ({', '.join(self.where)})" if self.where else ""
        if self.a is None:
            return f"{self.what}, from case to case{where}"
        return f"{self.what} {self.a or 'not recorded'} → {self.b or 'not recorded'}{where}"


@dataclass(frozen=True)
class Row:
    """A case with a result on both sides. a_ms, b_ms: medians of the medians of its processes; notes: what to know."""

    key: str
    label: str
    a_ms: float
    b_ms: float
    judged: Judged
    notes: tuple[str, ...] = ()

    @property
    def apart(self) -> float:
        """How much longer the longer of the two is, as a share; the same whichever is called A."""
        ratio = max(self.judged.ratio, math.exp(-LOG_LIMIT))
        return max(ratio, 1 / ratio) - 1


@dataclass(frozen=True)
class Missing:
    """A case without a result on one side or both. lost: it has one in A, B was asked for it; gained: in B alone."""

    label: str
    reason: str
    lost: bool = False
    gained: bool = False


@dataclass(frozen=True)
class Comparison:
    """Two runs held against each other; rows from the largest slowdown to the largest speed-up.

    interleaved: whether the two are the sides of `ttt-bench ab`. fail_on: the slowdown from which a row has regressed.
    """

    a: Side
    b: Side
    differences: tuple[Difference, ...]
    rows: tuple[Row, ...]
    missing: tuple[Missing, ...]
    interleaved: bool
    fail_on: float

    @property
    def regressions(self) -> int:
        """Cases that B is slower at by more than `fail_on`, or has lost."""
        return sum(row.judged.regressed for row in self.rows) + sum(each.lost for each in self.missing)

    @property
    def counts(self) -> dict[str, int]:
        """How many cases have each verdict; `lost` is a case without a result in B alone, `gained` in A alone."""
        verdicts = [row.judged.verdict for row in self.rows]
        verdicts += ["lost"] * sum(each.lost for each in self.missing)
        verdicts += ["gained"] * sum(each.gained for each in self.missing)
        return {verdict: verdicts.count(verdict) for verdict in VERDICTS if verdict in verdicts}


def compare(a: Run, b: Run, fail_on: float = BAR) -> Comparison:
    """Pair the cases of two runs and judge what may be judged.

    Raises NotComparable for two that share no case and for a case whose devices are not the same on both sides,
    RecordError for a run that was not timed or has no records.
    """
    for run in (a, b):
        if run.mode != "measure":
            raise RecordError(f"{run.folder}: is a run of mode {run.mode!r}, whose cases have no timing")
    records_a, records_b = a.records(), b.records()
    for run, records in ((a, records_a), (b, records_b)):
        if not records:
            raise RecordError(f"{run.folder}: has no records to compare")
    of_a, of_b = case_sides(records_a, a.file.repeats), case_sides(records_b, b.file.repeats)
    if not of_a.keys() & of_b.keys():
        raise NotComparable(f"{a.folder} and {b.folder} have no case in common")
    pairs = [Pair(of_a[key], of_b[key]) for key in of_a if key in of_b]
    both = [pair for pair in pairs if pair.has_result]
    _refuse_another_device(both)
    interleaved = _is_interleaved(a, b)
    judged = _judged_rounds(both, fail_on) if interleaved else [judged_stored(pair, fail_on) for pair in both]
    rows = [pair.row(verdict) for pair, verdict in zip(both, judged, strict=True)]
    return Comparison(
        run_side(a, records_a),
        run_side(b, records_b),
        tuple(differences(both)),
        tuple(sorted(rows, key=lambda row: -row.judged.ratio)),
        tuple(_missing(of_a, of_b, _unmeasured(a, records_a), _unmeasured(b, records_b))),
        interleaved,
        fail_on if interleaved else max(fail_on, STORED_BAR),
    )


@dataclass(frozen=True)
class Pair:
    """A case in both runs."""

    a: CaseSide
    b: CaseSide

    @property
    def has_result(self) -> bool:
        return bool(self.a.medians and self.b.medians)

    @property
    def log_ratios(self) -> list[float]:
        """log(B's median / A's median), both a token, of each round that both finished."""
        a, b = self.a.log_ms, self.b.log_ms
        return [b[repeat] - a[repeat] for repeat in a if repeat in b]

    def row(self, judged: Judged) -> Row:
        return Row(self.a.key, self.a.label, self.a.ms, self.b.ms, judged, tuple(self._notes(judged)))

    def _notes(self, judged: Judged) -> Iterator[str]:
        if judged.verdict == "undecided":
            yield f"{judged.decided_by or f'more than {MOST_ROUNDS}'} rounds would decide"
        sides = {"A": self.a, "B": self.b}
        for name, side in sides.items():
            if side.samples < FEWEST:
                yield f"{name} has {counted(side.samples, 'sample')}"
            if side.timed < side.rounds:
                yield f"{name} has {side.timed} of {side.rounds} rounds"
        if self.a.others or self.b.others:
            said = ", ".join(f"{side.others:.0%} in {name}" for name, side in sides.items() if side.others)
            yield f"loaded machine: others used {said}"
        if self.a.tokens_said != self.b.tokens_said:
            said = ", ".join(f"{side.tokens_said} in {name}" for name, side in sides.items())
            yield f"sequences at once differ: tokens of a sample are {said}; the ratio is of the time of one"
        if self.on_other_hosts:
            yield "an engine's few sequences on another host, which bounds them"
        if hot := [name for name, side in sides.items() if side.hot]:
            yield f"heat slowed the GPU down in {' and '.join(hot)}"
        if changed := [name for name, side in sides.items() if side.changed]:
            yield f"the time changed in the course of the samples in {' and '.join(changed)}"
        throttled = [name for name, side in sides.items() if side.throttled]
        if len(throttled) == 1:
            yield f"throttled in {throttled[0]} only"

    @property
    def on_other_gpus(self) -> bool:
        """Whether the two sides ran on two units."""
        return self.a.facts.get(GPU_UNIT) != self.b.facts.get(GPU_UNIT)

    @property
    def on_other_hosts(self) -> bool:
        """Whether two hosts are compared rather than what ran on them: a GPU of another unit is taken for another."""
        return self.a.host_bound and self.on_other_gpus

    @property
    def is_sound(self) -> bool:
        """Whether both sides are, and hosts do not matter."""
        return self.a.is_sound and self.b.is_sound and not self.on_other_hosts


def _is_interleaved(a: Run, b: Run) -> bool:
    """Whether the two runs are the sides of one `ttt-bench ab`."""
    if not a.file.requests or not b.file.requests or min(a.file.repeats, b.file.repeats) < LEAST_ROUNDS:
        return False
    first, second = a.file.requests[0], b.file.requests[0]
    return first.arguments[:1] == ("ab",) and (first.at, first.arguments) == (second.at, second.arguments)


def _judged_rounds(pairs: Sequence[Pair], fail_on: float) -> list[Judged]:
    """Verdicts on rounds in turns; a case that finished fewer than two on both sides is undecided."""
    enough = [pair for pair in pairs if len(pair.log_ratios) >= LEAST_ROUNDS]
    verdicts = iter(judge([pair.log_ratios for pair in enough], fail_on))
    return [next(verdicts) if len(pair.log_ratios) >= LEAST_ROUNDS else _undecided(pair) for pair in pairs]


def _undecided(pair: Pair) -> Judged:
    middle, half = _stored_ratio(pair)
    return replace(_judgement("undecided", middle, half, rounds=len(pair.log_ratios)), decided_by=LEAST_ROUNDS)


def judged_stored(pair: Pair, fail_on: float = BAR) -> Judged:
    """Two stored runs: slower or faster where they are further apart than the same commit has ever been."""
    middle, half = _stored_ratio(pair)
    far = pair.is_sound and abs(middle) > max(half, math.log1p(STORED_BAR))
    verdict = ("slower" if middle > 0 else "faster") if far else "not judged"
    regressed = verdict == "slower" and middle > math.log1p(fail_on)
    return _judgement(verdict, middle, half, rounds=min(pair.a.rounds, pair.b.rounds), regressed=regressed)


def _judgement(verdict: str, middle: float, half: float, rounds: int, regressed: bool = False) -> Judged:
    ratio, low, high = (math.exp(min(each, LOG_LIMIT)) for each in (middle, middle - half, middle + half))
    return Judged(verdict, ratio, low, high, rounds, regressed)


def _stored_ratio(pair: Pair) -> tuple[float, float]:
    """log(B/A), and the half width of its 95% interval: of each side's median, and between two runs."""
    where = "cpu" if pair.a.on_cpu or pair.b.on_cpu else "gpus" if pair.on_other_gpus else "gpu"
    return pair.b.middle - pair.a.middle, math.hypot(pair.a.half, pair.b.half, BETWEEN_RUNS[where])


def _refuse_another_device(pairs: Iterable[Pair]) -> None:
    for pair in pairs:
        of_a = [device for device in pair.a.devices if device not in pair.b.devices]
        of_b = [device for device in pair.b.devices if device not in pair.a.devices]
        if of_a or of_b:
            raise NotComparable(f"not comparable: {_apart(of_a, of_b)} ({pair.a.label})")


def _apart(of_a: Sequence[Mapping[str, str]], of_b: Sequence[Mapping[str, str]]) -> str:
    """The devices that only one side has; where each side has one, what tells the two apart."""
    if len(of_a) == len(of_b) == 1:
        [a], [b] = of_a, of_b
        what = next(what for what in dict.fromkeys((*a, *b)) if a.get(what) != b.get(what))
        return f"{what} {a.get(what) or 'not recorded'} in A, {b.get(what) or 'not recorded'} in B"
    sides = (("A", of_a), ("B", of_b))
    return "; ".join(f"{_device_words(device)} only in {name}" for name, devices in sides for device in devices)


def _device_words(device: Mapping[str, str]) -> str:
    return ", ".join(f"{what} {value or 'not recorded'}" for what, value in device.items())


def differences(pairs: Sequence[Pair]) -> Iterator[Difference]:
    """What differs between the records that are compared: commits, machines, packages and settings, in this order."""
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for pair in pairs:
        a, b = pair.a.facts, pair.b.facts
        for what in dict.fromkeys((*a, *b)):
            if a.get(what, "") != b.get(what, ""):
                where = found.setdefault(what, {}).setdefault((a.get(what, ""), b.get(what, "")), [])
                where.append(pair.a.system)
    everywhere = {pair.a.system for pair in pairs}
    for what, values in found.items():
        if len(values) > NAMED:
            yield Difference(what, where=_where([name for names in values.values() for name in names], everywhere))
        else:
            yield from (Difference(what, *each, _where(names, everywhere)) for each, names in values.items())


def _where(names: Sequence[str], everywhere: set[str]) -> tuple[str, ...]:
    return () if set(names) == everywhere else tuple(dict.fromkeys(names))


def _unmeasured(run: Run, records: Sequence[Record]) -> set[str]:
    """The keys of the cases that a run was asked for and has no record of."""
    return {case.key for case in run.missing(records)}


def _missing(
    of_a: Mapping[str, CaseSide], of_b: Mapping[str, CaseSide], unmeasured_a: Set[str], unmeasured_b: Set[str]
) -> Iterator[Missing]:
    """The cases that cannot be compared, each with its reason. unmeasured: what a run was asked for besides."""
    for key in dict.fromkeys((*of_a, *of_b)):
        a, b = of_a.get(key), of_b.get(key)
        if a is None or b is None:
            there, name, other, asked = (b, "B", "A", unmeasured_a) if a is None else (a, "A", "B", unmeasured_b)
            assert there is not None
            told = key in asked and bool(there.medians)
            reason = _UNFINISHED.format(other) if key in asked else f"only in {name}"
            yield Missing(there.label, reason, lost=told and name == "A", gained=told and name == "B")
            continue
        without = {name: side.why for name, side in (("A", a), ("B", b)) if side.why}
        if without:
            reasons = [f"{name}: {why}" for name, why in without.items()]
            sides = [*without]
            yield Missing(a.label, f"no result in {'; '.join(reasons)}", lost=sides == ["B"], gained=sides == ["A"])
