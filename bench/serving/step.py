"""Group the prompts of a vLLM step into runs, one call of the model each. Imports neither torch nor vLLM."""

from collections.abc import Sequence
from typing import Any, NamedTuple

MOST_SEQUENCES = 64  # most prompts of a run, to bound memory: their states are in float32 during forward


class PromptRun(NamedTuple):
    """Consecutive prompts that forward takes as one batch [requests, length]."""

    first: int  # number of the first request among the step's prompts
    requests: int
    token: int  # index among the step's tokens at which the run begins
    length: int  # tokens of each request
    start: int  # position in the mini-batch at which each request's tokens begin
    fresh: bool  # whether the requests begin in this step, so that no state is read


class Step(NamedTuple):
    """The requests of a vLLM step. Its tokens are one for each of D generating requests, then those of the runs.

    slots [D], positions [D]: cache slots of the generating requests, and their positions in the mini-batch.
    prompt_slots [P]: cache slots of the prompts.
    """

    slots: Any
    positions: Any
    runs: Sequence[PromptRun]
    prompt_slots: Any


def prompt_runs(lengths: Sequence[int], computed: Sequence[int], token: int, mini_batch: int) -> list[PromptRun]:
    """Return runs of consecutive prompts that agree in `length`, `start` and `fresh`.

    lengths, computed: each prompt's tokens in this step and in earlier ones. A prompt without tokens is left out.
    token: index among the step's tokens at which the prompts begin.
    """
    runs: list[PromptRun] = []
    for request, (length, before) in enumerate(zip(lengths, computed, strict=True)):
        if not length:
            continue
        run = PromptRun(request, 1, token, length, before % mini_batch, before == 0)
        last = runs[-1] if runs else None
        if last and last.requests < MOST_SEQUENCES and last[3:] == run[3:] and last.first + last.requests == request:
            runs[-1] = last._replace(requests=last.requests + 1)
        else:
            runs.append(run)
        token += length
    return runs
