"""When a case stops warming up and when it stops sampling."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Policy:
    """When to stop warming up and when to stop sampling.

    Sampling ends once the `confidence` interval of the median lies within `interval` of it (from `interval_samples`
    and, as clocks swing, from `interval_s` or the budget on), at `max_samples`, or when `budget_s` is spent; never
    before `min_samples`. Where the budget ends and that interval is not even within `doubtful` of the median, something
    disturbs the samples: they are taken until it is, for at most `patience` times the budget, or `LONGEST_WAIT_S` more;
    of samples so long that this ends with `min_samples`, half as many again, as of six one alone widens the interval.
    Warm-up lasts `warmup_s`, or for as long as the clock's device needs (`wakes_s`; `settles_s` where it is throttled
    meanwhile) but for no more than `settle_max_s` of that, then until two successive windows of samples agree within
    `steady`; a single run that takes all of that time is enough. It is over after `warmup_max_s` whatever is missing.
    Raises ValueError where a value cannot be.
    """

    min_samples: int = 1
    interval_samples: int = 20
    interval_s: float = 0.5
    max_samples: int = 1000
    budget_s: float = 10.0
    interval: float = 0.01
    doubtful: float = 0.02
    patience: float = 5.0
    confidence: float = 0.95
    warmup_s: float = 0.2
    warmup_max_s: float = 5.0
    steady: float = 0.02
    settle_max_s: float = 20.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ValueError(f"policy: {field.name} is {value!r}, must be a number, at least 0")
        if not 1 <= self.min_samples <= self.max_samples:
            raise ValueError(f"policy: min_samples {self.min_samples}, must be from 1 to {self.max_samples}")
        if not 0 < self.confidence < 1:
            raise ValueError(f"policy: confidence {self.confidence}, must lie between 0 and 1")

    def to_dict(self) -> dict[str, Any]:
        """The policy as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Policy":
        """The policy that `to_dict` wrote; ValueError names an unknown field."""
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"policy: unknown field {min(unknown)!r}")
        return cls(**values)
