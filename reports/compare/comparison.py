"""Compare two runs case by case: time ratio B/A, interval, environment and outcome.

Separate runs of the same packages differ, so their cases are slower or faster only if times differ by more than
`STORED_BAR`. `ttt-bench ab` alternates the processes of its two runs, so smaller differences count
(`reports.compare.decision`). A case that ran on different devices has an outcome such as "another GPU" instead.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.measure.interval import FEWEST
from harness.quality import ANY_UNSTEADY, FEW_SAMPLES, HOT, LOADED, UNSTEADY
from harness.schema.reason import counted
from harness.schema.record import RecordError
from harness.schema.run import Run
from reports.compare.decision import BAR, LEAST_ROUNDS, CaseResult, decide
from reports.compare.side import GPU_ID, VARIABLES, CaseSide, RunCases, Side

MAYBE_OTHER_HOST = "CPU-bound, perhaps on another host"
PACED = "its arrivals set its duration"
STORED_BAR = 0.05  # see run-to-run spread in reports/results/README.md
# 95th percentile of differences between runs: one GPU, two GPUs of one model at equal clocks, CPU
BETWEEN_RUNS = {"gpu": 0.02, "gpus": 0.03, "cpu": 0.3}
WITHIN_NOISE = "same within noise"
OTHER_DEVICE = ("another GPU", "another CPU")
OUTCOMES = ("slower", "lost", "faster", "gained", "same", WITHIN_NOISE, "undecided", "unreliable", *OTHER_DEVICE)
MAX_VALUE_PAIRS = 3  # a difference with more pairs (A's value, B's value) is listed without values


class NotComparable(RecordError):
    """Raised for two runs that have no case in common."""


@dataclass(frozen=True)
class Difference:
    """A recorded property in which the two runs differ, such as a package's version.

    name: the property's name.
    a, b: its value in A and in B, "" if not recorded. Both are None if there are too many values to list.
    where: the labels of the systems and backends with this difference; empty if all have it.
    """

    name: str
    a: str | None = None
    b: str | None = None
    where: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        where = f" ({', '.join(self.where)})" if self.where else ""
        if self.a is None:
            return f"{self.name}, varying by case{where}"
        return f"{self.name} {self.a or 'not recorded'} → {self.b or 'not recorded'}{where}"


@dataclass(frozen=True)
class Row:
    """A case with a result in both runs, as one row of the comparison's table.

    label: the case in words. name: the labels of its system and backend.
    a_us, b_us: µs per token in A and in B.
    notes: remarks on the measurement, such as "thermally throttled in A".
    doubt: the first reason why the times are not comparable; "" for none.
    """

    label: str
    name: str
    phase: str
    a_us: float
    b_us: float
    result: CaseResult
    notes: tuple[str, ...] = ()
    doubt: str = ""

    @property
    def relative_difference(self) -> float:
        """The relative difference of the two times: longer / shorter - 1."""
        return max(self.result.ratio, 1 / self.result.ratio) - 1


@dataclass(frozen=True)
class Missing:
    """A case without a result in at least one of the two runs.

    name: the labels of its system and backend.
    outcome: for a case planned in both runs, "lost" if only A has a result, "gained" if only B has one.
        Else, it is "".
    """

    label: str
    name: str
    reason: str
    outcome: str = ""


@dataclass(frozen=True)
class Comparison:
    """Comparison of run A with run B.

    rows: the cases with a result in both runs, those with the largest difference first.
    missing: the cases without a result in at least one of the runs.
    interleaved: whether A and B come from one `ttt-bench ab` with at least `LEAST_ROUNDS` rounds.
    fail_on: the slowdown (0.01 for 1%) beyond which a case counts as regressed.
    run_spread: run-to-run spread as a fraction, from `BETWEEN_RUNS`: "cpu" if a case ran on a CPU, else "gpus".
    """

    a: Side
    b: Side
    differences: tuple[Difference, ...]
    rows: tuple[Row, ...]
    missing: tuple[Missing, ...]
    interleaved: bool
    fail_on: float
    run_spread: float

    @property
    def other_device(self) -> str:
        """Outcome "another GPU" or "another CPU" if the devices differ in every row, else ""."""
        outcomes = [row.result.outcome for row in self.rows]
        return outcomes[0] if outcomes and set(outcomes) <= {*OTHER_DEVICE} else ""

    @property
    def regressions(self) -> int:
        """The number of cases that are lost or regressed; 0 if the devices differ in every row."""
        if self.other_device:
            return 0
        return sum(row.result.regressed for row in self.rows) + sum(each.outcome == "lost" for each in self.missing)

    @property
    def counts(self) -> dict[str, int]:
        """{outcome: number of cases}; no lost or gained cases if the devices differ in every row."""
        outcomes = [row.result.outcome for row in self.rows]
        if not self.other_device:
            outcomes += [each.outcome for each in self.missing]
        return {outcome: outcomes.count(outcome) for outcome in OUTCOMES if outcome in outcomes}


def compare(a: Run, b: Run, fail_on: float = BAR) -> Comparison:
    """Return the comparison of runs A and B; `compare_cases` describes `fail_on`.

    Raises NotComparable if no case is in both runs, and RecordError if a run has no records or did not measure time.
    """
    sides = (RunCases.of(a, a.records()), RunCases.of(b, b.records()))
    for run, side in zip((a, b), sides, strict=True):
        if run.file.mode != "measure":
            raise RecordError(f"{run.folder}: is a run of mode {run.file.mode!r}, whose cases have no timing")
        if not side.cases:
            raise RecordError(f"{run.folder}: has no records to compare")
    if not sides[0].cases.keys() & sides[1].cases.keys():
        raise NotComparable(f"{a.folder} and {b.folder} have no case in common")
    return compare_cases(*sides, fail_on)


def compare_cases(a: RunCases, b: RunCases, fail_on: float = BAR) -> Comparison:
    """Return the comparison of two runs' cases.

    In one `ttt-bench ab`, a case regresses if its slowdown significantly exceeds `fail_on`.
    In separate runs, a case regresses if its outcome is "slower" and its slowdown exceeds `fail_on`.
    """
    both = [CasePair(a.cases[key], b.cases[key]) for key in a.cases if key in a.measured and key in b.measured]
    interleaved = bool(a.ab_command) and a.ab_command == b.ab_command and min(a.repeats, b.repeats) >= LEAST_ROUNDS
    results = _round_results(both, fail_on) if interleaved else [_result(pair, fail_on) for pair in both]
    rows = [pair.row(result) for pair, result in zip(both, results, strict=True)]
    return Comparison(
        a.side,
        b.side,
        tuple(_differences(both)),
        tuple(sorted(rows, key=lambda row: -row.relative_difference)),
        tuple(_missing(a, b)),
        interleaved,
        fail_on if interleaved else max(fail_on, STORED_BAR),
        BETWEEN_RUNS["cpu" if any(pair.on_cpu for pair in both) else "gpus"],
    )


@dataclass(frozen=True)
class CasePair:
    a: CaseSide
    b: CaseSide

    @property
    def log_ratios(self) -> list[float]:
        """For each round with a result in both runs, log(B's median time per token / A's)."""
        a, b = self.a.log_ms, self.b.log_ms
        return [b[repeat] - a[repeat] for repeat in a if repeat in b]

    def row(self, result: CaseResult) -> Row:
        a, times_us = self.a, (self.a.us_per_token, self.b.us_per_token)
        return Row(a.label, a.name, a.case.phase, *times_us, result, tuple(self._notes()), self.doubt)

    def _notes(self) -> Iterator[str]:
        sides = {"A": self.a, "B": self.b}
        for name, side in sides.items():
            if side.samples < FEWEST:
                yield f"{name} has {counted(side.samples, 'sample')}"
            if side.measured_rounds < side.rounds:
                yield f"{name} has {side.measured_rounds} of {side.rounds} rounds"
        if self.a.others_share or self.b.others_share:
            used = ", ".join(f"{side.others_share:.0%} in {name}" for name, side in sides.items() if side.others_share)
            yield f"contended (CPU use of other programs: {used})"
        if self.a.tokens_words != self.b.tokens_words:
            tokens = ", ".join(f"{side.tokens_words} in {name}" for name, side in sides.items())
            yield f"concurrent sequences differ: tokens per sample are {tokens}"
        if self.a.case.option("rate"):
            yield PACED
        if self.maybe_on_other_hosts:
            yield MAYBE_OTHER_HOST
        if hot := [name for name, side in sides.items() if HOT in side.flags]:
            yield f"thermally throttled in {' and '.join(hot)}"
        if unsteady := [name for name, side in sides.items() if ANY_UNSTEADY.intersection(side.flags)]:
            yield f"unsteady in {' and '.join(unsteady)}"
        throttled = [name for name, side in sides.items() if side.throttled]
        if len(throttled) == 1:
            yield f"power-capped or thermally throttled in {throttled[0]} only"

    @property
    def other_device(self) -> str:
        """Outcome "another GPU" or "another CPU" if the case ran on different devices, else ""."""
        a, b = self.a.device, self.b.device
        name = next((name for name in (*a, *b) if a.get(name) != b.get(name)), "")
        return f"another {name.removesuffix(' cores')}" if name else ""

    @property
    def on_cpu(self) -> bool:
        return self.a.on_cpu or self.b.on_cpu

    @property
    def on_other_gpus(self) -> bool:
        return self.a.facts.get(GPU_ID) != self.b.facts.get(GPU_ID)

    @property
    def maybe_on_other_hosts(self) -> bool:
        """Whether the case is host-bound and ran on different GPUs, perhaps of different hosts."""
        return self.a.host_bound and self.on_other_gpus

    @property
    def noise(self) -> float:
        return math.log1p(max(STORED_BAR, BETWEEN_RUNS["cpu"] if self.on_cpu else 0.0))

    @property
    def doubt(self) -> str:
        """The first reason why the times are not comparable, such as "contended"; "" for none."""
        flags = {*self.a.flags, *self.b.flags}
        causes = {
            "the same measurement": bool(self.a.measurements & self.b.measurements),
            PACED: bool(self.a.case.option("rate")),
            MAYBE_OTHER_HOST: self.maybe_on_other_hosts,
            **{flag: flag in flags for flag in (LOADED, HOT, FEW_SAMPLES)},
            UNSTEADY: bool(ANY_UNSTEADY & flags),
            "wide interval": math.hypot(self.a.half, self.b.half) > self.noise,
        }
        return self.other_device or next((cause for cause, holds in causes.items() if holds), "")


def _round_results(pairs: Sequence[CasePair], fail_on: float) -> list[CaseResult]:
    enough = [len(pair.log_ratios) >= LEAST_ROUNDS and not (pair.other_device or pair.doubt == PACED) for pair in pairs]
    results = iter(decide([pair.log_ratios for pair, has in zip(pairs, enough, strict=True) if has], fail_on))
    return [
        next(results) if has else _result(pair, fail_on, "" if pair.doubt == PACED else "undecided")
        for pair, has in zip(pairs, enough, strict=True)
    ]


def _result(pair: CasePair, fail_on: float, outcome: str = "") -> CaseResult:
    """Return a case's result from the medians of both runs, without pairing their rounds."""
    where = "cpu" if pair.on_cpu else "gpus" if pair.on_other_gpus else "gpu"
    middle, half = pair.b.middle - pair.a.middle, math.hypot(pair.a.half, pair.b.half, BETWEEN_RUNS[where])
    outcome = pair.other_device or outcome or _stored_outcome(pair, middle, half)
    regressed = outcome == "slower" and middle > math.log1p(fail_on)
    ratio, low, high = (math.exp(each) for each in (middle, middle - half, middle + half))
    return CaseResult(outcome, ratio, low, high, regressed)


