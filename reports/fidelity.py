"""Fidelity: the drift of each state precision from the float64 model."""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.schema.record import Record

# Metrics of the table that are not in the catalogue.
FIDELITY_METRICS = ("compared_tokens", "total_variation_first", "total_variation_last")


@dataclass(frozen=True)
class Drift:
    """The distance of next-token probabilities from the float64 model's, after the same tokens.

    Total variation: mean, largest, and mean over the first and last eighth of the tokens.
    argmax_disagreement: the share of tokens whose most probable successor differs. None: not recorded.
    """

    system: str
    backend: str
    state_dtype: str
    dtype: str
    size: str
    sequences: int
    tokens: int | None
    mean: float | None
    largest: float | None
    first: float | None
    last: float | None
    argmax_disagreement: float | None


def fidelity(records: Iterable[Record]) -> list[Drift]:
    """The compared cases in order; the last record of each counts."""
    compared = {record.case: _drift(record) for record in records if "total_variation_mean" in record.metrics}
    return list(compared.values())


def _drift(record: Record) -> Drift:
    case, metrics = record.case, record.metrics
    tokens = metrics.get("compared_tokens")
    return Drift(
        case.system,
        case.backend,
        case.state_dtype or case.dtype,
        case.dtype,
        case.size,
        case.batch,
        None if tokens is None else int(tokens),
        metrics["total_variation_mean"],
        metrics.get("total_variation_max"),
        metrics.get("total_variation_first"),
        metrics.get("total_variation_last"),
        metrics.get("argmax_disagreement"),
    )
