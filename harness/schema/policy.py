"""Stopping criteria of a case."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

MOST_SAMPLES = 1_000_000


@dataclass(frozen=True, config={"strict": True, "extra": "ignore"})
class Policy:
    """Two stopping criteria, as in NVBench, and a minimum; `measure.timer` holds further constants.

    precision: sampling ends once the 95% interval of the median is within this share of the median.
    budget_s: seconds of sampling, longer while the interval exceeds twice `precision`.
        0 takes `min_samples` and skips the warm-up.
    min_samples: sampling never ends earlier.
    Raises pydantic's ValidationError, a ValueError. Fields of earlier versions are ignored.
    """

    precision: Annotated[float, Field(gt=0, lt=1)] = 0.01
    budget_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0
    min_samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = 1
