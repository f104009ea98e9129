"""Statistics of the timed samples: a table with a row per case."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd

from harness.measure.environment import device_id_of
from harness.measure.interval import FEWEST
from harness.measure.nvml import heat_note, is_hot
from harness.measure.system import REPLAYED
from harness.quality import (
    FEW_SAMPLES,
    HOT,
    LOADED,
    STEADY,
    UNSTEADY,
    UNSTEADY_TIMES,
    by_case,
    case_flags,
    commit_name,
    merged_metrics,
    pooled_interval,
    timed,
)
from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.profile import Profile
from harness.schema.reason import counted, printable
from harness.schema.record import Record
from harness.schema.work import known, positive
from harness.workers.machine_load import is_loaded, load_note
from reports.fairness import FAIRNESS_METRICS
from reports.profiles.peaks import common_peaks
from reports.roofline import RATE_COLUMNS, WORK_METRICS, roofline_columns

CASE_COLUMNS = ("suites", "system", "backend", "size", "phase", "batch", "context")
OUTCOME_COLUMNS = ("status", "reason")
STATISTIC_COLUMNS = (
    "latency_ms",
    "latency_ms_low",
    "latency_ms_high",
    "process_spread",
    "us_per_token",
    "tokens_per_s",
    "peak_memory_gb",
)
SETTING_COLUMNS = ("dtype", "state_dtype", "timing", "l2")
MACHINE_COLUMNS = ("device", "device_id", "commit")
COLUMNS = CASE_COLUMNS + OUTCOME_COLUMNS + STATISTIC_COLUMNS + SETTING_COLUMNS + MACHINE_COLUMNS
SAMPLE_COLUMNS = ("samples", "processes", "throttled", "stop", "started_at")
NOTES, FLAGS = "notes", "flags"
# Numbers computed from other columns (`_computed`).
COMPUTED_COLUMNS = ("model_size", "tokens_per_s_each", "flops_per_token", "flops_share", "tokens_per_j")
CACHE_FULL = "cache full"  # a flag besides those of `harness.quality`; the point stays reliable
_DRIFT_METRICS = ("total_variation_mean", "total_variation_max", "argmax_disagreement")
AMOUNTS = ("state_bytes", "peak_memory_gb", *_DRIFT_METRICS)  # columns that do not depend on time
# (flag, sign in a figure, meaning)
SIGNS = (
    (CACHE_FULL, "†", "the KV cache held fewer sequences than requested"),
    (FEW_SAMPLES, "*", f"fewer than {FEWEST} samples"),
    (LOADED, "‡", "contended machine"),
    (HOT, "¶", "thermally throttled"),
    (
        UNSTEADY,
        "§",
        f"unsteady: interval wider than ±{STEADY:.0%}, middle half or processes wider than {STEADY:.0%}, or drift",
    ),
    *((flag, "§", f"unsteady: interval wider than ±{STEADY:.0%}") for flag in UNSTEADY_TIMES.values()),
)
NOT_RUN = ("skipped", "unstarted")  # statuses of cases that did not run; others without a result are failures
# Settings whose values go into the column NOTES.
NOTED_SETTINGS = ("check_limits", "warning")
FIDELITY_METRICS = ("compared_tokens", "total_variation_first", "total_variation_last")
# Metrics with a column only if the catalogue lists them: the page has rates, notes and other tables for them.
_USED_METRICS = {*WORK_METRICS, *FAIRNESS_METRICS, *FIDELITY_METRICS, "sequences_at_once"}


def frame(records: Iterable[Record], catalogue: Catalogue, profiles: Iterable[Profile] = ()) -> pd.DataFrame:
    """Return a table with one row per case, in the order of `by_case(records)`.

    The first columns are `COLUMNS`, one column per case option, and `SAMPLE_COLUMNS`.
    Then come rates, computed columns, metrics, notes and flags, each column only if a case has a value.
    An unknown number is NaN or pd.NA, an unknown text is "".
    latency_ms: the median of the processes' medians.
    latency_ms_low, latency_ms_high: the 95% interval within processes (`harness.quality.pooled_interval`).
    process_spread: (largest - smallest process median) / latency_ms.
    processes: the number of processes with samples or, if none has samples, of all processes.
    profiles: the run's profiles, which can raise its peaks (`reports.profiles.peaks.common_peaks`).
    """
    records = list(records)
    groups = [sorted(case, key=lambda record: record.status != "ok") for case in by_case(records).values()]
    peaks = common_peaks(records, profiles)
    memberships = suites_of_cases(catalogue)
    metrics = metric_columns((metric for group in groups for record in group for metric in record.metrics), catalogue)
    rows = [_row(group, memberships.get(group[0].case.key, ()), metrics, peaks) for group in groups]
    late = (*RATE_COLUMNS, *COMPUTED_COLUMNS, *metrics, NOTES, FLAGS)
    table = pd.DataFrame(rows, columns=[*COLUMNS, *SAMPLE_COLUMNS, *late])
    extra = _options([group[0].case for group in groups], table, catalogue)
    filled = [name for name in late if table[name].replace("", None).notna().any()]
    # convert_dtypes: whole numbers, such as registers, stay whole where some records have none
    return pd.concat([table[list(COLUMNS)], extra, table[list(SAMPLE_COLUMNS)], table[filled].convert_dtypes()], axis=1)


def flags_in(cell: Any, y: str = "") -> tuple[str, ...]:
    """Return the flags in a `FLAGS` cell; with `y`, only flags that concern the column `y`."""
    flags = tuple(cell.split(", ")) if isinstance(cell, str) and cell else ()
    return tuple(flag for flag in flags if not y or flag in flags_of(y))


def flags_of(y: str) -> tuple[str, ...]:
    """Return all flags that can concern the column `y`, the most severe first."""
    if y in AMOUNTS:
        return (CACHE_FULL,)
    return CACHE_FULL, FEW_SAMPLES, LOADED, HOT, UNSTEADY_TIMES.get(y, UNSTEADY)


def option_columns(table: pd.DataFrame) -> list[str]:
    """Return the names of the columns that contain case options, such as `scope`."""
    return list(table.columns[len(COLUMNS) : table.columns.get_loc(SAMPLE_COLUMNS[0])])


def metric_columns(recorded: Iterable[str], catalogue: Catalogue) -> list[str]:
    """Return recorded metrics that need a column: the catalogue's in its order, others by name."""
    taken = {*COLUMNS, *SAMPLE_COLUMNS, *RATE_COLUMNS, *COMPUTED_COLUMNS, NOTES, FLAGS}
    found = set(recorded) - taken
    known = [metric.name for metric in catalogue.metrics if metric.name in found]
    return [*known, *sorted(found - {metric.name for metric in catalogue.metrics} - _USED_METRICS)]


