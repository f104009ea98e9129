"""Reference forms (primal, dual, generate) match the naive form at any T, D, mini-batch and division into calls."""

import functools

import pytest
import torch
from reference_cases import OPERATORS, Case, case, generate, masked, naive
from tensors import OUTPUT_ERROR
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException

from harness.measure.correctness import relative_error

EXACT = OUTPUT_ERROR[torch.float64]
# Relative error of the state's change. In bfloat16, the matmuls of the update have rounded inputs.
STATE_CHANGE_ERROR = {torch.float32: 2e-4, torch.bfloat16: 1e-2}
each_operator = pytest.mark.parametrize("operator", OPERATORS)


def assert_same_state(state: tuple, other: tuple) -> None:
    for name, x, y in zip(state._fields, masked(state), masked(other), strict=True):
        torch.testing.assert_close(x, y, rtol=EXACT, atol=EXACT, msg=lambda text, name=name: f"{name}: {text}")


def run_form(operator: str, args: Case, form: str) -> torch.Tensor:
    module = OPERATORS[operator]
    if form in ("dual", "primal"):
        return module.forward(*args, form=form)[0]
    return generate(operator, args, args.state if form == "rows" else module.primal_state(args.state))[0]


@each_operator
@pytest.mark.parametrize("form", ["dual", "primal", "rows", "sums"])
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 35])
def test_each_form_is_the_definition(operator: str, form: str, tokens: int) -> None:
    args, expected = naive_case(operator, tokens)
    assert relative_error(run_form(operator, args, form), expected) < EXACT


@functools.cache
def naive_case(operator: str, tokens: int) -> tuple[Case, torch.Tensor]:
    args = case(operator, tokens, batch=1)
    return args, naive(operator, args)[0]


@each_operator
@pytest.mark.parametrize("tokens", [7, 32, 35])
@pytest.mark.parametrize("mini_batch", [16, 32])
@pytest.mark.parametrize("form", ["dual", "primal"])
def test_state_matches_naive(operator: str, tokens: int, mini_batch: int, form: str) -> None:
    args = case(operator, tokens, heads=1, mini_batch=mini_batch)
    out, expected = naive(operator, args)
    module, state, parts = OPERATORS[operator], args.state, []
    for at in (slice(0, 3), slice(3, 20), slice(20, tokens)):
        part, state = module.forward(*args.tokens(at), *args.outer(), state, form=form)
        parts.append(part)
    assert relative_error(torch.cat(parts, 1), out) < EXACT
    for found in (state, module.forward(*args, form=form)[1]):
        reached = module.primal_state(found)
        for name, x, y in zip(reached._fields, reached, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=EXACT, atol=EXACT, msg=lambda text, name=name: f"{name}: {text}")


@each_operator
@pytest.mark.parametrize(("head_dim", "mini_batch"), [(16, 1), (64, 4), (96, 16), (16, 32)])
def test_forms_agree_at_any_head_dim_and_mini_batch(operator: str, head_dim: int, mini_batch: int) -> None:
    args = case(operator, 35, batch=1, head_dim=head_dim, mini_batch=mini_batch)
    dual = run_form(operator, args, "dual")
    for form in ("primal", "rows", "sums"):
        assert relative_error(run_form(operator, args, form), dual) < EXACT


@each_operator
def test_long_and_empty_inputs(operator: str) -> None:
    args = case(operator, 1000, batch=1, heads=1)
    assert relative_error(run_form(operator, args, "dual"), run_form(operator, args, "primal")) < EXACT
    for batch, tokens in ((1, 0), (0, 32)):
        q, k, v, lr, *outer, state = case(operator, tokens, batch=batch, heads=1)
        out, after = OPERATORS[operator].forward(q, k, v, lr, *outer, state)
        trace, _ = OPERATORS[operator].states(k, v, lr, *outer, state)
        assert OPERATORS[operator].outputs(q, k, lr, *outer, trace).shape == out.shape == q.shape
        assert_same_state(after, state)


@each_operator
def test_forward_then_generate_is_forward_at_every_split(operator: str) -> None:
    module, args = OPERATORS[operator], case(operator, 35)
    whole, end = module.forward(*args)
    for split in range(36):
        out, state = module.forward(*args.tokens(slice(split)), *args.outer(), args.state)
        rest, last = generate(operator, args, state, split)
        from_sums, last_sums = generate(operator, args, module.primal_state(state), split)
        assert relative_error(torch.cat((out, rest), 1), whole) < EXACT
        assert relative_error(torch.cat((out, from_sums), 1), whole) < EXACT
        assert_same_state(last, end)
        assert_same_state(last_sums, module.primal_state(end))


@each_operator
@pytest.mark.parametrize("form", ["dual", "primal"])
def test_forward_in_pieces_is_forward_and_keeps_the_given_state(operator: str, form: str) -> None:
    module, args = OPERATORS[operator], case(operator, 71)
    before = [x.clone() for x in args.state]
    whole, end = module.forward(*args, form=form)
    assert all(map(torch.equal, args.state, before))
    state, outputs, low = args.state, [], 0
    for size in (7, 1, 16, 8, 39):
        out, state = module.forward(*args.tokens(slice(low, low + size)), *args.outer(), state, form=form)
        outputs.append(out)
        low += size
    assert relative_error(torch.cat(outputs, 1), whole) < EXACT
    assert_same_state(state, end)


