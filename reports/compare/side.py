"""One run's cases with the values that a comparison of two runs needs."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median, stdev
from typing import Any

from scipy import stats

from harness.measure.environment import DIRTY
from harness.measure.interval import FEWEST, median_interval
from harness.quality import by_case, case_flags, commit_name, timed
from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.reason import counted, printable, rounded
from harness.schema.record import SAMPLE_DIGITS, Record
from harness.schema.run import Run
from harness.workers.machine_load import is_loaded
from reports.words import SEPARATOR, days, short_commit

GPU_ID = "GPU id"
VARIABLES = "environment variables"
SAMPLING = ("budget_s", "min_samples", "warmup_s")  # settings of older records; now in run.json
NO_GPU = "none"  # stands for the GPU in a CPU measurement
NO_MEDIAN = "the median latency is 0 or infinite"
FEW_SEQUENCES = 4  # an engine's step with at most this many sequences is host-bound


@dataclass(frozen=True)
class Side:
    """One of the two compared runs, described in words.

    measured: the days (UTC) of the first and last timed record and, if the run is unfinished, the number of cases or
        records that are missing.
    """

    name: str
    commit: str
    device: str
    measured: str


@dataclass(frozen=True)
class CaseSide:
    """A case as measured in one run. Each process that measures it has a number, its repeat.

    name: the labels of system and backend. label: the case in words.
    medians: {repeat: median latency in ms}; {} without a result.
    why: the reason why there is no result; "" if there is one.
    tokens: {repeat: number of tokens, over all sequences, that one latency covers; 1 if unknown}.
    below, above: the distances from log(ms per token) to the ends of its 95% interval; infinite if unknown.
    samples: number of samples. measured_rounds: number of processes with samples. rounds: number planned.
    flags: the case's flags (`harness.quality.case_flags`).
    others_share: the largest share of CPU time that other programs used while a process was contended; 0 if none was.
    throttled: whether the GPU was power-capped or thermally throttled in any sample.
    device: {"GPU": name}, on a CPU {"GPU": "none", "CPU": model, "CPU cores": number}; {} without samples.
    facts: {name: value} of other properties, such as package versions.
    host_bound: whether an engine's batch is so small that the CPU limits the speed.
    measurements: start and samples of each timed record whose start is known.
    """

    case: Case
    label: str
    name: str
    medians: Mapping[int, float]
    tokens: Mapping[int, int]
    below: float
    above: float
    samples: int
    measured_rounds: int
    rounds: int
    others_share: float
    throttled: bool
    flags: tuple[str, ...]
    device: Mapping[str, str]
    facts: Mapping[str, str]
    host_bound: bool
    measurements: frozenset[tuple[str, tuple[float | None, ...]]]
    why: str

    @cached_property
    def ms(self) -> float:
        return median(self.medians.values()) if self.medians else math.nan

    @property
    def half(self) -> float:
        return max(self.below, self.above)

    @property
    def on_cpu(self) -> bool:
        return self.device.get("GPU") == NO_GPU

    @cached_property
    def middle(self) -> float:
        """The median over the repeats of log(ms per token); NaN without a result."""
        return median(self.log_ms.values()) if self.medians else math.nan

    @property
    def us_per_token(self) -> float:
        return 1e3 * math.exp(self.middle)

    @property
    def tokens_words(self) -> str:
        return " or ".join(map(str, sorted(set(self.tokens.values()))))

    @cached_property
    def log_ms(self) -> dict[int, float]:
        """{repeat: log(median time per token in ms)}."""
        return {repeat: math.log(ms / self.tokens[repeat]) for repeat, ms in self.medians.items()}


@dataclass(frozen=True)
class RunCases:
    """One run with the values that a comparison needs.

    ab_command: for a run of `ttt-bench ab`, the start time and arguments of the command as JSON; else "".
        It is equal in the two runs of one command.
    repeats: number of planned processes per case.
    cases: {case key: case with a record}. unmeasured: the keys of planned cases without a record.
    """

    ab_command: str
    repeats: int
    side: Side
    cases: Mapping[str, CaseSide]
    unmeasured: frozenset[str]

    @classmethod
    def of(cls, run: Run, records: Sequence[Record]) -> "RunCases":
        """Return the run's cases for a comparison. records: all records of the run."""
        first = run.file.requests[0] if run.file.requests else None
        return cls(
            json.dumps([first.at, *first.arguments]) if first and first.arguments[:1] == ("ab",) else "",
            run.file.repeats,
            run_side(run, records),
            {key: _case_side(own, run.file.repeats, run.catalogue) for key, own in by_case(records).items()},
            frozenset(case.key for case in run.missing(records)),
        )

    @cached_property
    def measured(self) -> set[str]:
        """The keys of the cases with a result."""
        return {key for key, case in self.cases.items() if case.medians}


