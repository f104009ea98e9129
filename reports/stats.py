"""What do the raw samples of each record say?"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from harness.interval import median_interval
from harness.record import Record
from reports.roofline import EXPLANATION_COLUMNS, explanation

CASE_COLUMNS = ("suite", "system", "backend", "size", "phase", "batch", "context")
OUTCOME_COLUMNS = ("status", "reason")
STATISTIC_COLUMNS = (
    "latency_ms",
    "latency_ms_low",
    "latency_ms_high",
    "us_per_token",
    "tokens_per_s",
    "peak_memory_gb",
)
SETTING_COLUMNS = ("dtype", "state_dtype", "timing", "l2")
MACHINE_COLUMNS = ("device", "commit")
COLUMNS = CASE_COLUMNS + OUTCOME_COLUMNS + STATISTIC_COLUMNS + SETTING_COLUMNS + MACHINE_COLUMNS
SAMPLE_COLUMNS = ("samples", "throttled", "stop", "started_at")
NOTES = "notes"
# Settings that a reader must know to compare a latency: they make the column NOTES.
NOTED_SETTINGS = ("launch", "gate_limits", "warning")


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """One row per record, in their order.

    Columns: `COLUMNS`, then one column per option in use, then `SAMPLE_COLUMNS`, then those of
    `EXPLANATION_COLUMNS` and `NOTES` that any record fills. Latencies are in milliseconds (median, and its 95%
    interval or, below 6 samples, range), `us_per_token` in microseconds, `peak_memory_gb` in 10^9 bytes; what a
    record does not say is NaN, or "" where it is text.
    """
    records = list(records)
    rows = [_row(record) for record in records]
    table = pd.DataFrame(rows, columns=[*COLUMNS, *SAMPLE_COLUMNS, *EXPLANATION_COLUMNS, NOTES])
    options = {name: _option_column(name) for record in records for name, _ in record.case.options}
    values = {
        column: pd.array([record.case.option(name, None) for record in records], dtype=object)
        for name, column in options.items()
    }
    extra = pd.DataFrame(values, index=table.index).convert_dtypes()
    filled = [name for name in (*EXPLANATION_COLUMNS, NOTES) if table[name].replace("", None).notna().any()]
    # convert_dtypes: registers are whole numbers, also where some records have none
    explained = table[filled].convert_dtypes()
    return pd.concat([table[list(COLUMNS)], extra, table[list(SAMPLE_COLUMNS)], explained], axis=1)


def option_columns(table: pd.DataFrame) -> list[str]:
    """The names of the columns of `frame` that hold options."""
    return list(table.columns[len(COLUMNS) : table.columns.get_loc(SAMPLE_COLUMNS[0])])


def _row(record: Record) -> dict[str, Any]:
    case = record.case
    row = {column: getattr(case, column) for column in CASE_COLUMNS + SETTING_COLUMNS}
    row |= {"status": record.status, "reason": record.reason}
    row |= _statistics(record)
    row |= explanation(record, row["latency_ms"])
    row |= {column: str(record.environment.get(column) or "") for column in MACHINE_COLUMNS}
    row |= {"samples": len(record.samples_ms), "throttled": sum(map(bool, record.throttled))}
    row[NOTES] = "; ".join(_notes(record))
    return row | {"stop": record.stop, "started_at": record.started_at}


def _notes(record: Record) -> Iterator[str]:
    """What a reader must know to compare the latency of this record with others."""
    yield from (record.settings[name] for name in NOTED_SETTINGS if name in record.settings)
    batch, context = record.case.batch, record.case.context
    at_once = record.metrics.get("sequences_at_once") or batch
    if at_once < batch:
        yield f"{at_once:.0f} of {batch} sequences at once: no more fit"
    prompt = record.settings.get("prompt_tokens", "")
    if prompt not in ("", "0", str(context)):  # 0: a recurrent model's initial state, as the page says of all of them
        yield f"read a prompt of {prompt}, not {context}"


def _statistics(record: Record) -> dict[str, float]:
    """Median latency with its interval, and what follows from it; memory is known even without samples."""
    memory = record.peak_memory_bytes
    values = dict.fromkeys(STATISTIC_COLUMNS, math.nan)
    values["peak_memory_gb"] = math.nan if memory is None else memory / 1e9
    if not record.samples_ms:
        return values
    median, low, high = median_interval(record.samples_ms)
    values |= {"latency_ms": median, "latency_ms_low": low, "latency_ms_high": high}
    if record.tokens and median > 0:
        values |= {"us_per_token": median * 1e3 / record.tokens, "tokens_per_s": record.tokens * 1e3 / median}
    return values


def _option_column(name: str) -> str:
    """An option may be called like a column of ours; it must not overwrite it."""
    return f"option_{name}" if name in (*COLUMNS, *SAMPLE_COLUMNS, *EXPLANATION_COLUMNS, NOTES) else name