@each_operator
def test_memory_cap_does_not_change_the_result(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, args = OPERATORS[operator], case(operator, 100)
    whole, end = module.forward(*args)
    monkeypatch.setattr(module.LINEAR if operator == "linear" else module.MLP, "max_parallel", 2)
    out, state = module.forward(*args)
    assert relative_error(out, whole) < EXACT
    assert_same_state(state, end)


@each_operator
def test_forward_is_states_then_outputs(operator: str) -> None:
    module, args = OPERATORS[operator], case(operator, 64)
    whole, end = module.forward(*args)
    trace, state = module.states(*args[1:])
    out = module.outputs(args.q, args.k, args.lr, *args.outer(), trace)
    assert relative_error(out, whole) < EXACT
    assert_same_state(state, end)
    with pytest.raises(ValueError, match=r"35 tokens .* whole mini-batches of 16"):
        module.states(*case(operator, 35)[1:])
    with pytest.raises(ValueError, match=r"35 tokens .* whole mini-batches of 16"):
        module.outputs(args.q[:, :35], args.k[:, :35], args.lr[:, :35], *args.outer(), trace)


@each_operator
@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("inplace", [True, False])
def test_sequences_at_mixed_positions(operator: str, rows: bool, inplace: bool) -> None:
    module, args = OPERATORS[operator], case(operator, 40, batch=4)
    whole, _ = module.forward(*args)
    seen = (0, 5, 15, 31)  # tokens of each sequence before its first step
    apart = []
    for row, count in enumerate(seen):
        mine = [x[row : row + 1] for x in args[:4]]
        first = type(args.state)(*(x[row : row + 1] for x in args.state))
        _, state = module.forward(*(x[:, :count] for x in mine), *args.outer(), first)
        apart.append(state if rows else module.primal_state(state))
    state = type(apart[0])(*(torch.cat(parts) for parts in zip(*apart, strict=True)))
    for step in range(9):
        given, before = state, [x.clone() for x in state]
        at = [count + step for count in seen]
        token = [x[range(4), at] for x in args[:4]]
        out, state = module.generate_step(*token, *args.outer(), state, inplace=inplace)
        assert relative_error(out, whole[range(4), at]) < EXACT
        assert (state is given) == inplace
        assert inplace or all(torch.equal(x, y) for x, y in zip(given, before, strict=True))


@each_operator
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["dual", "primal", "rows", "sums"])
def test_error_by_dtype(operator: str, dtype: torch.dtype, form: str) -> None:
    args = case(operator, 70, batch=1, head_dim=64, dtype=dtype)
    exact = run_form(operator, case(operator, 70, batch=1, head_dim=64), "dual")
    out = run_form(operator, args, form)
    assert out.dtype == dtype
    assert relative_error(out, exact) < OUTPUT_ERROR[dtype]


@each_operator
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_master_state_is_not_rounded_between_calls(operator: str, dtype: torch.dtype) -> None:
    """Weights stay unrounded between calls: rounding to bfloat16 would exceed STATE_CHANGE_ERROR."""
    args = case(operator, 64, batch=1, head_dim=64, dtype=dtype)
    _, exact = OPERATORS[operator].forward(*case(operator, 64, batch=1, head_dim=64))
    state = args.state
    for low in range(0, 64, 8):
        _, state = OPERATORS[operator].forward(*args.tokens(slice(low, low + 8)), *args.outer(), state)
    for name in ("W", "b") if operator == "linear" else ("W1", "b1", "W2", "b2"):
        found, expected, before = (getattr(x, name).double() for x in (state, exact, args.state))
        assert relative_error(found - before, expected - before) < STATE_CHANGE_ERROR[dtype]


@each_operator
@pytest.mark.parametrize("form", ["dual", "primal", "rows", "sums"])
def test_nan_stays_in_its_head_and_sequence(operator: str, form: str) -> None:
    args = case(operator, 20)
    clean = run_form(operator, args, form)
    args.k[1, 3, 0] = torch.nan
    out = run_form(operator, args, form)
    assert out[1, 3:, 0].isnan().all()
    out[1, :, 0] = clean[1, :, 0]
    assert torch.equal(out, clean)


@each_operator
@pytest.mark.parametrize("rows", [True, False])
def test_generate_reads_no_value_on_the_host(operator: str, rows: bool) -> None:
    """Control flow and shapes do not depend on values in tensors, as a CUDA graph requires."""
    module, args = OPERATORS[operator], case(operator, 3)
    state = args.state if rows else module.primal_state(args.state)
    mode = FakeTensorMode()
    token, outer, tokens = ([mode.from_tensor(x) for x in xs] for xs in (args.tokens(0), args.outer(), args[:4]))
    state, first = (type(x)(*map(mode.from_tensor, x)) for x in (state, args.state))
    with mode:
        assert module.generate_step(*token, *outer, state, inplace=True)[0].shape == (2, 2, 16)
        assert module.forward(*tokens, *outer, first, start=0)[0].shape == (2, 3, 2, 16)
        with pytest.raises(DataDependentOutputException):
            module.forward(*tokens, *outer, first)


