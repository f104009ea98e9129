"""When to stop sampling a case."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config={"strict": True, "extra": "ignore"})
class Policy:
    """When to stop sampling: at a precise median or after a time, as in NVBench.

    precision: largest distance between the median and an end of its 95% interval, as a share of the median.
    budget_s: seconds of sampling. On a GPU with warm L2, budgets below 1 s are raised to 1 s, except for engines.
        `timer.stop_reason` extends a budget above 0 while that interval is too wide. If the budget stays 0, only
        `min_samples` samples are taken, except that an engine finishes its batch.
    min_samples: fewest samples, taken even if the budget is over.
    Raises ValueError for an invalid field and ignores unknown fields, such as those of earlier versions.
    """

    precision: Annotated[float, Field(gt=0, lt=1)] = 0.01
    budget_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0
    min_samples: Annotated[int, Field(ge=1)] = 1
