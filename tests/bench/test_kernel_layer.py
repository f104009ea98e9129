"""Do the sets of sequences that a generate kernel is measured on stand for a whole mini-batch?"""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from bench.memory import sequences_that_fit
from bench.models.config import model_config, parameter_count
from bench.systems.kernel_layer import GenerateSet, staggered
from bench.systems.language_model import STEPS


def one_set():
    """A set whose step does what the kernels do to the position, and notes where it was."""
    seen = []

    def generate_step(token, outer, state, out):
        seen.append(int(state.position[0]))
        state.position.add_(1).remainder_(STEPS)

    state = SimpleNamespace(position=torch.full((2,), 5))
    tokens = [[torch.tensor([step])] for step in range(STEPS)]
    return GenerateSet(
        SimpleNamespace(generate_step=generate_step), state, [torch.zeros(1)], tokens, torch.zeros(1)
    ), seen


@pytest.mark.parametrize(("at_least", "made"), [(1, 1), (2, 2), (3, 4), (9, 16), (16, 16), (17, 32), (161, 176)])
def test_a_run_takes_every_position_equally_often(at_least, made):
    first, seen = one_set()
    sets = staggered(first, at_least)
    assert len(sets) == made
    for _ in range(2):
        seen.clear()
        for step in range(max(1, STEPS // made)):
            for some in sets:
                some.advance(step)
        assert set(Counter(seen).values()) == {max(1, made // STEPS)}
        assert len(set(seen)) == STEPS


def test_sets_share_no_memory_that_the_kernels_write_or_read_per_sequence():
    sets = staggered(one_set()[0], 4)
    assert len({some.state.position.data_ptr() for some in sets}) == 4
    assert len({some.tokens[0][0].data_ptr() for some in sets}) == 4
    assert len({some.out.data_ptr() for some in sets}) == 4


def test_sequences_fill_what_the_weights_leave():
    config = model_config("ttt-linear", "125m")
    weights = 2 * parameter_count(config)
    a_sequence = config.layers * 1000
    assert sequences_that_fit(config, 1000, "bfloat16", weights + 7 * a_sequence) == 7
    assert sequences_that_fit(config, 1000, "bfloat16", weights + 7 * a_sequence - 1) == 6
    assert sequences_that_fit(config, 1000, "float32", weights + a_sequence) == 0
