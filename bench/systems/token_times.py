"""Times at which a request's tokens reach the host, and the TTFT and ITL that follow."""

import time
from collections.abc import Sequence
from statistics import fmean, median, quantiles

import torch

from harness.measure.interval import median_interval

TIMED_REQUESTS = 64  # calls whose times are kept
TTFT_LIMIT_MS, ITL_LIMIT_MS = 500.0, 50.0  # of goodput: a request's TTFT and mean ITL


def metrics(calls: Sequence[Sequence[tuple[float, Sequence[float]]]]) -> dict[str, float | None]:
    """TTFT and ITL of requests, given per call as (TTFT, ITLs) in ms.

    TTFT: median over the requests of a call. ITL: median of the requests' means.
    Both: median over the calls, with its 95% interval.
    """
    if not calls:
        return {}
    found: dict[str, float | None] = {}
    for name, of_calls in (
        ("time_to_first_token_ms", [median(first for first, _ in requests) for requests in calls]),
        ("time_between_tokens_ms", [median(fmean(steps) for _, steps in requests) for requests in calls]),
    ):
        found[name], found[f"{name}_low"], found[f"{name}_high"] = median_interval(of_calls)
    return found


def percentiles(steps_ms: Sequence[float]) -> dict[str, float | None]:
    """Median, 99th percentile and largest over mean of inter-token latencies."""
    worst = max(steps_ms) / fmean(steps_ms)
    return {"itl_p50_ms": median(steps_ms), "itl_p99_ms": _p99(steps_ms), "itl_worst_over_mean": worst}


def of_arrivals(requests: Sequence[tuple[float, Sequence[float]]], seconds: float) -> dict[str, float | None]:
    """Percentiles of ITL and TTFT, and the goodput: requests per second within both limits.

    requests: (TTFT, ITLs) in ms. seconds: from the first arrival to the last token, of all batches together.
    """
    good = sum(first <= TTFT_LIMIT_MS and fmean(steps) <= ITL_LIMIT_MS for first, steps in requests)
    first = _p99([first for first, _ in requests])
    every = [step for _, steps in requests for step in steps]
    return percentiles(every) | {"ttft_p99_ms": first, "goodput": good / seconds}


def _p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


class TokensOnHost:
    """Tokens [count, batch] of a request on the host, and when they arrived."""

    def __init__(self, count: int, batch: int, on_gpu: bool) -> None:
        self.tokens = torch.empty(count, batch, dtype=torch.long, pin_memory=on_gpu)
        self._events = [torch.cuda.Event() for _ in range(count)] if on_gpu else []
        self._at = [0.0] * count  # on a CPU

    def send(self, place: int, tokens: torch.Tensor) -> None:
        """Enqueue the copy of a step's tokens."""
        self.tokens[place].copy_(tokens, non_blocking=True)
        if self._events:
            self._events[place].record()
        else:
            self._at[place] = now()

    def arrived(self, place: int) -> float:
        """Wait for a step's tokens and return their time on the clock of `now`."""
        if not self._events:
            return self._at[place]
        self._events[place].synchronize()
        return now()


def now() -> float:
    """Seconds of the host's clock."""
    return time.perf_counter()
