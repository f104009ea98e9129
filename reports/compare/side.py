"""What does a run say of each case, as far as another run is held against it?"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median, stdev
from typing import Any

from harness.measure.interval import FEWEST, median_interval
from harness.measure.nvml import is_hot
from harness.quality import DRIFT, by_case, ends_apart, timed
from harness.schema.reason import counted, printable, span
from harness.schema.record import Record
from harness.schema.run import Run
from harness.workers.machine_load import is_loaded
from reports.commits import commit_said, commit_words

GPU_UNIT = "GPU unit"
NO_GPU = "none"  # the GPU of what was measured on a CPU
# Of an engine, up to which its host bounds it: on another host a prompt of one took 5% less, and each step 0.12 ms
# more, which is 5% of a step of four sequences.
FEW_SEQUENCES = 4


@dataclass(frozen=True)
class Side:
    """One of the two runs. measured: the first and the last day, UTC, and how many cases it has not measured yet."""

    name: str
    commit: str
    device: str
    measured: str


@dataclass(frozen=True)
class CaseSide:
    """A case in one run.

    medians: repeat -> median in ms of what it measured; empty without a result, and then `why` says why. tokens: of
    each of them; an engine's step answers as many sequences as fit into its memory, which differs from start to start.
    below, above: how far the 95% interval of log(ms) goes; infinite where it has no end, as without a result.
    samples, timed: of all rounds, and how many of the `rounds` have any. others: the most of the processors that
    others used while it was measured, where they disturbed it; else 0. hot: whether heat slowed the GPU down. changed:
    whether the samples of a process alone are not at the end what they were at the beginning. devices: what must be
    the same for two timings to be compared, of each machine that measured the case. facts: what else may differ, by
    name, of all processes. host_bound: whether an engine's host bounds it.
    """

    key: str
    label: str
    system: str
    phase: str
    batch: int
    medians: Mapping[int, float]
    tokens: Mapping[int, int]
    below: float
    above: float
    samples: int
    timed: int
    rounds: int
    others: float
    throttled: bool
    hot: bool
    changed: bool
    devices: tuple[Mapping[str, str], ...]
    facts: Mapping[str, str]
    host_bound: bool
    started_at: str
    why: str

    @cached_property
    def ms(self) -> float:
        """The median of the medians of its processes; NaN without a result."""
        return median(self.medians.values()) if self.medians else math.nan

    @property
    def half(self) -> float:
        """How far the interval goes to its longer side."""
        return max(self.below, self.above)

    @property
    def is_sound(self) -> bool:
        """Whether it has enough samples of one time, from a cool machine left alone by others."""
        return self.samples >= FEWEST and not (self.others or self.hot or self.changed)

    @property
    def on_cpu(self) -> bool:
        """Whether a machine without a GPU measured it."""
        return any(device.get("GPU") == NO_GPU for device in self.devices)

    @cached_property
    def middle(self) -> float:
        """The median of `log_ms`; NaN without a result."""
        return median(self.log_ms.values()) if self.medians else math.nan

    @property
    def tokens_said(self) -> str:
        """`tokens` in words: each number once."""
        return " or ".join(map(str, sorted(set(self.tokens.values()))))

    @cached_property
    def log_ms(self) -> dict[int, float]:
        """The logarithm of each process's ms a token: what is compared."""
        return {repeat: math.log(ms / self.tokens[repeat]) for repeat, ms in self.medians.items()}


@dataclass(frozen=True)
class RunCases:
    """A run as comparisons read it.

    turns: the request of a `ttt-bench ab`, which its two runs share; "" for other runs. unmeasured: the keys of the
    planned cases without a record.
    """

    mode: str
    turns: str
    repeats: int
    side: Side
    cases: Mapping[str, CaseSide]
    unmeasured: frozenset[str]

    @classmethod
    def of(cls, run: Run, records: Sequence[Record] | None = None) -> "RunCases":
        """From a run; records: its records, where they are at hand."""
        records = run.records() if records is None else records
        asked = run.file.requests[0] if run.file.requests else None
        return cls(
            run.mode,
            json.dumps([asked.at, *asked.arguments]) if asked and asked.arguments[:1] == ("ab",) else "",
            run.file.repeats,
            run_side(run, records),
            case_sides(records, run.file.repeats),
            frozenset(case.key for case in run.missing(records)),
        )

    @cached_property
    def measured(self) -> set[str]:
        """The keys of the cases with a result."""
        return {key for key, case in self.cases.items() if case.medians}


def case_sides(records: Iterable[Record], repeats: int) -> dict[str, CaseSide]:
    """The cases that have a record, by key, of a run of so many repeats."""
    return {key: _case_side(own, repeats) for key, own in by_case(records).items()}


def run_side(run: Run, records: Sequence[Record]) -> Side:
    """What sets a run apart, from its timed records; of a run without one, from what asked for it."""
    measured = timed(records)
    unfinished = _unfinished(run, records)
    days = sorted({record.started_at[:10] for record in measured if record.started_at})
    places = [record.environment for record in measured] or [
        asked.machine | {"commit": asked.commit, "dirty": asked.dirty} for asked in run.file.requests[-1:]
    ]
    return Side(
        name=printable(run.folder.resolve().name),
        commit=_joined(map(_commit, places)),
        device=_joined(_said(place.get("device")) for place in places),
        measured=", ".join(filter(None, [span(days[0], days[-1]) if days else "", unfinished])),
    )


