"""Time tokens as they reach the host: time to first token (TTFT), inter-token latency (ITL)."""

import time
from collections.abc import Sequence
from statistics import fmean, median, quantiles

import torch

from harness.measure.interval import median_interval

TIMED_REQUESTS = 64  # number of latest calls whose times are stored
now = time.perf_counter  # the clock of all times, in seconds
TTFT_LIMIT_MS, ITL_LIMIT_MS = 500.0, 50.0  # goodput counts requests with a TTFT and a mean ITL within these


def metrics(calls: Sequence[Sequence[tuple[float, Sequence[float]]]]) -> dict[str, float | None]:
    """Return TTFT and ITL in ms, as medians over calls with 95% intervals; {} without calls.

    calls: for each call, its requests; a request is (TTFT, list of ITLs) in ms.
    A call's TTFT is the median over its requests; its ITL is the median of the requests' mean ITLs.
    """
    if not calls:
        return {}
    found: dict[str, float | None] = {}
    for name, per_call in (
        ("time_to_first_token_ms", [median(first for first, _ in requests) for requests in calls]),
        ("inter_token_latency_ms", [median(fmean(steps) for _, steps in requests) for requests in calls]),
    ):
        found[name], found[f"{name}_low"], found[f"{name}_high"] = median_interval(per_call)
    return found


def percentiles(steps_ms: Sequence[float]) -> dict[str, float | None]:
    """Return ITLs' median and 99th percentile in ms, and the ratio of maximum to mean."""
    worst = max(steps_ms) / fmean(steps_ms)
    return {"itl_p50_ms": median(steps_ms), "itl_p99_ms": _p99(steps_ms), "itl_worst_over_mean": worst}


def arrival_metrics(requests: Sequence[tuple[float, Sequence[float]]], seconds: float) -> dict[str, float | None]:
    """Return `percentiles` of all ITLs, the 99th percentile of TTFT in ms, and the goodput.

    requests: (TTFT, ITLs) of each request in ms. seconds: from first arrival to last token, summed over batches.
    Goodput: requests per second whose TTFT is within TTFT_LIMIT_MS and whose mean ITL is within ITL_LIMIT_MS.
    """
    good = sum(first <= TTFT_LIMIT_MS and fmean(steps) <= ITL_LIMIT_MS for first, steps in requests)
    first = _p99([first for first, _ in requests])
    every = [step for _, steps in requests for step in steps]
    return percentiles(every) | {"ttft_p99_ms": first, "goodput": good / seconds}


def _p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


class TokensOnHost:
    """Host buffer for tokens [count, batch] from the GPU; times the arrival of each row."""

    def __init__(self, count: int, batch: int, on_gpu: bool) -> None:
        self.tokens = torch.empty(count, batch, dtype=torch.long, pin_memory=on_gpu)
        self._events = [torch.cuda.Event() for _ in range(count)] if on_gpu else []
        self._at = [0.0] * count  # arrival times on a CPU, which has no events

    def send(self, row: int, tokens: torch.Tensor) -> None:
        self.tokens[row].copy_(tokens, non_blocking=True)
        if self._events:
            self._events[row].record()
        else:
            self._at[row] = now()

    def arrived(self, row: int) -> float:
        """Wait until row `row` is on the host; return its arrival in seconds on the clock of `now`."""
        if not self._events:
            return self._at[row]
        self._events[row].synchronize()
        return now()