def _stored_outcome(pair: CasePair, middle: float, half: float) -> str:
    if pair.doubt:
        return "unreliable"
    if abs(middle) > max(half, math.log1p(STORED_BAR)):
        return "slower" if middle > 0 else "faster"
    return WITHIN_NOISE if abs(middle) <= pair.noise else "undecided"


def _differences(pairs: Sequence[CasePair]) -> Iterator[Difference]:
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for pair in pairs:
        a, b = ({**side.device, **side.facts} for side in (pair.a, pair.b))
        comparable_variables = a.get(VARIABLES) == b.get(VARIABLES)
        for name in dict.fromkeys((*a, *b)):
            if a.get(name, "") != b.get(name, "") and (comparable_variables or not name.startswith("variable ")):
                labels = found.setdefault(name, {}).setdefault((a.get(name, ""), b.get(name, "")), [])
                labels.append(pair.a.name)
    all_labels = {pair.a.name for pair in pairs}
    for name, values in found.items():
        if len(values) > MAX_VALUE_PAIRS:
            yield Difference(name, where=_where([each for labels in values.values() for each in labels], all_labels))
        else:
            yield from (Difference(name, *each, _where(labels, all_labels)) for each, labels in values.items())


def _where(labels: Sequence[str], all_labels: set[str]) -> tuple[str, ...]:
    return () if set(labels) == all_labels else tuple(dict.fromkeys(labels))


def _missing(a: RunCases, b: RunCases) -> Iterator[Missing]:
    runs = {"A": a, "B": b}
    for key in dict.fromkeys((*a.cases, *b.cases)):
        sides = {name: run.cases[key] for name, run in runs.items() if key in run.cases}
        without = [name for name, run in runs.items() if key not in run.measured]
        absent = "".join(name for name in runs if name not in sides)
        outcome = {"A": "gained", "B": "lost"}.get("".join(without), "")
        if absent and key in runs[absent].unmeasured:
            reason = f"no record in {absent}, which is unfinished"
        elif absent:
            reason, outcome = f"only in {''.join(sides)}", ""
        else:
            reason = f"no result in {'; '.join(f'{name}: {sides[name].why}' for name in without)}"
        if without:
            case = next(iter(sides.values()))
            yield Missing(case.label, case.name, reason, outcome)
