"""When the tokens of a request are there, by the host's clock, and what a record says of it."""

import time
from collections.abc import Sequence
from statistics import fmean, median

import torch

from harness.measure.interval import median_interval

TIMED_REQUESTS = 64  # calls whose moments are kept


def metrics(calls: Sequence[Sequence[tuple[float, Sequence[float]]]]) -> dict[str, float | None]:
    """The metrics of the requests of each call, each its ms to the first token and between each two.

    Both are medians over the requests of a call, between tokens of the mean within each, so that the two tell its whole
    time; then medians over the calls with their 95% intervals.
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


class TokensOnHost:
    """The tokens [count, batch] of a request as the host has them, and when it had them."""

    def __init__(self, count: int, batch: int, on_gpu: bool) -> None:
        self.tokens = torch.empty(count, batch, dtype=torch.long, pin_memory=on_gpu)
        self._events = [torch.cuda.Event() for _ in range(count)] if on_gpu else []
        self._at = [0.0] * count  # on a CPU, where they are at once

    def send(self, place: int, tokens: torch.Tensor) -> None:
        """Begin to copy those of a step, behind the work that makes them; nothing waits."""
        self.tokens[place].copy_(tokens, non_blocking=True)
        if self._events:
            self._events[place].record()
        else:
            self._at[place] = now()

    def arrived(self, place: int) -> float:
        """When those of a step were on the host, on the clock of `now`; waits for them."""
        if not self._events:
            return self._at[place]
        self._events[place].synchronize()
        return now()


def now() -> float:
    """Seconds of the host's clock."""
    return time.perf_counter()
