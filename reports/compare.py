"""Compare two runs case by case: the ratio B/A with an interval, what differs between them, and what may be concluded.

Two stored runs of the same commit differ by 0.7% in the median and by 2% in one case of twenty, a whole system at once,
so they are reported, and judged only beyond `STORED_BAR`. The two sides of `ttt-bench ab` were measured in turns and
are judged by `reports.judge`.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, stdev
from typing import Any

from harness.interval import FEWEST, median_interval
from harness.machine_load import is_loaded
from harness.reason import printable
from harness.record import Record, RecordError
from harness.run import Run
from reports.judge import BAR, LEAST_ROUNDS, MOST_ROUNDS, Judged, judge

STORED_BAR = 0.05  # two stored runs are not judged below it: the same case has differed by up to 2.6%
BETWEEN_RUNS = 0.02  # within which 95% of cases lie in two runs of the same commit
VERDICTS = ("slower", "lost", "faster", "same", "undecided", "not judged")
_LOG_LIMIT = 700.0  # of what a float can hold
_NAMED = 3  # values of a setting that are named one by one


class NotComparable(RecordError):
    """Two runs whose difference says nothing of what was measured; one sentence that says why."""


@dataclass(frozen=True)
class Side:
    """One of the two runs. measured: the first and the last day, UTC."""

    name: str
    commit: str
    device: str
    measured: str


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


@dataclass(frozen=True)
class Missing:
    """A case without a result on one side or both. lost: it has one in A, and B was asked for it."""

    label: str
    reason: str
    lost: bool = False


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
        """How many cases have each verdict; `lost` is a case without a result in B alone."""
        verdicts = [row.judged.verdict for row in self.rows] + ["lost"] * sum(each.lost for each in self.missing)
        return {verdict: verdicts.count(verdict) for verdict in VERDICTS if verdict in verdicts}


def compare(a: Run, b: Run, fail_on: float = BAR) -> Comparison:
    """Pair the cases of two runs and judge what may be judged.

    Raises NotComparable for another device, RecordError for a run that was not timed, and for two that share no case.
    """
    for run in (a, b):
        if run.mode != "measure":
            raise RecordError(f"{run.folder}: is a run of mode {run.mode!r}, whose cases have no timing")
    of_a, of_b = _by_case(a), _by_case(b)
    if not of_a.keys() & of_b.keys():
        raise RecordError(f"{a.folder} and {b.folder} have no case in common")
    pairs = [_Pair(of_a[key], of_b[key]) for key in of_a if key in of_b]
    both = [pair for pair in pairs if pair.has_result]
    _refuse_another_device(both)
    interleaved = _is_interleaved(a, b)
    judged = _judged_rounds(both, fail_on) if interleaved else [_judged_stored(pair, fail_on) for pair in both]
    rows = [pair.row(verdict) for pair, verdict in zip(both, judged, strict=True)]
    return Comparison(
        _side(a, of_a.values()),
        _side(b, of_b.values()),
        tuple(_differences(both)),
        tuple(sorted(rows, key=lambda row: -row.judged.ratio)),
        tuple(_missing(of_a, of_b)),
        interleaved,
        fail_on if interleaved else max(fail_on, STORED_BAR),
    )


@dataclass(frozen=True)
class _Pair:
    """The records of a case in both runs, by repeat."""

    a: tuple[Record, ...]
    b: tuple[Record, ...]

    @property
    def has_result(self) -> bool:
        return bool(_medians(self.a) and _medians(self.b))

    @property
    def log_ratios(self) -> list[float]:
        """log(B's median / A's median) of each round that both finished."""
        a, b = _medians(self.a), _medians(self.b)
        return [math.log(b[repeat]) - math.log(a[repeat]) for repeat in a if repeat in b]

    def row(self, judged: Judged) -> Row:
        case = self.a[0].case
        a_ms, b_ms = (median(_medians(records).values()) for records in (self.a, self.b))
        return Row(case.key, _label(self.a[0]), a_ms, b_ms, judged, tuple(self._notes(judged)))

    def _notes(self, judged: Judged) -> Iterator[str]:
        if judged.verdict == "undecided":
            yield f"{judged.decided_by or f'more than {MOST_ROUNDS}'} rounds would decide"
        sides = {"A": self.a, "B": self.b}
        for name, records in sides.items():
            timed = _timed(records)
            samples = sum(len(record.samples_ms) for record in timed)
            if samples < FEWEST:
                yield f"{name} has {samples} sample{'' if samples == 1 else 's'}"
            if len(timed) < len(records):
                yield f"{name} has {len(timed)} of {len(records)} rounds"
        shares = {name: _others_share(records) for name, records in sides.items()}
        if any(shares.values()):
            said = ", ".join(f"{share:.0%} in {name}" for name, share in shares.items() if share)
            yield f"loaded machine: others used {said}"
        throttled = [name for name, records in sides.items() if any(any(record.throttled) for record in records)]
        if len(throttled) == 1:
            yield f"throttled in {throttled[0]} only"

    @property
    def is_sound(self) -> bool:
        """Whether both sides have enough samples, from a machine that others left alone."""
        sides = (self.a, self.b)
        enough = all(sum(len(record.samples_ms) for record in side) >= FEWEST for side in sides)
        return enough and not any(map(_others_share, sides))


def _timed(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.samples_ms]


def _others_share(records: Iterable[Record]) -> float:
    """The most of the processors that others used while one of these was measured, where they disturbed it; else 0."""
    environments = [record.environment for record in _timed(records)]
    return max((each["cpu"]["others_share"] for each in environments if is_loaded(each)), default=0.0)


def _by_case(run: Run) -> dict[str, tuple[Record, ...]]:
    """The records of each case of the plan; none yet is an empty tuple."""
    found: dict[str, list[Record]] = {planned.case.key: [] for job in run.jobs for planned in job.cases}
    for record in run.records():
        found[record.case.key].append(record)
    return {key: tuple(records) for key, records in found.items() if records}


def _medians(records: Sequence[Record]) -> dict[int, float]:
    """repeat -> median in ms of what it measured; one of 0 ms has no ratio and is left out."""
    found = {record.repeat: median(record.samples_ms) for record in _timed(records)}
    return {repeat: middle for repeat, middle in found.items() if 0 < middle < math.inf}


def _is_interleaved(a: Run, b: Run) -> bool:
    """Whether the two runs are the sides of one `ttt-bench ab`."""
    if not a.file.requests or not b.file.requests or min(a.file.repeats, b.file.repeats) < LEAST_ROUNDS:
        return False
    first, second = a.file.requests[0], b.file.requests[0]
    return first.arguments[:1] == ("ab",) and (first.at, first.arguments) == (second.at, second.arguments)


def _judged_rounds(pairs: Sequence[_Pair], fail_on: float) -> list[Judged]:
    """Verdicts on rounds in turns; a case that finished fewer than two on both sides is undecided."""
    enough = [pair for pair in pairs if len(pair.log_ratios) >= LEAST_ROUNDS]
    verdicts = iter(judge([pair.log_ratios for pair in enough], fail_on))
    return [next(verdicts) if len(pair.log_ratios) >= LEAST_ROUNDS else _undecided(pair) for pair in pairs]


def _undecided(pair: _Pair) -> Judged:
    middle, half = _stored_ratio(pair)
    return replace(_judgement("undecided", middle, half, rounds=len(pair.log_ratios)), decided_by=LEAST_ROUNDS)


def _judged_stored(pair: _Pair, fail_on: float) -> Judged:
    """Two stored runs: slower or faster where they are further apart than the same commit has ever been."""
    middle, half = _stored_ratio(pair)
    far = pair.is_sound and abs(middle) > max(half, math.log1p(STORED_BAR))
    verdict = ("slower" if middle > 0 else "faster") if far else "not judged"
    regressed = verdict == "slower" and middle > math.log1p(fail_on)
    return _judgement(verdict, middle, half, rounds=min(len(pair.a), len(pair.b)), regressed=regressed)


def _judgement(verdict: str, middle: float, half: float, rounds: int, regressed: bool = False) -> Judged:
    ratio, low, high = (math.exp(min(each, _LOG_LIMIT)) for each in (middle, middle - half, middle + half))
    return Judged(verdict, ratio, low, high, rounds, regressed)


def _stored_ratio(pair: _Pair) -> tuple[float, float]:
    """log(B/A), and the half width of its 95% interval: of each side's median, and between two runs."""
    (a, half_a), (b, half_b) = _log_median(pair.a), _log_median(pair.b)
    return b - a, math.hypot(half_a, half_b, BETWEEN_RUNS)


