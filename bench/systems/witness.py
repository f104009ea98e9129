"""Which of what was timed is compared with the reference."""

from collections.abc import Callable
from random import Random
from typing import Any

from harness.measure.gate import Check, Verdict

# Tokens of the sequences whose timed outputs are compared with the reference: 2 s of it at 1.3B on one H100.
WITNESS_TOKENS = 16384
WITNESS_SEQUENCES = 4
LONGEST_WITNESS = 65536  # of a prompt that is compared: a million tokens would take the reference minutes


def drawn(chance: Random, batch: int, tokens: int, most: int = WITNESS_TOKENS) -> list[int]:
    """A few sequences of the batch, of at most `most` tokens together but at least one."""
    count = max(1, min(batch, WITNESS_SEQUENCES, most // max(1, tokens)))
    return sorted(chance.sample(range(batch), count))


def not_compared(tokens: int, most: int) -> Callable[[Any, int], Verdict]:
    """The judge of prompts that are too long for the reference."""
    words = f"the outputs of prompts of {tokens} tokens were compared with nothing: the reference reads at most {most}"
    return lambda outputs, calls: Verdict([], words)


def timed(verdict: Verdict) -> Verdict:
    """A verdict on what the timed call left, by its name apart from that of the gate."""
    checks = [Check.at_most(f"timed_{each.name}", each.value, each.limit) for each in verdict.checks]
    return Verdict(checks, verdict.unchecked)
