"""Compare outputs with a reference: distances and their limits."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_CHUNK = 1 << 24  # elements compared at once in float64: 128 MB


@dataclass(frozen=True)
class Check:
    """A measured value, its limit, and whether the check passed."""

    name: str
    value: float
    limit: float
    passed: bool

    @classmethod
    def at_most(cls, name: str, value: float, limit: float) -> "Check":
        """Return a check that passes if value <= limit; NaN fails."""
        return cls(name, float(value), float(limit), bool(value <= limit))


@dataclass(frozen=True)
class Checks:
    """A case's checks, and why others were omitted."""

    checks: Sequence[Check]
    unchecked: str = ""  # the reasons for omitted checks, joined by "; "

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    def __add__(self, other: "Checks") -> "Checks":
        unchecked = dict.fromkeys(filter(None, (self.unchecked, other.unchecked)))
        return Checks([*self.checks, *other.checks], "; ".join(unchecked))

    @property
    def reason(self) -> str:
        """The failed checks with value and limit, or "nothing was checked"; "" if all checks passed."""
        failed = (f"{c.name} is {c.value:.3g}, limit {c.limit:.3g}" for c in self.checks if not c.passed)
        return "; ".join(failed) if self.checks else "nothing was checked"

    def to_dict(self) -> dict[str, Any]:
        unchecked = {"unchecked": self.unchecked} if self.unchecked else {}
        return {"passed": self.passed, "checks": [asdict(c) for c in self.checks]} | unchecked


def relative_error(out: Any, ref: Any) -> float:
    """Return the relative error ||out - ref|| / ||ref|| in the Frobenius norm, in float64.

    out, ref: floating-point tensors; ValueError if their shapes differ.
    If both norms are 0, the error is 0. If a tensor has NaN or infinity, the error is NaN or infinite.
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
    """Return the largest total variation distance between next-token distributions.

    logits, ref: [..., V] for a vocabulary of V tokens; ValueError if the shapes differ.
    The distance at a position, in [0, 1], is half the L1 distance of the two softmax results, in float64.
    """
    _same_shape(logits, ref)
    expected = ref.double().softmax(-1)
    distance = (logits.to(expected).softmax(-1) - expected).abs().sum(-1) / 2
    return float(distance.amax()) if distance.numel() else 0.0


def _same_shape(out: Any, ref: Any) -> None:
    if out.shape != ref.shape:
        raise ValueError(f"outputs of shape {tuple(out.shape)}: the reference has {tuple(ref.shape)}")