def _log_median(records: Sequence[Record]) -> tuple[float, float]:
    """The logarithm of the median of the process medians, and how far its 95% interval goes to either side.

    Of one process, the interval of its samples' median, or below six samples their range.
    """
    medians = list(_medians(records).values())
    if len(medians) > 1:
        from scipy import stats

        logs = [math.log(each) for each in medians]
        half = stats.t.isf(0.025, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
        return math.log(median(medians)), float(half)
    samples = _timed(records)[0].samples_ms
    middle, low, high = median_interval(samples)
    return math.log(middle), math.log(max(high / middle, middle / low)) if low > 0 else math.inf


def _refuse_another_device(pairs: Iterable[_Pair]) -> None:
    for pair in pairs:
        for record_a, record_b in zip(_one_a_machine(pair.a), _one_a_machine(pair.b), strict=False):
            a, b = _device(record_a), _device(record_b)
            for what in dict.fromkeys((*a, *b)):
                if a.get(what) != b.get(what):
                    said = f"{what} {a.get(what) or 'not recorded'} in A, {b.get(what) or 'not recorded'} in B"
                    raise NotComparable(f"not comparable: {said} ({_label(record_a)})")


def _one_a_machine(records: Sequence[Record]) -> list[Record]:
    """A record of each machine that measured the case."""
    found = {json.dumps(_device(record), sort_keys=True): record for record in _timed(records)}
    return [found[name] for name in sorted(found)]


def _device(record: Record) -> dict[str, str]:
    """What must be the same for two timings to be compared: the GPU and its driver, or without one the CPU."""
    gpu, cpu = _object(record, "gpu"), _object(record, "cpu")
    if record.environment.get("device_kind") == "cpu":
        return {"GPU": "none", "CPU": _said(cpu.get("model")), "CPU cores": _said(cpu.get("cores"))}
    return {"GPU": _said(gpu.get("name")), "driver": _said(gpu.get("driver"))}


def _differences(pairs: Sequence[_Pair]) -> Iterator[Difference]:
    """What differs between the records that are compared: commits, machines, packages and settings, in this order."""
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for pair in pairs:
        a, b = (_facts(_timed(records)[0]) for records in (pair.a, pair.b))
        for what in dict.fromkeys((*a, *b)):
            if a.get(what, "") != b.get(what, ""):
                where = found.setdefault(what, {}).setdefault((a.get(what, ""), b.get(what, "")), [])
                where.append(pair.a[0].case.system_backend)
    everywhere = {pair.a[0].case.system_backend for pair in pairs}
    for what, values in found.items():
        if len(values) > _NAMED:
            yield Difference(what, where=_where([name for names in values.values() for name in names], everywhere))
        else:
            yield from (Difference(what, *each, _where(names, everywhere)) for each, names in values.items())


def _where(names: Sequence[str], everywhere: set[str]) -> tuple[str, ...]:
    return () if set(names) == everywhere else tuple(dict.fromkeys(names))


def _facts(record: Record) -> dict[str, str]:
    gpu, cpu = _object(record, "gpu"), _object(record, "cpu")
    facts = {"commit": _commit(record), "GPU unit": _said(gpu.get("device_id"))}
    facts |= {"CPU": _said(cpu.get("model")), "CPU cores": _said(cpu.get("cores"))}
    facts |= {name: _said(version) for name, version in _object(record, "software").items()}
    return facts | {f"setting {name}": value for name, value in record.settings.items()}


def _object(record: Record, part: str) -> Mapping[str, Any]:
    value = record.environment.get(part)
    return value if isinstance(value, Mapping) else {}


def _said(value: Any) -> str:
    return "" if value is None else printable(str(value))


def _commit(record: Record) -> str:
    commit = _said(record.environment.get("commit"))[:10]
    return f"{commit} with uncommitted changes" if commit and record.environment.get("dirty") else commit


def _side(run: Run, cases: Iterable[Sequence[Record]]) -> Side:
    """From its timed records; of a run without one, from what asked for it."""
    records = [record for case in cases for record in _timed(case)]
    days = sorted({record.started_at[:10] for record in records if record.started_at})
    asked = run.file.requests[-1] if run.file.requests else None
    commits = map(_commit, records) if records else [asked.commit[:10] if asked else ""]
    devices = [_said(record.environment.get("device")) for record in records]
    return Side(
        name=run.folder.name,
        commit=_joined(commits),
        device=_joined(devices or [_said(asked.machine.get("device")) if asked else ""]),
        measured=" to ".join(dict.fromkeys((days[0], days[-1]))) if days else "",
    )


def _joined(words: Iterable[str]) -> str:
    return ", ".join(word for word in dict.fromkeys(words) if word) or "not recorded"


def _missing(of_a: Mapping[str, Sequence[Record]], of_b: Mapping[str, Sequence[Record]]) -> Iterator[Missing]:
    """The cases that cannot be compared, each with its reason."""
    for key in dict.fromkeys((*of_a, *of_b)):
        a, b = of_a.get(key, ()), of_b.get(key, ())
        label = _label((*a, *b)[0])
        if not a or not b:
            yield Missing(label, f"only in {'A' if a else 'B'}")
            continue
        without = [(name, records) for name, records in (("A", a), ("B", b)) if not _medians(records)]
        if without:
            reasons = [f"{name}: {_why(records)}" for name, records in without]
            yield Missing(label, f"no result in {'; '.join(reasons)}", lost=[name for name, _ in without] == ["B"])


def _why(records: Sequence[Record]) -> str:
    last = records[-1]
    return f"{last.status}, {last.reason}" if last.status != "ok" else "a median without a ratio"


def _label(record: Record) -> str:
    case = record.case
    state = f" state {case.state_dtype}" if case.state_dtype not in ("", case.dtype) else ""
    return case.label + state
