"""Packed sequences of different lengths, compared with the float64 reference of each sequence alone."""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from harness.measure.correctness import relative_error
from tests.interpreter import DEVICE
from tests.tk_kernels.reference_cases import OPERATORS, case
from tests.tk_kernels.tolerances import OUTPUT_ERROR
from tk_kernels.forward.operator import forward_packed
from tk_kernels.packed import Packed
from tk_kernels.ttt_linear import forward as linear
from tk_kernels.ttt_linear import generate as linear_generate
from tk_kernels.ttt_mlp import forward as mlp
from tk_kernels.ttt_mlp import generate as mlp_generate

FORWARD: dict[str, Any] = {"linear": linear, "mlp": mlp}
GENERATE: dict[str, Any] = {"linear": linear_generate, "mlp": mlp_generate}
WEIGHTS = {"linear": ("W", "b"), "mlp": ("W1", "b1", "W2", "b2")}
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
    initial = tuple(getattr(given.state, each)[0].float().to(device) for each in WEIGHTS[name])
    ends = torch.tensor([0, *LENGTHS], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
    start = torch.tensor(STARTS, dtype=torch.int32, device=device)
    sequences = Packed(ends, start, slots, len(q))

    out = forward_packed(FORWARD[name].launch_packed, tokens, outer, initial, state, sequences)

    assert relative_error(out.cpu(), torch.cat([out[0] for out, _ in expected])) < OUTPUT_ERROR[dtype]
    untouched = [1, *(slot for slot, length in zip(SLOTS, LENGTHS, strict=True) if not length)]
    for x, old in zip(_tensors(state), snapshot, strict=True):
        assert torch.equal(x[untouched], old[untouched])
    found = _from_slots(state, slots)
    for s, (_, after) in enumerate(expected):
        if not LENGTHS[s]:
            continue
        count = int(after.position)
        for field, ours, theirs in zip(after._fields[:-1], found, after, strict=False):
            pair = (ours[s, :, :count], theirs[0, :, :count]) if field.endswith("rows") else (ours[s], theirs[0])
            assert relative_error(pair[0].cpu(), pair[1]) < STATE_ERROR[precision], (field, s)


def _alone(name: str, given: Any, s: int, piece: slice) -> tuple[Any, tuple[Tensor, Any]]:
    first = type(given.state)(*(x[s : s + 1] for x in given.state))
    tokens = [x[s : s + 1] for x in given[:4]]
    _, before = OPERATORS[name].forward(*(x[:, : piece.start] for x in tokens), *given.outer(), first, start=0)
    return before, OPERATORS[name].forward(*(x[:, piece] for x in tokens), *given.outer(), before)


def _in_slots(name: str, states: Any, slots: Tensor, precision: str, device: str) -> Any:
    """Return `states` as a generate state in nine strided slots. Unused slots, and those of new sequences, hold 3s."""
    state = type(states[0])(*map(torch.cat, zip(*states, strict=True)))
    state = type(state)(*(x.float().to(device) for x in state[:-1]), state.position.to(device))
    made = GENERATE[name].GenerateState.from_state(state, "dual", precision)

    def paged(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(paged, x))
        if not isinstance(x, Tensor):
            return x
        pages = torch.full((9, 2, *x.shape[1:]), 3, dtype=x.dtype, device=device)[:, 0]
        old = torch.tensor(STARTS, device=device) > 0
        pages[slots[old]] = x[old]
        return pages

    changed = {field.name: paged(getattr(made, field.name)) for field in fields(made)}
    return replace(made, **changed | {"slots": slots, "position": made.position})


def _from_slots(state: Any, slots: Tensor) -> Any:
    def picked(x: Any) -> Any:
        return tuple(map(picked, x)) if isinstance(x, tuple) else x[slots] if isinstance(x, Tensor) else x

    names = [field.name for field in fields(state) if field.name not in ("position", "slots")]
    return replace(state, **{name: picked(getattr(state, name)) for name in names}).to_state()


def _tensors(state: Any) -> list[Tensor]:
    return [x for x in state.tensors() if x is not state.position]
