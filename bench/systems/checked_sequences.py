"""Choose the timed sequences that are compared with the reference."""

from collections.abc import Callable
from random import Random
from typing import Any

from harness.measure.correctness import Check, Checks

CHECKED_TOKENS = 16384  # maximum over all compared sequences, if there are several
CHECKED_SEQUENCES = 4
LONGEST_CHECKED = 65536  # maximum of compared tokens per sequence; for more, the reference would take minutes


def draw_sequences(rng: Random, batch: int, tokens: int, most: int = CHECKED_TOKENS) -> list[int]:
    """Draw random sequences of a batch; return their sorted indices.

    batch: number of sequences. tokens: tokens per sequence.
    Draws up to CHECKED_SEQUENCES sequences with at most `most` tokens in total, but at least one sequence.
    """
    count = max(1, min(batch, CHECKED_SEQUENCES, most // max(1, tokens)))
    return sorted(rng.sample(range(batch), count))


def not_compared(tokens: int, most: int) -> Callable[[Any, int], Checks]:
    """Return a check that compares nothing; its note names the limit of `most` tokens per sequence."""
    note = f"timed outputs not checked: {tokens} tokens per sequence, and the reference runs at most {most}"
    return lambda outputs, calls: Checks([], note)


def with_prefix(prefix: str, checked: Checks) -> Checks:
    """Return the same checks, with `prefix` before each name."""
    checks = [Check.at_most(f"{prefix}{each.name}", each.value, each.limit) for each in checked.checks]
    return Checks(checks, checked.unchecked)
