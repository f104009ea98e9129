"""What do the raw samples of each case say? One row for each, whatever the number of processes it ran in."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd

from harness.measure.environment import device_id_of
from harness.measure.interval import FEWEST, median_interval, repeats_interval
from harness.measure.nvml import heat_note, is_hot
from harness.measure.system import REPLAYED
from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.reason import counted, printable
from harness.schema.record import Record
from harness.workers.machine_load import is_loaded, load_note
from reports.commits import commit_said
from reports.fairness import FAIRNESS_METRICS
from reports.fidelity import FIDELITY_METRICS
from reports.profiles.ceilings import common_ceilings
from reports.roofline import RATE_COLUMNS, WORK_METRICS, explanation
from reports.samples import DRIFT, by_case, ends_apart, quartiles_apart, timed

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
# Of a run with repeats: the interval over its processes (`interval.repeats_interval`).
REPEAT_COLUMNS = ("latency_ms_repeats_low", "latency_ms_repeats_high")
SETTING_COLUMNS = ("dtype", "state_dtype", "timing", "l2")
MACHINE_COLUMNS = ("device", "device_id", "commit")
COLUMNS = CASE_COLUMNS + OUTCOME_COLUMNS + STATISTIC_COLUMNS + SETTING_COLUMNS + MACHINE_COLUMNS
SAMPLE_COLUMNS = ("samples", "processes", "throttled", "stop", "started_at")
NOTES, MARKS = "notes", "marks"
_QUARTILES, _ENDS, _RECORDS = "quartiles_apart", "ends_apart", "records"  # of a row, not of the table
# What a point of a figure is marked for, the gravest first.
CACHE_FULL, FEW_SAMPLES, LOADED, HOT = "cache full", "few samples", "loaded machine", "thermal slowdown"
UNSTEADY = "unsteady"
TIMES_OF_A_REQUEST = {"time_to_first_token_ms": "first token", "time_between_tokens_ms": "time between tokens"}
UNSTEADY_TIMES = {name: f"unsteady {said}" for name, said in TIMES_OF_A_REQUEST.items()}
DISTURBED = (LOADED, HOT, UNSTEADY, *UNSTEADY_TIMES.values())  # what another measurement may be without
AMOUNTS = ("state_bytes", "peak_memory_gb")  # columns that no disturbance of a time changes
# Up to which samples agree: half of a median's interval over the median, and how far its quartiles are apart over it.
STEADY = 0.1
# Of each mark its sign in a picture, and what it means there.
SIGNS = (
    (CACHE_FULL, "†", "fewer sequences at once than asked for"),
    (FEW_SAMPLES, "*", f"fewer than {FEWEST} samples"),
    (LOADED, "‡", "others used the machine"),
    (HOT, "¶", "heat slowed the GPU down"),
    (
        UNSTEADY,
        "§",
        f"unsteady: a time is not known to within {STEADY:.0%}, half of its samples lie further apart, or it changed",
    ),
    *((mark, "§", f"unsteady: a time is not known to within {STEADY:.0%}") for mark in UNSTEADY_TIMES.values()),
)
UNTRIED = ("skipped", "unstarted")  # cases that were not tried at all; every other without a result failed
# Settings that a reader must know to compare a latency: they go into the column NOTES.
NOTED_SETTINGS = ("gate_limits", "warning")
# Metrics that show in another form: as a rate, a note, or in a table of their own.
_USED_METRICS = {*WORK_METRICS, *FAIRNESS_METRICS, *FIDELITY_METRICS, "sequences_at_once"}

Place = tuple[str, ...]


def frame(
    records: Iterable[Record], catalogue: Catalogue, ceilings: Mapping[str, Mapping[str, float]] | None = None
) -> pd.DataFrame:
    """One row for each case and each machine and commit that measured it, in the order of the records.

    Columns: `COLUMNS`, then one for each option in use, then `SAMPLE_COLUMNS`, then what any record fills:
    `REPEAT_COLUMNS`, rates, metrics, `NOTES` and `MARKS`. latency_ms is the median of the medians of the processes,
    its interval the 95% interval within a process (below 6 samples its range), process_spread the range of the
    processes' medians over their median, `REPEAT_COLUMNS` the 95% interval over processes
    (`interval.repeats_interval`); processes are those that were timed, or all where none was. What a record does not
    say is NaN, or "" where it is text; an option at its default has the catalogue's. ceilings: `common_ceilings` of all
    of the run, where these are some of its records or it has profiles.
    """
    records = list(records)
    cases = by_case(records)
    groups = [group for case in cases.values() for group in _by_place(case)]
    ceilings = common_ceilings(records) if ceilings is None else ceilings
    memberships = suites_of_cases(catalogue)
    metrics = metric_columns((metric for group in groups for record in group for metric in record.metrics), catalogue)
    rows = [
        _row(group, len(cases[key]), memberships.get(key, ()), metrics, ceilings)
        for group in groups
        for key in [group[0].case.key]
    ]
    table = pd.DataFrame(
        rows, columns=[*COLUMNS, *SAMPLE_COLUMNS, *REPEAT_COLUMNS, *RATE_COLUMNS, *metrics, NOTES, MARKS]
    )
    extra = _options([group[0].case for group in groups], table, catalogue)
    late = (*REPEAT_COLUMNS, *RATE_COLUMNS, *metrics, NOTES, MARKS)
    filled = [name for name in late if table[name].replace("", None).notna().any()]
    # convert_dtypes: registers are whole numbers, also where some records have none
    return pd.concat([table[list(COLUMNS)], extra, table[list(SAMPLE_COLUMNS)], table[filled].convert_dtypes()], axis=1)


def case_statuses(table: pd.DataFrame) -> Counter[str]:
    """How many cases of a frame have which status; one that several machines measured is counted once."""
    columns = [*CASE_COLUMNS[1:], *SETTING_COLUMNS, *option_columns(table)]
    return Counter(table.drop_duplicates(columns)["status"])


def row_keys(records: Iterable[Record]) -> list[str]:
    """The key of the case of each row of `frame`."""
    return [group[0].case.key for case in by_case(records).values() for group in _by_place(case)]


def disturbed(records: Sequence[Record], catalogue: Catalogue) -> set[str]:
    """The keys of the cases with a row that is marked as `DISTURBED`."""
    rows = frame(records, catalogue)
    if MARKS not in rows:  # a column of a table in which something is marked
        return set()
    cells = zip(row_keys(records), rows[MARKS], strict=True)
    return {key for key, cell in cells if any(mark in DISTURBED for mark in marks_in(cell))}


def marks_in(cell: Any, y: str = "") -> tuple[str, ...]:
    """What a row is marked for, of its cell of `MARKS`; y: only what says something of its value in this column."""
    marks = tuple(cell.split(", ")) if isinstance(cell, str) and cell else ()
    return tuple(mark for mark in marks if not y or mark in marks_of(y))


def marks_of(y: str) -> tuple[str, ...]:
    """The marks that say something of a value in the column `y`."""
    if y in AMOUNTS:
        return (CACHE_FULL,)
    return CACHE_FULL, FEW_SAMPLES, LOADED, HOT, UNSTEADY_TIMES.get(y, UNSTEADY)


def option_columns(table: pd.DataFrame) -> list[str]:
    """The names of the columns of `frame` that hold options."""
    return list(table.columns[len(COLUMNS) : table.columns.get_loc(SAMPLE_COLUMNS[0])])


def metric_columns(recorded: Iterable[str], catalogue: Catalogue) -> list[str]:
    """The metrics to show, those of the catalogue first and in its order."""
    taken = {*COLUMNS, *SAMPLE_COLUMNS, *REPEAT_COLUMNS, *RATE_COLUMNS, NOTES, MARKS}
    found = set(recorded) - taken
    known = [metric.name for metric in catalogue.metrics if metric.name in found]
    return [*known, *sorted(found - {metric.name for metric in catalogue.metrics} - _USED_METRICS)]


def _by_place(repeats: list[Record]) -> list[list[Record]]:
    """The repeats of a case by machine and commit; those without a result join theirs, or the first that has one."""
    places: dict[Place, list[Record]] = {}
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


def _place(record: Record) -> Place:
    environment = record.environment
    return str(environment.get("device") or ""), device_id_of(environment), commit_said(environment)


def suites_of_cases(catalogue: Catalogue) -> dict[str, tuple[str, ...]]:
    """The suites of each case, by its key."""
    found: dict[str, tuple[str, ...]] = {}
    for suite in catalogue.suites:
        for key in suite.cases:
            found[key] = (*found.get(key, ()), printable(suite.name))
    return found


def _options(cases: Sequence[Case], table: pd.DataFrame, catalogue: Catalogue) -> pd.DataFrame:
    """A column for each option in use.

    One at its default is not in a case: it is filled in for a system and backend that has others, or has a case in a
    suite of which a figure has it as an axis. An option that is called like a column of the table gets another name.
    """
    names = list(dict.fromkeys(name for case in cases for name, _ in case.options))
    varied = {(case.system_backend, name) for case in cases for name, _ in case.options}
    axes = {(suite.name, axis) for suite in catalogue.suites for own in suite.figures for axis in (own.x, *own.split)}
    varied |= {
        (case.system_backend, name)
        for case, of in zip(cases, table["suites"], strict=True)
        for name in names
        if _any_in(of, name, axes)
    }
    values = {}
    for name in names:
        default = catalogue.axis(name).default
        column = [case.option(name, default if (case.system_backend, name) in varied else None) for case in cases]
        values[f"option_{name}" if name in table else name] = pd.array(column, dtype=object)
    return pd.DataFrame(values, index=table.index).convert_dtypes()


def _any_in(suites: Iterable[str], name: str, axes: set[tuple[str, str]]) -> bool:
    return any((suite, name) in axes for suite in suites)


def _row(
    group: list[Record],
    records: int,
    suites: tuple[str, ...],
    metrics: Sequence[str],
    ceilings: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """The row of the records of a case from one place; records: how many it has in all."""
    first = group[0]
    measured = [record for record in group if record.status == "ok"]
    found = _merged_metrics(measured or group)
    row: dict[str, Any] = {column: getattr(first.case, column) for column in (*CASE_COLUMNS[1:], *SETTING_COLUMNS)}
    row |= {"suites": suites, "status": first.status, "reason": first.reason, _RECORDS: records}
    row |= _statistics(measured, group)
    row |= {name: math.nan if found.get(name) is None else found[name] for name in metrics}
    common = ceilings[str(first.environment.get("device"))]
    reached = {name: highest for name, highest in common.items() if found.get(name)}
    row |= explanation(first.case, found | reached, row["latency_ms"])
    row |= dict(zip(MACHINE_COLUMNS, _place(first), strict=True))
    row |= {
        "samples": sum(len(record.samples_ms) for record in measured),
        "processes": len(timed(measured)) or len(group),
        "throttled": sum(sum(map(bool, record.throttled)) for record in measured),
        "stop": ", ".join(dict.fromkeys(record.stop for record in measured if record.stop)),
        "started_at": min((record.started_at for record in group if record.started_at), default=""),
    }
    row[NOTES] = "; ".join(dict.fromkeys(_notes(group, found, row)))
    return row | {MARKS: ", ".join(_marks(group, found, row))}


def _merged_metrics(records: Sequence[Record]) -> dict[str, float | None]:
    """Each metric's median over the processes that say it."""
    if len(records) == 1:
        return records[0].metrics
    names = dict.fromkeys(name for record in records for name in record.metrics)
    values = {name: [v for record in records if (v := record.metrics.get(name)) is not None] for name in names}
    return {name: median(known) if known else None for name, known in values.items()}


