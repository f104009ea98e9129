"""When a case stops sampling."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

MOST_SAMPLES = 1_000_000  # that a case may ask for


@dataclass(frozen=True, config={"strict": True, "extra": "ignore"})
class Policy:
    """Stopping criteria, as NVBench has them. `measure.timer` holds the constants behind them.

    precision: sampling ends once the 95% interval of the median lies within this share of the median.
    budget_s: seconds of sampling after which it ends anyway, except where the interval is twice as wide as
        `precision`; 0 takes `min_samples` and skips warm-up.
    min_samples: sampling never ends earlier.
    Raises pydantic's ValidationError, a ValueError. Fields of earlier versions are ignored.
    """

    precision: Annotated[float, Field(gt=0, lt=1)] = 0.01
    budget_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0
    min_samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = 1
