"""Compare outputs with those of a reference: distances, the limits they must keep, and the verdict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_CHUNK = 1 << 24  # elements compared at a time in float64: 128 MB, however large the outputs


@dataclass(frozen=True)
class Check:
    """One distance, the limit it must keep, and whether it does."""

    name: str
    value: float
    limit: float
    passed: bool

    @classmethod
    def at_most(cls, name: str, value: float, limit: float) -> "Check":
        """Passes where value <= limit; NaN never does."""
        return cls(name, float(value), float(limit), bool(value <= limit))


@dataclass(frozen=True)
class Verdict:
    """Every check of one case. A verdict without checks has shown nothing, so it is not passed.

    unchecked: what could not be compared, in words; "" where everything was that the case asks for.
    """

    checks: Sequence[Check]
    unchecked: str = ""

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    def __add__(self, other: "Verdict") -> "Verdict":
        """The checks of both, and what neither could compare."""
        unchecked = dict.fromkeys(filter(None, (self.unchecked, other.unchecked)))
        return Verdict([*self.checks, *other.checks], "; ".join(unchecked))

    @property
    def reason(self) -> str:
        """Which checks are missed, by how much; "" where all pass."""
        if not self.checks:
            return "the gate checked nothing"
        missed = [f"{c.name} is {c.value:.3g}, limit {c.limit:.3g}" for c in self.checks if not c.passed]
        return "; ".join(missed)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; a distance that is not finite becomes None."""
        values = {"passed": self.passed, "checks": [_check_dict(check) for check in self.checks]}
        return values | ({"unchecked": self.unchecked} if self.unchecked else {})


def _check_dict(check: Check) -> dict[str, Any]:
    value = check.value if math.isfinite(check.value) else None
    return {"name": check.name, "value": value, "limit": check.limit, "passed": check.passed}


def relative_error(out: Any, ref: Any) -> float:
    """||out - ref|| / ||ref|| in the Frobenius norm, accumulated in float64.

    out, ref: tensors of one shape, any floating type and device. NaN or infinity in either gives NaN or infinity.
    Raises ValueError where the shapes differ.
    """
    _same_shape(out, ref)
    error = size = 0.0
    for a, b in zip(out.reshape(-1).split(_CHUNK), ref.reshape(-1).split(_CHUNK), strict=True):
        expected = b.double()
        error += float((a.to(expected) - expected).square().sum())
        size += float(expected.square().sum())
    if size == 0:
        return 0.0 if error == 0 else math.inf if error > 0 else math.nan
    return math.sqrt(error) / math.sqrt(size) if math.isfinite(size) else math.nan


def total_variation(logits: Any, ref: Any) -> float:
    """Half the L1 distance of the next-token probabilities, of the row where it is largest; within [0, 1].

    logits, ref: [..., V]; the softmax is taken in float64. Raises ValueError where the shapes differ.
    """
    _same_shape(logits, ref)
    expected = ref.double().softmax(-1)
    distance = (logits.to(expected).softmax(-1) - expected).abs().sum(-1) / 2
    return float(distance.amax()) if distance.numel() else 0.0


def _same_shape(out: Any, ref: Any) -> None:
    if out.shape != ref.shape:
        raise ValueError(f"outputs of shape {tuple(out.shape)}: the reference has {tuple(ref.shape)}")
