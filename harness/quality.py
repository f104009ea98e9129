"""How far can the times of a case be trusted? Facts about its records: contended, hot, unsteady, of few samples."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median, quantiles

from harness.measure.environment import device_id_of
from harness.measure.interval import FEWEST, median_interval, repeats_interval
from harness.measure.nvml import is_hot
from harness.schema.record import Record
from harness.workers.machine_load import is_loaded

# Up to which samples agree: half of a median's interval over the median, and the distance of its quartiles over it.
STEADY = 0.1
# How far the samples at the beginning of a case may be from those at its end; beyond, something changed between them.
DRIFT = 0.05
TIMES_OF_A_REQUEST = ("time_to_first_token_ms", "time_between_tokens_ms")  # metrics with an interval


@dataclass(frozen=True)
class ProcessSamples:
    """The samples of the processes of a case: medians, and intervals within a process and over processes."""

    processes: tuple[tuple[float, ...], ...]

    @cached_property
    def within(self) -> tuple[float, float, float]:
        """(median, low, high) of `pooled_interval`."""
        return pooled_interval(self.processes)

    @property
    def latency_ms(self) -> float:
        """The median of the processes' medians."""
        return self.within[0]

    @cached_property
    def spread(self) -> float:
        """The range of the processes' medians over their median; NaN for one process."""
        medians = [median(samples) for samples in self.processes]
        repeated = len(medians) > 1 and self.latency_ms > 0
        return (max(medians) - min(medians)) / self.latency_ms if repeated else math.nan

    @cached_property
    def over_processes(self) -> tuple[float, float] | None:
        """(low, high) of `interval.repeats_interval`; None for one process."""
        if math.isnan(self.spread):
            return None
        _, low, high = repeats_interval(self.processes)
        return low, high

    @property
    def is_unsteady(self) -> bool:
        """Whether the median is not known to within `STEADY`, half of the samples lie further apart, or it changed."""
        if self.over_processes and len(self.processes) == 2:  # their interval is nine times as far as they are apart
            return self.spread > STEADY
        low, high = self.over_processes or self.within[1:]
        if high - low > 2 * STEADY * self.latency_ms:
            return True
        if self.over_processes:
            return False
        return median(map(quartiles_apart, self.processes)) > STEADY or median(map(ends_apart, self.processes)) > DRIFT


@dataclass(frozen=True)
class Quality:
    """The facts. unsteady: its latency; unsteady_times: (metric, low, high) of the times of its requests."""

    contended: bool = False  # others used the machine
    hot: bool = False  # heat slowed the GPU down
    few_samples: bool = False
    unsteady: bool = False
    unsteady_times: tuple[tuple[str, float, float], ...] = ()

    @property
    def disturbed(self) -> bool:
        """Whether another measurement may be without one of them."""
        return self.contended or self.hot or self.unsteady or bool(self.unsteady_times)


def quality_of(group: Sequence[Record], timing: ProcessSamples | None = None) -> Quality:
    """The facts about the records of a case from one place; timing: theirs, where it is known already."""
    measured = timed(record for record in group if record.status == "ok")
    if not measured:
        return Quality()
    samples = sum(len(record.samples_ms) for record in measured)
    known = samples >= FEWEST  # fewer have no interval
    timing = timing or timing_of(measured)
    return Quality(
        contended=any(is_loaded(record.environment) for record in measured),
        hot=any(is_hot(record.environment) for record in measured),
        few_samples=not known,
        unsteady=known and timing.is_unsteady,
        unsteady_times=tuple(_unsteady_times(merged_metrics(measured))) if known else (),
    )


def disturbed(records: Iterable[Record]) -> set[str]:
    """The keys of the cases that were disturbed at one place at least."""
    groups = {key: by_place(own) for key, own in by_case(records).items()}
    return {key for key, places in groups.items() if any(quality_of(group).disturbed for group in places)}