def _statistics(measured: Sequence[Record], group: Sequence[Record]) -> dict[str, float]:
    """Median latency with its interval, and what follows from it; memory is known even without samples."""
    memory = [each.peak_memory_bytes for each in measured or group if each.peak_memory_bytes is not None]
    values = dict.fromkeys((*STATISTIC_COLUMNS, *REPEAT_COLUMNS), math.nan)
    values["peak_memory_gb"] = max(memory) / 1e9 if memory else math.nan
    measured = timed(measured)
    if not measured:
        return values
    latency, low, high = pooled_interval([record.samples_ms for record in measured])
    values |= {"latency_ms": latency, "latency_ms_low": low, "latency_ms_high": high}
    values[_QUARTILES] = median(quartiles_apart(record.samples_ms) for record in measured)
    values[_ENDS] = median(ends_apart(record.samples_ms) for record in measured)
    if len(measured) > 1 and latency > 0:
        medians = [median(record.samples_ms) for record in measured]
        values["process_spread"] = (max(medians) - min(medians)) / latency
        _, *ends = repeats_interval([record.samples_ms for record in measured])
        values |= dict(zip(REPEAT_COLUMNS, ends, strict=True))
    if latency > 0 and all(record.tokens for record in measured):
        # Of each process, as engines hold unlike numbers of sequences.
        a_token = median(median(record.samples_ms) / record.tokens for record in measured)
        values |= {"us_per_token": a_token * 1e3, "tokens_per_s": 1e3 / a_token if a_token else math.nan}
    return values


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


