"""One launch over sequences of different lengths equals the float64 reference of each sequence alone."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from reference_cases import OPERATORS, case

from tests.interpreter import DEVICE, INTERPRETED
from tests.tk_kernels.tolerances import OUTPUT_ERROR, relative_error
from tk_kernels.packed import packed
from tk_kernels.ttt_linear import forward as linear
from tk_kernels.ttt_linear import generate as linear_generate
from tk_kernels.ttt_mlp import forward as mlp
from tk_kernels.ttt_mlp import generate as mlp_generate

FORWARD: dict[str, Any] = {"linear": linear, "mlp": mlp}
GENERATE: dict[str, Any] = {"linear": linear_generate, "mlp": mlp_generate}
WEIGHTS = {"linear": ("W", "b"), "mlp": ("W1", "b1", "W2", "b2")}
LENGTHS, STARTS = [17, 0, 1, 40, 15, 16, 9], [0, 5, 0, 5, 16, 31, 5]
SLOTS = [5, 8, 2, 7, 0, 3, 6]  # of nine: 1 and 4 belong to no sequence
# Of the state, by precision: float32 rows and weights are exact; 16-bit rows are rounded.
STATE_ERROR = {"float32": 2e-6, "planes": 5e-3}


def in_pages(state: Any, slots: torch.Tensor) -> Any:
    """Return the generate state in slots of larger tensors, with other numbers around it."""
    changed = {}
    for field in fields(state):
        x = getattr(state, field.name)
        changed[field.name] = tuple(map(_paged(slots), x)) if isinstance(x, tuple) else _paged(slots)(x)
    return replace(state, **changed | {"slots": slots, "position": state.position})


def _paged(slots: torch.Tensor) -> Any:
    def paged(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        pages = torch.full((9, 2, *x.shape[1:]), 3, dtype=x.dtype, device=x.device)[:, 0]
        pages[slots] = x
        return pages

    return paged


@pytest.mark.parametrize("precision", ["float32", "planes"])
@pytest.mark.parametrize(
    ("name", "head_dim", "mini_batch"),
    [("linear", 64, 16), ("linear", 96, 5), ("mlp", 64, 16), ("mlp", 96, 16)],
)
def test_packed_sequences(triton_kernels, poisoned, name, head_dim, mini_batch, precision):
    """Also from inside a mini-batch, ending inside the same one, without tokens, and from the initial weights."""
    if not INTERPRETED and precision == "float32":
        pytest.skip("float32 tokens run in Triton's interpreter only")
    batch, longest = len(LENGTHS), max(LENGTHS)
    given = case(name, longest + max(STARTS), batch=batch, heads=2, head_dim=head_dim, mini_batch=mini_batch)
    before, expected = [], []
    for s, (start, length) in enumerate(zip(STARTS, LENGTHS, strict=True)):
        one = type(given.state)(*(x[s : s + 1] for x in given.state))
        tokens = [x[s : s + 1] for x in given[:4]]
        _, after = OPERATORS[name].forward(*(x[:, :start] for x in tokens), *given.outer(), one, start=0)
        before.append(after)
        cut = slice(start, start + length)
        expected.append(OPERATORS[name].forward(*(x[:, cut] for x in tokens), *given.outer(), after))
    state = type(given.state)(*map(torch.cat, zip(*before, strict=True)))
    state = type(state)(*(x.float().to(DEVICE) for x in state[:-1]), state.position.to(DEVICE))
    slots = torch.tensor(SLOTS, device=DEVICE)
    paged = in_pages(GENERATE[name].GenerateState.from_state(state, "dual", precision), slots)
    initial = [getattr(given.state, each)[0].float().to(DEVICE) for each in WEIGHTS[name]]
    for s, start in enumerate(STARTS):
        if start == 0:  # the kernel does not read a new sequence's slot
            for x in _tensors(paged):
                x[SLOTS[s]] = 7
    untouched = [x[1].clone() for x in _tensors(paged)]
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    q, k, v, lr = (
        torch.cat([x[s, start : start + length] for s, (start, length) in enumerate(zip(STARTS, LENGTHS, strict=True))])
        for x in given[:4]
    )
    tokens = [x.to(DEVICE, dtype) for x in (q, k, v)] + [lr.float().to(DEVICE)]
    outer = [x.float().to(DEVICE) for x in given.outer()]
    ends = torch.tensor([0, *LENGTHS], dtype=torch.int32, device=DEVICE).cumsum(0, dtype=torch.int32)
    starts = torch.tensor(STARTS, dtype=torch.int32, device=DEVICE)
    out = FORWARD[name].launch_packed(tokens, outer, initial, paged, packed(ends, starts, slots, len(q)))

    assert relative_error(out.cpu(), torch.cat([each[0] for each, _ in expected])) < OUTPUT_ERROR[dtype]
    for x, same in zip(_tensors(paged), untouched, strict=True):
        assert torch.equal(x[1], same)
        assert torch.equal(x[4], same)
    picked = {}
    for field in fields(paged):
        x = getattr(paged, field.name)
        picked[field.name] = tuple(each[slots] for each in x) if isinstance(x, tuple) else x
        if isinstance(x, torch.Tensor) and field.name not in ("position", "slots"):
            picked[field.name] = x[slots]
    found = replace(paged, **picked).to_state()
    for s, (length, (_, after)) in enumerate(zip(LENGTHS, expected, strict=True)):
        count = int(after.position[0])
        for field, ours, theirs in zip(after._fields[:-1], found, after, strict=False):
            if not length and STARTS[s] == 0:
                continue
            pair = (ours[s, :, :count], theirs[0, :, :count]) if field.endswith("rows") else (ours[s], theirs[0])
            assert relative_error(pair[0].cpu(), pair[1]) < STATE_ERROR[precision], (field, s)


def _tensors(state: Any) -> list[torch.Tensor]:
    return [x for x in state.tensors() if x is not state.position]
