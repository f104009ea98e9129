"""FLOPs and bytes that a piece of work takes at the least, as an adapter counts them for one unit of a case, by part.

How long they take at the least is told by the rates that the same process measured: `product_tflops` of a large
product, and `copy_gbs` of a copy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.schema.catalogue import FORBID_EXTRA

# The parts of a case's work: matrix products, TTT's inner loop, attention or a scan, what stands between them, the
# head, and the rest.
PRODUCTS, TTT, SCAN, EDGES, HEAD, OTHER = "products", "ttt", "scan", "edges", "head", "other"


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes of one unit; a multiply-add is two FLOPs. Raises ValueError for what no work can have."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    flops: float
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
        """As a record has them."""
        return {"flops": self.flops, "bytes": self.bytes}


def needed_ms(flops: float | None, moved: float | None, ceilings: Mapping[str, float | None]) -> tuple[float, float]:
    """How long FLOPs take at `product_tflops`, and bytes at `copy_gbs`; NaN for what is not known."""
    computing_ms = known(flops) / (positive(known(ceilings.get("product_tflops"))) * 1e9)
    moving_ms = known(moved) / (positive(known(ceilings.get("copy_gbs"))) * 1e6)
    return computing_ms, moving_ms


def floor_ms(flops: float | None, moved: float | None, ceilings: Mapping[str, float | None]) -> float | None:
    """The longer of the two times, or the one that is known; None where neither is."""
    found = [each for each in needed_ms(flops, moved, ceilings) if not math.isnan(each)]
    return max(found, default=None)


def known(value: float | None) -> float:
    """NaN for what is not known, and for what is no number that a record could hold."""
    return float(value) if value is not None and math.isfinite(value) else math.nan


def positive(value: float) -> float:
    """What may be divided by; NaN for the rest."""
    return value if value > 0 else math.nan
