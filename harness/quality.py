"""Flags for doubtful times of a case: contended, thermally throttled, unsteady, few samples."""

from collections.abc import Container, Iterable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from harness.measure.environment import DIRTY
from harness.measure.interval import FEWEST, median_interval
from harness.measure.nvml import is_hot
from harness.schema.record import Record
from harness.workers.machine_load import is_loaded

STEADY = 0.1  # limits, as shares of the median: half the interval, the quartiles' and the processes' differences
DRIFT = 0.05  # limit on the relative difference between the medians of the first and the last quarter
Processes = Sequence[Sequence[float]]  # a case's samples by process, in ms per unit of work or token
# A case's flags, the most severe first.
FEW_SAMPLES, LOADED, HOT, UNSTEADY = "few samples", "contended", "thermally throttled", "unsteady"
UNSTEADY_TIMES = {"time_to_first_token_ms": "unsteady TTFT", "inter_token_latency_ms": "unsteady ITL"}  # by metric
ANY_UNSTEADY = {UNSTEADY, *UNSTEADY_TIMES.values()}


def case_flags(group: Sequence[Record]) -> tuple[str, ...]:
    """Return a case's flags from its records; () if no "ok" record has samples."""
    measured = timed(group)
    if not measured:
        return ()
    enough = median(len(record.samples_ms) for record in measured) >= FEWEST  # fewer have no 95% interval
    per_token = [[ms / (record.tokens or 1) for ms in record.samples_ms] for record in measured]
    metrics = merged_metrics(measured)
    found = {
        FEW_SAMPLES: not enough,
        LOADED: any(is_loaded(record.environment) for record in measured),
        HOT: any(is_hot(record.environment) for record in measured),
        UNSTEADY: enough and is_unsteady(per_token),
    }
    found |= {flag: enough and _has_wide_interval(metrics, name) for name, flag in UNSTEADY_TIMES.items()}
    return tuple(flag for flag, holds in found.items() if holds)


def flagged(records: Iterable[Record], few: Container[str] = ()) -> set[str]:
    """Return the keys of cases that have a flag.

    few: keys of cases that may have few samples; the flag `FEW_SAMPLES` is ignored for them.
    """
    flags = {key: case_flags(own) for key, own in by_case(records).items()}
    return {key for key, own in flags.items() if set(own) - ({FEW_SAMPLES} if key in few else set())}


def by_case(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.case.key, []).append(record)
    return found


def commit_name(environment: Mapping[str, Any]) -> str:
    """Return a record's commit, with suffix "-dirty" for uncommitted changes; "" if unknown."""
    commit = environment.get("commit")
    return f"{commit}{DIRTY}" if commit and environment.get("dirty") else str(commit or "")


def timed(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.samples_ms]


def merged_metrics(records: Sequence[Record]) -> dict[str, float | None]:
    """Return each metric's median over the records that have a value; None if none has."""
    names = dict.fromkeys(name for record in records for name in record.metrics)
    values = {name: [v for record in records if (v := record.metrics.get(name)) is not None] for name in names}
    return {name: median(known) if known else None for name, known in values.items()}


def _has_wide_interval(metrics: Mapping[str, float | None], name: str) -> bool:
    time, low, high = (metrics.get(each) for each in (name, f"{name}_low", f"{name}_high"))
    return time is not None and low is not None and high is not None and high - low > 2 * STEADY * time


def is_unsteady(processes: Processes) -> bool:
    """Whether a case's times vary too much for a reliable latency; harness/README.md has the limits."""
    middle, low, high = pooled_interval(processes)
    medians = [median(samples) for samples in processes]
    apart, drift = (median(map(measure, processes)) for measure in (quartiles_apart, ends_apart))
    is_wide = high - low > 2 * STEADY * middle or max(medians) - min(medians) > STEADY * middle
    return is_wide or apart > STEADY or drift > DRIFT


def pooled_interval(processes: Processes) -> tuple[float, float, float]:
    """Return (median, low, high): the median of the processes' medians and its 95% interval.

    For each process, `median_interval` returns (m, l, h). low / median is the median of the processes' l / m, and
    high / median is the median of their h / m. So differences between processes do not widen the interval.
    """
    within = [median_interval(samples) for samples in processes]
    centre = median(middle for middle, _, _ in within)
    below = median(low / middle if middle > 0 else 1.0 for middle, low, _ in within)
    above = median(high / middle if middle > 0 else 1.0 for middle, _, high in within)
    return (centre, centre * below, centre * above) if len(within) > 1 else within[0]


def quartiles_apart(samples: Sequence[float]) -> float:
    """Return interquartile range / median; 0 for fewer than six samples or a median of 0."""
    if len(samples) < FEWEST or not (middle := median(samples)):
        return 0.0
    first, _, third = quantiles(samples, method="inclusive")
    return (third - first) / middle


def ends_apart(samples: Sequence[float]) -> float:
    """Return |first / last - 1| for the medians of the samples' first and last quarters.

    With fewer than 24 samples, the first six and the last six are used instead; with fewer than twelve, return 0.
    Also return 0 if last is 0, or if the interquartile ranges (for fewer than ten samples, full ranges) overlap.
    """
    count = max(FEWEST, len(samples) // 4)  # the first and the last of fewer than twelve share samples, so overlap
    (low, first, high), (last_low, last, last_high) = map(_quartiles, (samples[:count], samples[-count:]))
    return abs(first / last - 1) if last and (low > last_high or high < last_low) else 0.0


def _quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    if len(samples) < 10:
        return min(samples), median(samples), max(samples)
    low, middle, high = quantiles(samples, method="inclusive")
    return low, middle, high