def timing_of(measured: Iterable[Record]) -> ProcessSamples:
    """The samples of records that have some."""
    return ProcessSamples(tuple(tuple(record.samples_ms) for record in measured))


def by_case(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each case by its key, one a process, in the order in which they come."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.case.key, []).append(record)
    return found


def by_place(repeats: Sequence[Record]) -> list[list[Record]]:
    """The repeats of a case by machine and commit; those without a result join theirs, or the first that has one."""
    places: dict[tuple[str, ...], list[Record]] = {}
    for record in repeats:
        if record.status == "ok":
            places.setdefault(_place(record), []).append(record)
    lost = [record for record in repeats if record.status != "ok"]
    if not places:
        return [lost]
    first = next(iter(places))
    for record in lost:
        places[place if (place := _place(record)) in places else first].append(record)
    return list(places.values())


def _place(record: Record) -> tuple[str, ...]:
    said = record.environment
    commit = str(said.get("commit") or "")
    return str(said.get("device") or ""), device_id_of(said), commit, str(bool(commit and said.get("dirty")))


def timed(records: Iterable[Record]) -> list[Record]:
    """Those with samples."""
    return [record for record in records if record.samples_ms]


def merged_metrics(records: Sequence[Record]) -> dict[str, float | None]:
    """Each metric's median over the processes that say it."""
    if len(records) == 1:
        return records[0].metrics
    names = dict.fromkeys(name for record in records for name in record.metrics)
    values = {name: [v for record in records if (v := record.metrics.get(name)) is not None] for name in names}
    return {name: median(known) if known else None for name, known in values.items()}


def _unsteady_times(metrics: Mapping[str, float | None]) -> Iterator[tuple[str, float, float]]:
    """(metric, low, high) of each time of a request whose interval is too wide."""
    for name in TIMES_OF_A_REQUEST:
        time, low, high = (metrics.get(each) for each in (name, f"{name}_low", f"{name}_high"))
        if time is not None and low is not None and high is not None and high - low > 2 * STEADY * time:
            yield name, low, high


def pooled_interval(processes: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """(median of the processes' medians, low, high): the 95% interval of a median within one process, the usual one.

    So far as in the median process its own interval (`median_interval`) goes, as a share of its median: what sets
    processes apart is no part of it.
    """
    within = [median_interval(samples) for samples in processes]
    centre = median(middle for middle, _, _ in within)
    below = median(low / middle if middle > 0 else 1.0 for middle, low, _ in within)
    above = median(high / middle if middle > 0 else 1.0 for middle, _, high in within)
    return (centre, centre * below, centre * above) if len(within) > 1 else within[0]


def quartiles_apart(samples: Sequence[float]) -> float:
    """How far the quartiles of the samples are apart, over their median; 0 for fewer than six."""
    if len(samples) < FEWEST or not (middle := median(samples)):
        return 0.0
    first, _, third = quantiles(samples, method="inclusive")
    return (third - first) / middle


def ends_apart(samples: Sequence[float]) -> float:
    """How far the median of the first quarter, six samples at least, is from that of the last, over that.

    0 for fewer than twelve samples, and where the two overlap, as noise would have it: of ten samples and more the
    middle halves, of fewer all. Of steady Gaussian noise of 5% it is above 5% in 1.6% of cases of 40 samples, and in at
    most 0.4% of cases of fewer, or of more than 60.
    """
    if len(samples) < 2 * FEWEST:
        return 0.0
    count = max(FEWEST, len(samples) // 4)
    (low, first, high), (floor, last, top) = map(_middle, (samples[:count], samples[-count:]))
    return abs(first / last - 1) if last and (low > top or high < floor) else 0.0


def _middle(samples: Sequence[float]) -> tuple[float, float, float]:
    """The median between the quartiles, or of fewer than ten samples between the ends."""
    if len(samples) < 10:
        return min(samples), median(samples), max(samples)
    low, middle, high = quantiles(samples, method="inclusive")
    return low, middle, high