def _notes(group: Sequence[Record], metrics: Mapping[str, float | None], row: Mapping[str, Any]) -> Iterator[str]:
    """What a reader must know to compare the latency of this row with others."""
    for record in group:
        yield from (record.settings[name] for name in NOTED_SETTINGS if name in record.settings)
    case = group[0].case
    replayed = any(record.settings.get("prompt") == REPLAYED for record in group)
    if replayed or (case.phase, case.timing, case.option("scope", "model")) == ("forward", "graph", "model"):
        yield "the prefill is replayed from a CUDA graph"
    if case.timing == "engine":
        yield "timed by the engine itself"
    if is_cache_full(case, metrics):
        yield f"{metrics['sequences_at_once']:.0f} of {case.batch} sequences at once: no more fit"
    for record in group:
        prompt = record.settings.get("prompt_tokens", "")
        if prompt not in ("", "0", str(case.context)):  # 0: a recurrent model's initial state, as the page says
            yield f"read a prompt of {prompt}, not {case.context}"
    before = [earlier for record in group for earlier in record.earlier if earlier.status not in UNTRIED]
    if before:
        yield f"measured again; before: {', '.join(map(_result, before))}"
    if row["status"] == "ok":
        yield from _doubts(group, row)


def _result(record: Record) -> str:
    """The median of a record, or what became of it, in a word."""
    return f"{median(record.samples_ms):.4g} ms" if record.samples_ms else record.status


