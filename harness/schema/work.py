"""Least FLOPs and bytes of a case, and its roofline bound from measured peaks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from harness.schema.case import Stored

PEAKS = ("copy_gbs", "product_tflops")  # metrics: a GPU's measured copy bandwidth (GB/s) and GEMM rate (TFLOP/s)
# Parts of a case: GEMMs, TTT's inner loop, attention or a scan, convolutions and norms, the LM head, and the rest.
PRODUCTS, TTT, SCAN, EDGES, HEAD, OTHER = "products", "ttt", "scan", "edges", "head", "other"


@dataclass(frozen=True)
class Work(Stored):
    """FLOPs and bytes per unit of work; ValueError unless both are finite and at least 0."""

    flops: float  # a multiply-add counts as two
    bytes: float

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) and value >= 0 for value in (self.flops, self.bytes)):
            raise ValueError(
                f"work of {self.flops:g} FLOPs and {self.bytes:g} bytes: both must be finite and at least 0"
            )

    def __add__(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: int) -> "Work":
        return Work(self.flops * times, self.bytes * times)

    def metrics(self) -> dict[str, float | None]:
        return {"flops": self.flops, "bytes": self.bytes}


def needed_ms(flops: float | None, moved: float | None, peaks: Mapping[str, float | None]) -> tuple[float, float]:
    """Return (ms for `flops`, ms for `moved` bytes) at the measured peaks, each NaN if unknown.

    peaks: the measured peaks `product_tflops` (10^12 FLOPs/s) and `copy_gbs` (10^9 bytes/s).
    """
    computing_ms = known(flops) / (positive(known(peaks.get("product_tflops"))) * 1e9)
    moving_ms = known(moved) / (positive(known(peaks.get("copy_gbs"))) * 1e6)
    return computing_ms, moving_ms


def lower_bound_ms(flops: float | None, moved: float | None, peaks: Mapping[str, float | None]) -> float | None:
    """Return the roofline bound in ms: the longer of the times for `flops` and `moved` bytes.

    peaks: the measured peaks `product_tflops` (10^12 FLOPs/s) and `copy_gbs` (10^9 bytes/s).
    If one time is unknown, the bound is the other; if both are, None.
    """
    found = [each for each in needed_ms(flops, moved, peaks) if not math.isnan(each)]
    return max(found, default=None)


def known(value: float | None) -> float:
    """Return the value as a float; NaN for None and infinity."""
    return float(value) if value is not None and math.isfinite(value) else math.nan


def positive(value: float) -> float:
    """Return the value if it is above 0, otherwise NaN."""
    return value if value > 0 else math.nan