def run_side(run: Run, records: Sequence[Record]) -> Side:
    """Return the run's name, commit, device and days in words.

    If no record has samples, commit and device come from the last command that planned or resumed the run.
    """
    measured = timed(records)
    unfinished = _unfinished(run, records)
    environments = [record.environment for record in measured] or [
        last.machine | {"commit": last.commit, "dirty": last.dirty} for last in run.file.requests[-1:]
    ]
    return Side(
        name=printable(run.folder.resolve().name),
        commit=_joined(map(_commit, environments)),
        device=_joined(_text(each.get("device")) for each in environments),
        measured=", ".join(filter(None, [days(record.started_at for record in measured), unfinished])),
    )


def _unfinished(run: Run, records: Sequence[Record]) -> str:
    missing = len(run.missing(records))
    if missing:
        return f"unfinished: {counted(missing, 'case')} without a record"
    missing = run.file.repeats * len({record.case.key for record in records}) - len(records)
    return f"unfinished: {counted(missing, 'record')} missing ({run.file.repeats} planned per case)" if missing else ""


def _case_side(records: Sequence[Record], repeats: int, catalogue: Catalogue) -> CaseSide:
    case, last, measured = records[0].case, records[-1], timed(records)
    name = printable(SEPARATOR.join([catalogue.system_label(case.system), catalogue.backend_label(case.backend)]))
    middles = {record.repeat: median(record.samples_ms) for record in measured}
    medians = {repeat: middle for repeat, middle in middles.items() if 0 < middle < math.inf}
    tokens = {record.repeat: record.tokens or 1 for record in measured if record.repeat in medians}
    below, above = _interval(measured, {repeat: ms / tokens[repeat] for repeat, ms in medians.items()})
    return CaseSide(
        case=case,
        label=f"{name}{case.label.removeprefix(case.system_backend)}",
        name=name,
        medians=medians,
        tokens=tokens,
        below=below,
        above=above,
        samples=sum(len(record.samples_ms) for record in measured),
        measured_rounds=len(measured),
        rounds=repeats,
        others_share=max(
            (each.environment["cpu"]["others_share"] for each in measured if is_loaded(each.environment)), default=0.0
        ),
        throttled=any(any(record.throttled) for record in records),
        flags=case_flags(records),
        device=_device(measured[0]) if measured else {},
        facts=_facts(measured),
        host_bound=case.timing == "engine" and case.batch <= FEW_SEQUENCES,
        measurements=frozenset(
            (each.started_at, tuple(rounded(ms, SAMPLE_DIGITS) for ms in each.samples_ms))
            for each in measured
            if each.started_at
        ),
        why="" if medians else f"{last.status}, {last.reason}" if last.status != "ok" else NO_MEDIAN,
    )


def _interval(measured: Sequence[Record], medians: Mapping[int, float]) -> tuple[float, float]:
    if len(medians) > 1:
        logs = [math.log(each) for each in medians.values()]
        half = float(stats.t.isf(0.025, len(logs) - 1)) * stdev(logs) / math.sqrt(len(logs))
        return half, half
    if not medians:
        return math.inf, math.inf
    samples = next(each.samples_ms for each in measured if each.repeat in medians)
    middle, low, high = median_interval(samples)
    known = low > 0 and len(samples) >= FEWEST  # fewer samples have no interval
    return (math.log(middle / low), math.log(high / middle)) if known else (math.inf, math.inf)


def _device(record: Record) -> dict[str, str]:
    gpu, cpu = (record.environment.get(part) or {} for part in ("gpu", "cpu"))
    if record.environment.get("device_kind") == "cpu":
        return {"GPU": NO_GPU, "CPU": _text(cpu.get("model")), "CPU cores": _text(cpu.get("cores"))}
    return {"GPU": _text(gpu.get("name"))}


def _facts(measured: Iterable[Record]) -> dict[str, str]:
    own = [_facts_of(record) for record in measured]
    found = {name: {facts.get(name, "") for facts in own} for facts in own for name in facts}
    return {
        name: " and ".join(sorted(value or "not recorded" for value in values)) if len(values) > 1 else values.pop()
        for name, values in found.items()
    }


def _facts_of(record: Record) -> dict[str, str]:
    gpu, cpu, software, variables = (
        record.environment.get(part) or {} for part in ("gpu", "cpu", "software", "variables")
    )
    facts = {"commit": _commit(record.environment), GPU_ID: _text(gpu.get("device_id"))}
    facts |= {"driver": _text(gpu.get("driver")), "CPU": _text(cpu.get("model")), "CPU cores": _text(cpu.get("cores"))}
    facts |= {"CPU threads": _text(cpu["threads"])} if "threads" in cpu else {}
    facts |= {name: _text(version) for name, version in software.items()}
    facts |= {VARIABLES: "recorded"} if "variables" in record.environment else {}
    facts |= {f"variable {name}": _text(value) for name, value in variables.items()}
    settings = {name: value for name, value in record.settings.items() if name not in SAMPLING}
    return facts | {f"setting {name}": value for name, value in settings.items()}


def _text(value: Any) -> str:
    return "" if value is None else printable(str(value))


def _commit(environment: Mapping[str, Any]) -> str:
    return printable(short_commit(commit_name(environment)).replace(DIRTY, " with uncommitted changes"))


def _joined(words: Iterable[str]) -> str:
    return ", ".join(word for word in dict.fromkeys(words) if word) or "not recorded"