def _doubts(group: Sequence[Record], row: Mapping[str, Any]) -> Iterator[str]:
    """Why a number may be less than it seems."""
    if 0 < row["samples"] < FEWEST:
        yield f"only {counted(row['samples'], 'sample')}: the bar is their range, no interval"
    if _is_unsteady(row):
        yield from _unsteadiness(group, row)
    if row["throttled"]:
        yield f"{row['throttled']} of {row['samples']} samples under a throttle"
    yield from (load_note(record.environment) for record in timed(group) if is_loaded(record.environment))
    yield from (heat_note(record.environment) for record in timed(group) if is_hot(record.environment))
    for record in group:
        if record.status != "ok":
            yield f"process {record.repeat + 1} of {row[_RECORDS]}: {record.status}: {record.reason}"
        elif record.gate is None:
            yield "compared with no reference"
        elif record.gate.get("unchecked"):
            yield str(record.gate["unchecked"])


def _unsteadiness(group: Sequence[Record], row: Mapping[str, Any]) -> Iterator[str]:
    """What an unsteady point is not known to within `STEADY`."""
    if _is_latency_unsteady(row) and _has_repeats(row):
        apart = f"{row['processes']} processes, {row['process_spread']:.1%} apart,"
        yield f"{apart} do not tell the median to {STEADY:.0%}"
    elif _is_latency_unsteady(row):
        yield f"samples from {min(_samples(group)):.4g} to {max(_samples(group)):.4g} ms: something disturbed them"
    for name, low, high in _unsteady_times(row):
        yield f"{TIMES_OF_A_REQUEST[name]} between {low:.4g} and {high:.4g} ms (95%): something disturbed it"


def _marks(group: Sequence[Record], metrics: Mapping[str, float | None], row: Mapping[str, Any]) -> Iterator[str]:
    if is_cache_full(group[0].case, metrics):
        yield CACHE_FULL
    if row["status"] == "ok" and 0 < row["samples"] < FEWEST:
        yield FEW_SAMPLES
    if row["status"] == "ok" and any(is_loaded(record.environment) for record in timed(group)):
        yield LOADED
    if row["status"] == "ok" and any(is_hot(record.environment) for record in timed(group)):
        yield HOT
    if _is_unsteady(row):
        if _is_latency_unsteady(row):
            yield UNSTEADY
        yield from (UNSTEADY_TIMES[name] for name, *_ in _unsteady_times(row))


def is_cache_full(case: Case, metrics: Mapping[str, float | None]) -> bool:
    """Whether fewer sequences than asked for ran at once; a forward's need not, as each leaves when it is read."""
    return case.phase != "forward" and (metrics.get("sequences_at_once") or case.batch) < case.batch


def _samples(group: Sequence[Record]) -> list[float]:
    return [sample for record in group for sample in record.samples_ms]


def _is_unsteady(row: Mapping[str, Any]) -> bool:
    """Of six samples or more, as fewer have no interval and a mark of their own."""
    known = row["status"] == "ok" and row["samples"] >= FEWEST
    return known and (_is_latency_unsteady(row) or any(_unsteady_times(row)))


def _unsteady_times(row: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """(its column, low, high) of each time of a request whose interval is too wide."""
    for name in TIMES_OF_A_REQUEST:
        low, high = (row.get(f"{name}_{end}", math.nan) for end in ("low", "high"))
        if high - low > 2 * STEADY * row.get(name, math.nan):
            yield name, low, high


def _is_latency_unsteady(row: Mapping[str, Any]) -> bool:
    repeats = _has_repeats(row)
    if repeats and row["processes"] == 2:  # their interval is nine times as far as they are apart
        return row["process_spread"] > STEADY
    low, high = REPEAT_COLUMNS if repeats else ("latency_ms_low", "latency_ms_high")  # what is drawn
    wide = row[high] - row[low] > 2 * STEADY * row["latency_ms"]
    return wide or (not repeats and (row.get(_QUARTILES, 0.0) > STEADY or row.get(_ENDS, 0.0) > DRIFT))


def _has_repeats(row: Mapping[str, Any]) -> bool:
    """Whether its interval is that over processes."""
    return not any(math.isnan(row[name]) for name in REPEAT_COLUMNS)
