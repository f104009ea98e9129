"""A forward operator rejects unsupported arguments; the reference completes a mini-batch that an earlier call began."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from harness.measure.correctness import relative_error
from tests.tk_kernels.forward_prompts import OPS, arguments
from tests.tk_kernels.reference_cases import OPERATORS
from tk_kernels import build
from tk_kernels.forward.operator import HEAD_DIM
from tk_kernels.reference.layer import rope
from tk_kernels.reference.token_rows import clone
from tk_kernels.ttt_linear import ops as linear_ops

NAMES = ("q", "k", "v", "lr", "token_scale", "ln_weight", "ln_bias")


def operator_arguments(layer: str) -> tuple:
    q, k, v, lr, *outer, state = arguments(layer, 20, batch=1, heads=2)
    return OPS[layer], (q, k, v, lr), outer, state


@pytest.mark.parametrize("mini_batch", [16, 32])
@pytest.mark.parametrize("layer", ["linear", "mlp"])
@pytest.mark.parametrize("known", [True, False], ids=["start given, rope", "start read"])
@pytest.mark.parametrize("inplace", [False, True], ids=["new state", "in place"])
def test_forward_generate_forward_forward_is_one_forward(layer, mini_batch, known, inplace):
    operator, module, total = OPS[layer], OPERATORS[layer], 4 * mini_batch - 5
    q, k, v, lr, *outer, begin = arguments(layer, total, heads=2, mini_batch=mini_batch)
    position = torch.arange(total) % mini_batch
    rotated_qk = [rope(x.float(), position).to(x.dtype) if known else x for x in (q, k)]
    whole, expected = module.forward(*(x.float() for x in (*rotated_qk, v, lr)), *outer, begin)
    state, outputs, at = begin, [], 0
    for kind, count in (("forward", mini_batch + 5), ("generate", 3), ("forward", 4), ("forward", 3 * mini_batch - 17)):
        piece = [x[:, at : at + count] for x in (q, k, v, lr)]
        if kind == "forward":
            start, given = at % mini_batch if known else None, state
            before, options = clone(given), {"start": start, "inplace": inplace, "rope": known}
            out, state = operator.forward(*piece, *outer, given, **options, backend="reference")
            assert (state is given) == inplace
            assert inplace or all(map(torch.equal, given, before))
            outputs.append(out)
        for t in range(at, at + count if kind == "generate" else at):
            out, state = module.generate_step(*(x[:, t].float() for x in (*rotated_qk, v, lr)), *outer, state)
            outputs.append(out[:, None])
        at += count
    assert at == total
    assert relative_error(torch.cat([x.float() for x in outputs], 1), whole) < 3e-3  # outputs are bfloat16
    assert state.position.tolist() == expected.position.tolist() == [mini_batch - 5] * 2
    for name in operator.OPERATOR.weights:
        before, found, exact = (getattr(x, name) for x in (begin, state, expected))
        assert relative_error(found - before, exact - before) < 1e-3  # float32 rounding of W, relative to its change


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("layer", ["linear", "mlp"])
def test_in_place_the_kernel_writes_the_states_tensors(monkeypatch, layer, mode):
    operator, tokens, outer, state = operator_arguments(layer)
    given = []
    weights = len(operator.OPERATOR.weights)

    def launch(*arguments):
        given.extend(arguments[7 : 8 + 2 * weights])
        for x in arguments[8 + weights : 8 + 2 * weights]:
            x.add_(1.0)

    monkeypatch.setattr(build, "load", lambda name: SimpleNamespace(forward=launch))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(linear_ops, "sm_count", lambda _: 132)
    with mode():
        state = clone(state)
        before = clone(state)
        _, same = operator.forward(*tokens, *outer, state, start=0, inplace=True, backend="thunderkittens")
    assert same is state
    addresses = [x.data_ptr() for x in state[:weights]]
    assert [x.data_ptr() for x in given] == [*addresses, given[weights].data_ptr(), *addresses]
    for name in operator.OPERATOR.weights:
        assert torch.equal(getattr(state, name), getattr(before, name) + 1)


@pytest.mark.parametrize("emptied", [lambda x: x[:, :0], lambda x: x[:0]], ids=["no token", "no sequence"])
@pytest.mark.parametrize("layer", ["linear", "mlp"])
def test_empty_input_copies_the_state_and_launches_nothing(monkeypatch, layer, emptied):
    operator, tokens, outer, state = operator_arguments(layer)
    monkeypatch.setattr(operator.OPERATOR, "launch", None)
    tokens = [emptied(x) for x in tokens]
    state = type(state)(*(x[: len(tokens[0])] for x in state))
    out, after = operator.forward(*tokens, *outer, state, start=0)
    assert out.shape == tokens[0].shape
    assert all(map(torch.equal, after, state))
    assert not {x.data_ptr() for x in after} & {x.data_ptr() for x in state if x.numel()}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("q", lambda x: x[..., :32], r"k has shape \(1, 20, 2, 64\): expected \(1, 20, 2, 32\)"),
        ("q", torch.Tensor.double, r"q\.dtype is torch\.float64: .*bfloat16"),
        ("k", lambda x: x[:, :10], r"k has shape \(1, 10, 2, 64\)"),
        ("v", torch.Tensor.half, r"v\.dtype is torch\.float16"),
        ("v", lambda x: x.mT.contiguous().mT, r"v has strides .*D contiguous"),
        # a vector load of 8 bfloat16 needs an address aligned to 16 bytes
        ("k", lambda x: F.pad(x.flatten(2), (0, 4))[..., :-4].view_as(x), r"k has strides .*multiples of 8$"),
        ("lr", lambda x: x[:, :, :1], r"lr has shape"),
        ("token_scale", lambda x: x[:3], "mini-batch size, is 3: must be 4 to 64"),
        ("ln_weight", lambda x: x[:1], r"ln_weight has shape"),
        ("weight", lambda x: x[..., :32], r"state\.W1? has shape"),
        ("weight", torch.Tensor.double, r"state\.W1?\.dtype is torch\.float64"),
        ("weight", lambda x: x.mT.contiguous().mT, r"state\.W1?, which inplace=True writes to, has strides"),
        ("k_rows", torch.Tensor.bfloat16, r"state\.k_rows\.dtype is torch\.bfloat16"),  # the kernel writes float32
        ("k_rows", lambda x: x[:, :, 1:].clone(), r"state\.k_rows has shape"),
        ("position", torch.Tensor.long, r"state\.position\.dtype is torch\.int64"),
        ("position", lambda x: x.repeat(2), r"state\.position has shape"),
        *[(name, lambda x: x.to("meta"), f"{name} is on meta: .* is on cpu") for name in (*NAMES[1:], "k_rows")],
    ],
)
@pytest.mark.parametrize("layer", ["linear", "mlp"])
def test_unsupported_arguments_are_named(layer, name, change, message):
    operator, tokens, outer, state = operator_arguments(layer)
    given = dict(zip(NAMES, (*tokens, *outer), strict=True))
    if name in given:
        given[name] = change(given[name])
    else:
        field = state._fields[0] if name == "weight" else name
        state = state._replace(**{field: change(getattr(state, field))})
    with pytest.raises(ValueError, match=message):
        operator.forward(*given.values(), state, start=0, inplace=True)


@pytest.mark.parametrize("layer", ["linear", "mlp"])
def test_different_positions_are_named(layer):
    operator, tokens, outer, state = operator_arguments(layer)
    twice = type(state)(*(torch.cat((x, x)) for x in state))._replace(position=torch.tensor([0, 3], dtype=torch.int32))
    with pytest.raises(ValueError, match=r"state\.position holds \[0, 3\]"):
        operator.forward(*(torch.cat((x, x)) for x in tokens), *outer, twice)


def test_an_address_unsupported_by_tma_is_named():
    operator, (q, k, v, lr), outer, state = operator_arguments("linear")
    v = torch.zeros(v.numel() + 4, dtype=v.dtype)[4:].view(v.shape)
    with pytest.raises(ValueError, match="v begins at element 4"):
        operator.forward(q, k, v, lr, *outer, state, backend="thunderkittens")


@pytest.mark.parametrize("layer", ["linear", "mlp"])
def test_shapes_and_graphs_without_running(layer):
    operator, tokens, outer, state = operator_arguments(layer)
    meta = [x.to("meta") for x in (*tokens, *outer)], type(state)(*(x.to("meta") for x in state))
    out, after = operator.forward(*meta[0], meta[1], start=0)
    assert (out.shape, out.dtype) == (tokens[0].shape, torch.bfloat16)
    assert [(x.shape, x.dtype) for x in after] == [(x.shape, x.dtype) for x in state]
    graphs = []

    def record(graph, example_inputs):
        graphs.append(graph)
        return lambda *_: (torch.zeros(()),)

    compiled = torch.compile(lambda *x: operator.forward(*x, start=0)[0], fullgraph=True, backend=record)
    compiled(*(x[:, :16] for x in tokens), *outer, state)
    assert f"{layer}_forward" in graphs[0].code


def test_the_schedule_fills_the_sms(monkeypatch):
    monkeypatch.setattr(linear_ops, "sm_count", lambda _: 132)
    for batch, mini_batch, schedule in ((1, 16, (4, 1)), (16, 16, (2, 4)), (16, 32, (4, 1))):
        assert linear_ops.schedule(torch.empty(batch, 1, 32, HEAD_DIM), mini_batch) == schedule
