"""A timed generate kernel runs equally often at every position in the mini-batch, and its steps are checked."""

from collections import Counter
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
import torch

from bench.models.config import model_config
from bench.systems.ttt.kernel_layer import GenerateSet, Steps, staggered
from bench.systems.ttt.layer import layer_inputs


def one_set(mini_batch=16):
    seen = []

    def generate_step(token, outer, state, out, launch):
        seen.append(int(state.position[0]))
        state.position.add_(1).remainder_(mini_batch)

    state = SimpleNamespace(position=torch.full((2,), 5))
    tokens = [torch.arange(mini_batch)]
    return GenerateSet(
        SimpleNamespace(generate_step=generate_step), state, [torch.zeros(1)], tokens, torch.zeros(mini_batch)
    ), seen


@pytest.mark.parametrize(
    ("at_least", "made", "mini_batch"),
    [
        *((1, 1, 16), (2, 2, 16), (3, 4, 16), (9, 16, 16), (16, 16, 16), (17, 32, 16), (161, 176, 16)),
        *((1, 1, 32), (3, 4, 32), (17, 32, 32), (33, 64, 32)),
        *((2, 2, 6), (4, 6, 6), (7, 12, 6), (9, 12, 12)),
    ],
)
def test_a_run_takes_every_position_equally_often(at_least, made, mini_batch):
    first, seen = one_set(mini_batch)
    sets = staggered(first, at_least)
    assert len(sets) == made
    for _ in range(2):
        seen.clear()
        for step in range(max(1, mini_batch // made)):
            for some in sets:
                some.advance(step)
        assert set(Counter(seen).values()) == {max(1, made // mini_batch)}
        assert len(set(seen)) == mini_batch


def test_sets_share_no_memory_that_the_kernels_write_or_read_per_sequence():
    sets = Steps(staggered(one_set()[0], 4), SimpleNamespace(mini_batch=16), "float32").sets
    assert len({some.state.position.data_ptr() for some in sets}) == 4
    assert len({some.tokens[0][0].data_ptr() for some in sets}) == 4
    assert len({some.out.data_ptr() for some in sets}) == 4


@pytest.mark.parametrize(
    ("form", "precision", "dtype", "mini_batch", "stale"),
    [
        ("dual", "planes", "bfloat16", 8, False),
        ("dual", "bfloat16", "bfloat16", 16, False),
        ("primal", "float32", "float32", 8, False),
        ("primal", "float32", "float32", 8, True),
    ],
)
def test_steps_are_compared_from_the_state_they_start_in_over_several_calls(
    triton_kernels, form, precision, dtype, mini_batch, stale
):
    generate, calls = pytest.importorskip("tk_kernels.ttt_linear.generate"), 2
    config = replace(model_config("ttt-linear", "tiny"), width=64, heads=1, mini_batch=mini_batch)
    inputs = layer_inputs(config, 2, mini_batch, getattr(torch, dtype))
    work = Steps(staggered(GenerateSet.of(generate, inputs, form, precision), 4), config, dtype)
    assert all(each.tensor.shape[each.batch_axis] == 2 for each in work.inputs().values())
    compare = work.timed_check(Random(1))
    for _ in range(calls):
        out = work.run()
        if stale:
            for some in work.sets:
                some.state.layers[0][0].mul_(1.1)
    assert compare(out, 10**6).unchecked
    assert compare(out, calls).passed is not stale
