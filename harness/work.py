"""FLOPs and bytes that a piece of work takes at the least, as an adapter counts them for one unit of a case."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.catalogue import FORBID_EXTRA


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