def suites_of_cases(catalogue: Catalogue) -> dict[str, tuple[str, ...]]:
    """Return {case key: names of the suites that contain the case}."""
    found: dict[str, tuple[str, ...]] = {}
    for suite in catalogue.suites:
        for key in suite.cases:
            found[key] = (*found.get(key, ()), printable(suite.name))
    return found


def _options(cases: Sequence[Case], table: pd.DataFrame, catalogue: Catalogue) -> pd.DataFrame:
    """Return a table of the cases' options, with one column per option.

    If a case does not set an option, the cell is NA or, if the option varies, the option's default value.
    An option varies for a system, backend and phase if one of their cases sets it.
    It also varies if one of their cases is in a suite whose figures have the option as x axis or are split by it.
    """
    names = list(dict.fromkeys(name for case in cases for name, _ in case.options))
    axes = {(suite.name, axis) for suite in catalogue.suites for own in suite.figures for axis in (own.x, *own.split)}
    values = {}
    for name in names:
        default = catalogue.axis(name).default
        varied = {
            (case.system_backend, case.phase)
            for case, of in zip(cases, table["suites"], strict=True)
            if case.option(name) is not None or any((suite, name) in axes for suite in of)
        }
        column = [case.option(name, default if (case.system_backend, case.phase) in varied else None) for case in cases]
        values[f"option_{name}" if name in table else name] = pd.array(column, dtype=object)
    return pd.DataFrame(values, index=table.index).convert_dtypes()