def replaced(args: Case, name: str, value: torch.Tensor) -> Case:
    if name in Case._fields:
        return args._replace(**{name: value})
    return args._replace(state=args.state._replace(**{name.removeprefix("state."): value}))


@each_operator
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("q", torch.zeros(2, 35, 32), r"q has shape .*\[B, T, H, D\]"),
        ("q", torch.zeros(2, 35, 2, 16, dtype=torch.float16), r"q.dtype is torch.float16"),
        ("k", torch.zeros(2, 34, 2, 16), r"k has shape \(2, 34, 2, 16\)"),
        ("v", torch.zeros(2, 35, 2, 16), r"v.dtype is torch.float32"),
        ("lr", torch.zeros(2, 2, 35), r"lr has shape \(2, 2, 35\)"),
        ("lr", torch.zeros(2, 35, 2), r"lr.dtype is torch.float32"),
        ("token_scale", torch.zeros(0), r"token_scale has shape \(0,\)"),
        ("ln_weight", torch.zeros(32), r"ln_weight has shape \(32,\)"),
        ("ln_bias", torch.zeros(16, 2), r"ln_bias has shape \(16, 2\)"),
        ("state.k_rows", torch.zeros(2, 2, 8, 16), r"state.k_rows has shape \(2, 2, 8, 16\)"),
        ("state.k_rows", torch.zeros(2, 2, 16, 16), r"state.k_rows.dtype is torch.float32"),
        ("state.position", torch.tensor([1, 2], dtype=torch.int32), r"state.position holds \[1, 2\]"),
        ("state.position", torch.zeros(2), r"state.position.dtype is torch.float32"),
    ],
)
def test_wrong_arguments_are_named(operator: str, name: str, value: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OPERATORS[operator].forward(*replaced(case(operator), name, value))


@each_operator
def test_other_wrong_arguments_are_named(operator: str) -> None:
    module, args = OPERATORS[operator], case(operator)
    with pytest.raises(ValueError, match="form is 'fast'"):
        module.forward(*args, form="fast")
    with pytest.raises(ValueError, match=r"q has shape .*\[B, H, D\]"):
        module.generate_step(*args)
    weights = [torch.zeros(2, *shape) for shape in ((16, 16), (3, 16), (16, 16), (1, 16))]
    with pytest.raises(ValueError, match=r"has shape \(2, 3, 16\)"):
        module.init_state(*weights[: 2 if operator == "linear" else 4], batch=1)


@each_operator
@pytest.mark.parametrize("start", [-1, 16, 35])
def test_a_start_outside_of_the_mini_batch_is_named(operator: str, start: int) -> None:
    """`start` is a position inside the mini-batch, not an absolute position."""
    module, args = OPERATORS[operator], case(operator)
    reason = f"start is {start}: .* 0 to 15"
    with pytest.raises(ValueError, match=reason):
        module.forward(*args, start=start)
    with pytest.raises(ValueError, match=reason):
        module.states(*args[1:], start=start)
    position = torch.full_like(args.state.position, start)
    with pytest.raises(ValueError, match=reason.replace("start", "state.position", 1)):
        module.forward(*replaced(args, "state.position", position))


@pytest.mark.gpu
@each_operator
def test_gpu_error_and_graph(operator: str) -> None:
    module = OPERATORS[operator]
    exact = run_form(operator, case(operator, 100, head_dim=64), "dual").cuda()
    args = case(operator, 100, head_dim=64, dtype=torch.bfloat16)
    args = Case(*(x.cuda() for x in args[:7]), type(args.state)(*(x.cuda() for x in args.state)))
    out, _ = module.forward(*args)
    assert relative_error(out, exact) < OUTPUT_ERROR[torch.bfloat16]
    token = [torch.empty_like(x) for x in args.tokens(0)]
    _, state = module.forward(*args.tokens(slice(60)), *args.outer(), args.state)
    graph, scratch = torch.cuda.CUDAGraph(), type(state)(*(x.clone() for x in state))
    [x.copy_(y) for x, y in zip(token, args.tokens(60), strict=True)]
    module.generate_step(*token, *args.outer(), scratch, inplace=True)
    with torch.cuda.graph(graph):
        step, _ = module.generate_step(*token, *args.outer(), state, inplace=True)
    for t in range(60, 100):
        [x.copy_(y) for x, y in zip(token, args.tokens(t), strict=True)]
        graph.replay()
        assert relative_error(step, exact[:, t]) < OUTPUT_ERROR[torch.bfloat16]


@each_operator
def test_autocast_rounds_nothing(operator: str) -> None:
    module, args = OPERATORS[operator], case(operator, 35, dtype=torch.float32)
    expected, state = module.forward(*args)
    with torch.autocast("cpu", torch.bfloat16):
        out, found = module.forward(*args)
    assert torch.equal(out, expected)
    assert all(map(torch.equal, found, state))
