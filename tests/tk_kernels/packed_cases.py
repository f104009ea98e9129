"""Packed sequences of different lengths, compared with the float64 reference of each sequence alone."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.measure.correctness import relative_error
from tests.interpreter import DEVICE
from tests.tk_kernels.forward_prompts import OPS, assert_state
from tests.tk_kernels.generate_cases import GENERATE
from tests.tk_kernels.reference_cases import OPERATORS, case
from tests.tk_kernels.tensors import OUTPUT_ERROR
from tk_kernels.forward.operator import forward_packed
from tk_kernels.packed import Packed
from tk_kernels.reference.token_rows import mapped

# Some sequences are empty or have one token. Starts are 0, inside a mini-batch, or at a later mini-batch's start.
LENGTHS, STARTS = [17, 0, 1, 40, 15, 0, 16, 9], [0, 5, 0, 5, 16, 0, 31, 5]
SLOTS = [5, 8, 2, 7, 0, 4, 3, 6]  # there are nine slots; no sequence has slot 1
# Relative error of a state, by precision: with planes, tokens and rows are bfloat16.
STATE_ERROR = {"float32": OUTPUT_ERROR[torch.float32], "planes": OUTPUT_ERROR[torch.bfloat16]}


def check(name: str, head_dim: int, mini_batch: int, precision: str, device: str = DEVICE) -> None:
    given = case(name, 60, batch=len(LENGTHS), heads=2, head_dim=head_dim, mini_batch=mini_batch)
    pieces = [slice(start, start + length) for start, length in zip(STARTS, LENGTHS, strict=True)]
    before, expected = zip(*(_alone(name, given, s, piece) for s, piece in enumerate(pieces)), strict=True)
    slots = torch.tensor(SLOTS, device=device)
    state = _in_slots(name, before, slots, precision, device)
    snapshot = [x.clone() for x in _tensors(state)]
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    q, k, v, lr = (torch.cat([x[s, piece] for s, piece in enumerate(pieces)]) for x in given[:4])
    tokens = (*(x.to(device, dtype) for x in (q, k, v)), lr.float().to(device))
    outer = tuple(x.float().to(device) for x in given.outer())
    initial = tuple(getattr(given.state, each)[0].float().to(device) for each in OPS[name].OPERATOR.weights)
    ends = torch.tensor([0, *LENGTHS], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
    start = torch.tensor(STARTS, dtype=torch.int32, device=device)
    sequences = Packed(ends, start, slots, len(q))

    out = forward_packed(OPS[name].portable.launch_packed, tokens, outer, initial, state, sequences)

    assert relative_error(out.cpu(), torch.cat([out[0] for out, _ in expected])) < OUTPUT_ERROR[dtype]
    untouched = [1, *(slot for slot, length in zip(SLOTS, LENGTHS, strict=True) if not length)]
    for x, old in zip(_tensors(state), snapshot, strict=True):
        assert torch.equal(x[untouched], old[untouched])
    found = _from_slots(state, slots)
    limits = dict.fromkeys(found._fields, STATE_ERROR[precision])
    for s, (_, after) in enumerate(expected):
        if LENGTHS[s]:
            alone = type(after)(*(x[s : s + 1] for x in found))
            assert_state(alone._replace(position=after.position), after, limits)


def _alone(name: str, given: Any, s: int, piece: slice) -> tuple[Any, tuple[Tensor, Any]]:
    first = type(given.state)(*(x[s : s + 1] for x in given.state))
    tokens = [x[s : s + 1] for x in given[:4]]
    _, before = OPERATORS[name].forward(*(x[:, : piece.start] for x in tokens), *given.outer(), first, start=0)
    return before, OPERATORS[name].forward(*(x[:, piece] for x in tokens), *given.outer(), before)


def _in_slots(name: str, states: Any, slots: Tensor, precision: str, device: str) -> Any:
    """Return `states` as a generate state in nine strided slots. Unused slots, and those of new sequences, hold 3s."""
    state = type(states[0])(*(torch.cat(each).to(device) for each in zip(*states, strict=True)))
    made = GENERATE[name].GenerateState.from_state(state, "dual", precision)
    old = torch.tensor(STARTS, device=device) > 0

    def paged(x: Tensor) -> Tensor:
        pages = torch.full((9, 2, *x.shape[1:]), 3, dtype=x.dtype, device=device)[:, 0]
        pages[slots[old]] = x[old]
        return pages

    return replace(mapped(made, paged), slots=slots, position=made.position)


def _from_slots(state: Any, slots: Tensor) -> Any:
    picked = mapped(replace(state, slots=None, position=None), lambda x: x[slots])
    return replace(picked, position=state.position).to_state()


def _tensors(state: Any) -> list[Tensor]:
    return [x for x in state.tensors() if x is not state.position]