def _unfinished(run: Run, records: Sequence[Record]) -> str:
    """How much is not measured yet, in words; "" where all of it is."""
    missing = len(run.missing(records))
    if missing:
        return f"unfinished: {counted(missing, 'case')} without a record"
    short = run.file.repeats * len({record.case.key for record in records}) - len(records)
    return f"unfinished: {counted(short, 'record')} missing of {run.file.repeats} repeats a case" if short else ""


def _case_side(records: Sequence[Record], repeats: int) -> CaseSide:
    """What the records of a case, one a repeat, say together."""
    first, measured = records[0], timed(records)
    medians = _medians(measured)
    tokens = {record.repeat: record.tokens or 1 for record in measured if record.repeat in medians}
    below, above = _interval(measured, {repeat: ms / tokens[repeat] for repeat, ms in medians.items()})
    return CaseSide(
        key=first.case.key,
        label=first.case.label,
        system=first.case.system_backend,
        phase=first.case.phase,
        batch=first.case.batch,
        medians=medians,
        tokens=tokens,
        below=below,
        above=above,
        samples=sum(len(record.samples_ms) for record in measured),
        timed=len(measured),
        rounds=repeats,
        others=_others_share(measured),
        throttled=any(any(record.throttled) for record in records),
        hot=any(is_hot(record.environment) for record in measured),
        changed=len(measured) == 1 and ends_apart(measured[0].samples_ms) > DRIFT,
        devices=_devices(measured),
        facts=_facts(measured),
        host_bound=first.case.timing == "engine" and first.case.batch <= FEW_SEQUENCES,
        started_at=min((record.started_at for record in measured if record.started_at), default=""),
        why="" if medians else _why(records[-1]),
    )


def _medians(measured: Iterable[Record]) -> dict[int, float]:
    """One of 0 ms has no ratio and is left out."""
    found = {record.repeat: median(record.samples_ms) for record in measured}
    return {repeat: middle for repeat, middle in found.items() if 0 < middle < math.inf}


def _interval(measured: Sequence[Record], medians: Mapping[int, float]) -> tuple[float, float]:
    """(below, above), see CaseSide. Of several processes that of their medians a token; of one its median's.

    Of few samples of one process their range.
    """
    if len(medians) > 1:
        from scipy import stats

        logs = [math.log(each) for each in medians.values()]
        half = float(stats.t.isf(0.025, len(logs) - 1)) * stdev(logs) / math.sqrt(len(logs))
        return half, half
    if not medians:
        return math.inf, math.inf
    middle, low, high = median_interval(next(each.samples_ms for each in measured if each.repeat in medians))
    return (math.log(middle / low), math.log(high / middle)) if low > 0 else (math.inf, math.inf)


def _others_share(measured: Iterable[Record]) -> float:
    environments = [record.environment for record in measured]
    return max((each["cpu"]["others_share"] for each in environments if is_loaded(each)), default=0.0)


def _devices(measured: Iterable[Record]) -> tuple[dict[str, str], ...]:
    found = {json.dumps(device, sort_keys=True): device for device in map(_device, measured)}
    return tuple(found[name] for name in sorted(found))


def _device(record: Record) -> dict[str, str]:
    """The GPU and its driver, or without one the CPU."""
    gpu, cpu = _object(record, "gpu"), _object(record, "cpu")
    if record.environment.get("device_kind") == "cpu":
        return {"GPU": NO_GPU, "CPU": _said(cpu.get("model")), "CPU cores": _said(cpu.get("cores"))}
    return {"GPU": _said(gpu.get("name")), "driver": _said(gpu.get("driver"))}


def _facts(measured: Iterable[Record]) -> dict[str, str]:
    """What the processes say, by name: each value once, in an order that is not theirs."""
    own = [_facts_of(record) for record in measured]
    found = {name: {facts.get(name, "") for facts in own} for facts in own for name in facts}
    return {
        name: " and ".join(sorted(value or "not recorded" for value in values)) if len(values) > 1 else values.pop()
        for name, values in found.items()
    }


def _facts_of(record: Record) -> dict[str, str]:
    gpu, cpu = _object(record, "gpu"), _object(record, "cpu")
    facts = {"commit": _commit(record.environment), GPU_UNIT: _said(gpu.get("device_id"))}
    facts |= {"CPU": _said(cpu.get("model")), "CPU cores": _said(cpu.get("cores"))}
    facts |= {"CPU threads": _said(cpu["threads"])} if "threads" in cpu else {}
    facts |= {name: _said(version) for name, version in _object(record, "software").items()}
    facts |= {f"variable {name}": _said(value) for name, value in _object(record, "variables").items()}
    return facts | {f"setting {name}": value for name, value in record.settings.items()}


def _object(record: Record, part: str) -> Mapping[str, Any]:
    value = record.environment.get(part)
    return value if isinstance(value, Mapping) else {}


def _said(value: Any) -> str:
    return "" if value is None else printable(str(value))


def _commit(environment: Mapping[str, Any]) -> str:
    return printable(commit_words(commit_said(environment)))


def _joined(words: Iterable[str]) -> str:
    return ", ".join(word for word in dict.fromkeys(words) if word) or "not recorded"


def _why(last: Record) -> str:
    return f"{last.status}, {last.reason}" if last.status != "ok" else "a median without a ratio"
