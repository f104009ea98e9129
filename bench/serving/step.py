"""Split the requests of a vLLM step into runs that one call of the model takes. Imports neither torch nor vLLM."""

from collections.abc import Sequence
from typing import Any, NamedTuple

MOST_SEQUENCES = 64  # of a run: their states are in float32 during forward


class PromptRun(NamedTuple):
    """Consecutive prompts that forward takes as one batch [requests, length]."""

    first: int  # number of the first request among the step's prompts
    requests: int
    token: int  # where its tokens begin among the step's
    length: int  # tokens of each request
    start: int  # their position in the mini-batch
    fresh: bool  # whether they begin here, so that no state is read


class Step(NamedTuple):
    """A step's tokens: first one of every generating request, then those of the runs.

    slots [D], positions [D]: where the generating requests keep their state, and how far they are in the mini-batch.
    prompt_slots [P]: the slots of the prompts.
    """

    slots: Any
    positions: Any
    runs: Sequence[PromptRun]
    prompt_slots: Any


def prompt_runs(lengths: Sequence[int], computed: Sequence[int], token: int, mini_batch: int) -> list[PromptRun]:
    """Runs of prompts with `lengths` tokens in this step after `computed` in earlier ones.

    token: where the first prompt's tokens begin. A prompt without tokens is left out.
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