def _row(
    group: list[Record], suites: tuple[str, ...], metrics: Sequence[str], peaks: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    first = group[0]  # an `ok` record if there is one
    measured = [record for record in group if record.status == "ok"]
    found = merged_metrics(measured or group)
    row: dict[str, Any] = {column: getattr(first.case, column) for column in (*CASE_COLUMNS[1:], *SETTING_COLUMNS)}
    row |= {"suites": suites, "status": first.status, "reason": first.reason}
    row |= _statistics(measured, group)
    row |= {name: math.nan if found.get(name) is None else found[name] for name in metrics}
    common = peaks[str(first.environment.get("device"))]
    reached = {name: highest for name, highest in common.items() if found.get(name)}
    row |= roofline_columns(first.case, found | reached, row["latency_ms"])
    row |= _computed(first.case, row, known(reached.get("product_tflops")))
    row |= {
        "device": str(first.environment.get("device") or ""),
        "device_id": device_id_of(first.environment),
        "commit": commit_name(first.environment),
        "samples": sum(len(record.samples_ms) for record in measured),
        "processes": len(timed(measured)) or len(group),
        "throttled": sum(sum(map(bool, record.throttled)) for record in measured),
        "stop": ", ".join(dict.fromkeys(record.stop for record in measured if record.stop)),
        "started_at": min((record.started_at for record in group if record.started_at), default=""),
    }
    row[FLAGS] = ", ".join([*([CACHE_FULL] if is_cache_full(first.case, found) else []), *case_flags(group)])
    return row | {NOTES: "; ".join(dict.fromkeys(_notes(group, found, row)))}


def _statistics(measured: Sequence[Record], group: Sequence[Record]) -> dict[str, Any]:
    memory = [each.peak_memory_bytes for each in measured or group if each.peak_memory_bytes is not None]
    values: dict[str, Any] = dict.fromkeys(STATISTIC_COLUMNS, math.nan)
    values["peak_memory_gb"] = max(memory) / 1e9 if memory else math.nan
    measured = timed(measured)
    if not measured:
        return values
    latency, low, high = pooled_interval([record.samples_ms for record in measured])
    values |= {"latency_ms": latency, "latency_ms_low": low, "latency_ms_high": high}
    if latency > 0 and len(measured) > 1:
        medians = [median(record.samples_ms) for record in measured]
        values["process_spread"] = (max(medians) - min(medians)) / latency
    if latency > 0 and all(record.tokens for record in measured):
        # Per process, because processes of an engine may run different numbers of sequences concurrently.
        ms_per_token = median(median(record.samples_ms) / record.tokens for record in measured)
        values |= {"us_per_token": ms_per_token * 1e3, "tokens_per_s": 1e3 / ms_per_token}
    return values


def _computed(case: Case, row: Mapping[str, Any], peak_tflops: float) -> dict[str, float]:
    named = re.fullmatch(r"(\d+(?:\.\d+)?)([mb])", row["size"])
    latency_ms, is_model = positive(row["latency_ms"]), case.option("scope", "model") == "model"
    return {
        "model_size": float(named[1]) * {"m": 1, "b": 1000}[named[2]] if named else math.nan,
        "tokens_per_s_each": 1e3 / latency_ms if is_model and case.phase == "generate" else math.nan,
        "flops_per_token": row["tflops"] * 1e12 / row["tokens_per_s"],
        "flops_share": row["tflops"] / positive(peak_tflops) if is_model else math.nan,  # model FLOPs utilization
        "tokens_per_j": 1 / positive(known(row.get("energy_j_per_token"))),
    }


def _notes(group: Sequence[Record], metrics: Mapping[str, float | None], row: Mapping[str, Any]) -> Iterator[str]:
    for record in group:
        yield from (record.settings[name] for name in NOTED_SETTINGS if name in record.settings)
    case = group[0].case
    replayed = any(record.settings.get("prompt") == REPLAYED for record in group)
    if replayed or (case.phase, case.timing, case.option("scope", "model")) == ("forward", "graph", "model"):
        yield "the prompt is replayed from a CUDA graph"
    if case.timing == "engine":
        yield "timed by the engine itself"
    if is_cache_full(case, metrics):
        yield f"{metrics['sequences_at_once']:.0f} of {case.batch} sequences ran concurrently: no more fit"
    for record in group:
        prompt = record.settings.get("prompt_tokens", "")
        if prompt not in ("", "0", str(case.context)):  # 0: a recurrent model's initial state
            yield f"the prompt had {prompt} tokens, not {case.context}"
    earlier = [each for record in group for each in record.earlier if each.status not in NOT_RUN]
    if earlier:
        results = (f"{median(each.samples_ms):.4g} ms" if each.samples_ms else each.status for each in earlier)
        yield f"measured again; earlier: {', '.join(results)}"
    if row["status"] == "ok":
        yield from _quality_notes(group, metrics, row)


def _quality_notes(
    group: Sequence[Record], metrics: Mapping[str, float | None], row: Mapping[str, Any]
) -> Iterator[str]:
    flags = flags_in(row[FLAGS])
    if FEW_SAMPLES in flags:
        processes = f" in {row['processes']} processes" if row["processes"] > 1 else ""
        yield f"only {counted(row['samples'], 'sample')}{processes}: the bar is their range, not a 95% interval"
    if UNSTEADY in flags:
        samples = [sample for record in group for sample in record.samples_ms]
        yield f"unsteady: samples from {min(samples):.4g} to {max(samples):.4g} ms"
    for name, flag in UNSTEADY_TIMES.items():
        if flag in flags:
            yield f"{flag}: 95% interval from {metrics[f'{name}_low']:.4g} to {metrics[f'{name}_high']:.4g} ms"
    if row["throttled"]:
        yield f"{row['throttled']} of {row['samples']} samples throttled"
    yield from (load_note(record.environment) for record in timed(group) if is_loaded(record.environment))
    yield from (heat_note(record.environment) for record in timed(group) if is_hot(record.environment))
    for record in group:
        if record.status != "ok":
            yield f"process {record.repeat + 1} of {len(group)}: {record.status}: {record.reason}"
        elif record.check is None:
            yield "not compared with a reference"
        elif record.check.get("unchecked"):
            yield str(record.check["unchecked"])


def is_cache_full(case: Case, metrics: Mapping[str, float | None]) -> bool:
    """Return whether fewer sequences than the batch ran concurrently; False for "forward"."""
    return case.phase != "forward" and (metrics.get("sequences_at_once") or case.batch) < case.batch
