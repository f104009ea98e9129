"""The portable forward kernels match the reference on packed sequences of different lengths."""

from dataclasses import replace

import packed_cases
import pytest
import torch

from tests.interpreter import DEVICE, INTERPRETED
from tk_kernels.forward.operator import forward_packed
from tk_kernels.packed import Packed
from tk_kernels.ttt_linear.generate import GenerateState
from tk_kernels.ttt_linear.reference import init_state

pytestmark = pytest.mark.usefixtures("triton_kernels", "poisoned")
# float32 tokens run in Triton's interpreter only
precisions = pytest.mark.parametrize("precision", ["float32", "planes"] if INTERPRETED else ["planes"])


@precisions
@pytest.mark.parametrize(
    ("name", "head_dim", "mini_batch"),
    [("linear", 64, 16), ("linear", 96, 5), ("mlp", 64, 16), ("mlp", 96, 32)],
)
def test_sequences_of_different_lengths(name, head_dim, mini_batch, precision):
    packed_cases.check(name, head_dim, mini_batch, precision)


def test_chunks_of_sequences():
    ends = torch.tensor([0, 0, 17, 17, 18, 50, 50], dtype=torch.int32)
    sequences = Packed(ends, torch.zeros(6, dtype=torch.int32), torch.arange(6), 50)
    found = [(s, first) for s, first in sequences.chunks.tolist() if first < ends[s + 1] - ends[s]]
    assert found == [(1, 0), (1, 16), (3, 0), (4, 0), (4, 16)]


def test_positions_of_tokens():
    ends, start = torch.tensor([0, 2, 2, 5], dtype=torch.int32), torch.tensor([7, 9, 0], dtype=torch.int32)
    assert Packed(ends, start, torch.arange(3), 5).positions.tolist() == [7, 8, 0, 1, 2]


def test_unsupported_arguments_are_named():
    W, b = torch.zeros(1, 64, 64, device=DEVICE), torch.zeros(1, 1, 64, device=DEVICE)
    state = GenerateState.from_state(init_state(W, b, batch=1))
    ends = torch.tensor([0, 3], dtype=torch.int32, device=DEVICE)
    sequences = Packed(ends, ends[:1], ends[:1].long(), 3)
    tokens = [*torch.zeros(3, 3, 1, 64, dtype=torch.bfloat16, device=DEVICE), torch.zeros(3, 1, device=DEVICE)]
    outer = torch.ones(16, device=DEVICE), torch.ones(1, 64, device=DEVICE), torch.zeros(1, 64, device=DEVICE)

    def rejects(message, tokens=tokens, outer=outer, state=state, sequences=sequences):
        with pytest.raises(ValueError, match=message):
            forward_packed(lambda *_: pytest.fail("launched"), tokens, outer, (W, b[:, 0]), state, sequences)

    rejects(r"^q.dtype is torch.float32: supported are torch.bfloat16$", [x.float() for x in tokens])
    rejects(r"^q has shape \(2, 1, 64\): expected \(3, 1, 64\)$", [x[:2] for x in tokens])
    rejects(r"^q.shape\[-1\], the head dimension, is 32: supported are 64, 96, 128$", [x[..., :32] for x in tokens])
    rejects(r"^state.mini_batch is 16: supported are 8$", outer=(outer[0][:8], *outer[1:]))
    rejects(r"^state.form is 'primal': supported are 'dual'$", state=replace(state, form="primal"))
    W, low, bias = state.layers[0]
    rejects(r"^a layer's width is 32: supported are 64, 256$", state=replace(state, layers=((W, low, bias[..., :32]),)))
    elsewhere = replace(sequences, slots=sequences.slots.to("meta"))
    rejects(r"^slots is on meta: q is on (cpu|cuda:0)$", sequences=elsewhere)
    rejects(r"^ln_bias is on meta: q is on (cpu|cuda:0)$", outer=(*outer[:2], outer[2].to("meta")))
