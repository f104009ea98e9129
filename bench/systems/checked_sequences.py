"""Choose the timed sequences that are compared with the reference."""

from collections.abc import Callable
from random import Random
from typing import Any

from harness.measure.correctness import Check, Checks

# Most compared tokens in all sequences together: the reference takes 2 s for them at 1.3B on one H100.
CHECKED_TOKENS = 16384
CHECKED_SEQUENCES = 4
LONGEST_CHECKED = 65536  # longest compared prompt: a million tokens would take minutes


def drawn(rng: Random, batch: int, tokens: int, most: int = CHECKED_TOKENS) -> list[int]:
    """Draw random sequences of a batch; return their sorted indices.

    batch: number of sequences. tokens: tokens per sequence.
    Draws up to CHECKED_SEQUENCES sequences with at most `most` tokens in total, but at least one sequence.
    """
    count = max(1, min(batch, CHECKED_SEQUENCES, most // max(1, tokens)))
    return sorted(rng.sample(range(batch), count))


def not_compared(tokens: int, most: int) -> Callable[[Any, int], Checks]:
    """Return a check that compares nothing, with the note that prompts exceed `most` tokens."""
    words = f"the outputs of prompts of {tokens} tokens were not checked: the reference reads at most {most} tokens"
    return lambda outputs, calls: Checks([], words)


def named(prefix: str, checked: Checks) -> Checks:
    checks = [Check.at_most(f"{prefix}{each.name}", each.value, each.limit) for each in checked.checks]
    return Checks(checks, checked.unchecked)
