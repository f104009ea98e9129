"""The Triton generate kernels match the reference in every form, precision and position, in the interpreter."""

import pytest
import torch
from generate_cases import (
    GENERATE,
    check_rope_and_rates_in_the_launch,
    check_slots,
    combinations,
    compare,
    forward_state,
    outer_parameters,
    random_state,
    random_token,
    weights_of,
)

from harness.measure.correctness import relative_error
from tests.interpreter import DEVICE, INTERPRETED
from tests.tk_kernels.reference_cases import OPERATORS, masked
from tk_kernels import FORMS
from tk_kernels.generate import common
from tk_kernels.generate.slots import read_slots, write_slots
from tk_kernels.generate.tuning import Tuning
from tk_kernels.reference.token_rows import mapped
from tk_kernels.ttt_linear import generate as linear_generate

LARGE = 0.2  # standard deviation of weights whose hidden units cover all parts of gelu
interpreted = pytest.mark.skipif(
    not INTERPRETED, reason="needs the interpreter; test_generate_gpu.py compares the kernels on a GPU"
)
pytestmark = pytest.mark.usefixtures("triton_kernels")


@interpreted
@combinations
def test_mixed_positions(operator: str, form: str, precision: str) -> None:
    heads = 2 if precision == "planes" else 1  # the interpreter is slow
    start = random_state(operator, [0, 1, 2, 3], heads, D=16, m=4, std=LARGE)
    compare(operator, form, precision, start, steps=2)


@interpreted
@pytest.mark.parametrize("head_dim", [16, 72])
@pytest.mark.parametrize("operator", GENERATE)
def test_slots(operator: str, head_dim: int) -> None:
    check_slots(operator, [1, 3], 2, head_dim, m=4)


@pytest.mark.parametrize("precision", ["planes", "float32", "bfloat16"])
@pytest.mark.parametrize("operator", GENERATE)
def test_copies_of_slots_equal_a_conversion_of_the_state(operator: str, precision: str) -> None:
    convert, D = GENERATE[operator].GenerateState.from_state, 72
    state = random_state(operator, [3] * 4, 2, D, 4)
    other = mapped(state, lambda x: x.flip(0))
    pool, expected = (convert(state, "dual", precision) for _ in range(2))
    slots, start = (torch.tensor(values, device=DEVICE) for values in ([3, 0, 1], [16, 0, 5]))
    initial = [x[0].float().repeat_interleave(2, -1)[..., ::2] for x in weights_of(other).values()]  # not contiguous
    for found, whole, first in zip(read_slots(pool, slots, start, initial), pool.to_state(), initial, strict=False):
        assert torch.equal(found, torch.stack([whole[3], first.float(), whole[1]]))

    given = convert(other, "dual", precision)
    values = [x[slots] for x in given.to_state()[:-1]]
    with pytest.raises(ValueError, match=f"for {len(values)} tensors"):
        write_slots(pool, slots, values[1:])
    write_slots(pool, slots, values)
    for found, before, after in zip(pool.tensors(), expected.tensors(), given.tensors(), strict=True):
        assert torch.equal(found[2], before[2])
        assert torch.equal(found[slots], after[slots])


@pytest.mark.parametrize("operator", GENERATE)
def test_slots_of_the_primal_form_are_rejected(operator: str) -> None:
    state = GENERATE[operator].GenerateState.from_state(random_state(operator, [0], 1, 16, 4), "primal")
    state.slots = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="form of a state with slots is 'primal': supported are 'dual'"):
        GENERATE[operator].generate_step(*random_token(1, 1, 16, torch.float32, 1), *outer_parameters(1, 16, 4), state)


@interpreted
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operator", GENERATE)
def test_after_a_forward(operator: str, form: str) -> None:
    start = forward_state(operator, [0, 3], 1, 16, 4, OPERATORS[operator].forward)
    compare(operator, form, "planes", start, steps=2)


@interpreted
@pytest.mark.parametrize("operator", GENERATE)
def test_real_head(operator: str) -> None:
    compare(operator, "dual", "planes", random_state(operator, [14], H=1, D=64, m=16, std=LARGE), steps=3)


@interpreted
@pytest.mark.parametrize("head_dim", [24, 68])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operator", GENERATE)
def test_padded_head(operator: str, form: str, head_dim: int) -> None:
    """Test head dimensions other than powers of two. For 68, TTT-MLP's last block of 32 hidden units is half full."""
    start = random_state(operator, [1, 2], H=1, D=head_dim, m=3, std=LARGE)
    if (operator, form, head_dim) == ("mlp", "primal", 68):
        with pytest.raises(ValueError, match="form for 68 channels is 'primal': supported are 'dual'"):
            compare(operator, form, "float32", start, steps=3)
        return
    compare(operator, form, "float32", start, steps=3)


@interpreted
@pytest.mark.parametrize("operator", GENERATE)
def test_rope_and_lr_logits_in_the_launch(operator: str) -> None:
    check_rope_and_rates_in_the_launch(operator, [0, 3], 2, 16, 4, "float32")


@interpreted
def test_strided_tokens_and_empty_batch() -> None:
    outer, (q, k, v, lr) = outer_parameters(2, 16, 4), random_token(3, 2, 16, torch.float32, 1)
    states = [
        linear_generate.GenerateState.from_state(random_state("linear", [0, 1, 3], 2, 16, 4), "dual", "float32")
        for _ in range(2)
    ]
    sliced = torch.stack([q, k, v], dim=1).unbind(1)
    expected = linear_generate.generate_step(q, k, v, lr, *outer, states[0])
    assert torch.equal(linear_generate.generate_step(*sliced, lr, *outer, states[1]), expected)
    empty = linear_generate.GenerateState.from_state(random_state("linear", [], 2, 16, 4), "dual", "planes")
    assert linear_generate.generate_step(q[:0], k[:0], v[:0], lr[:0], *outer, empty).shape == (0, 2, 16)


def test_planes_are_the_exact_float32() -> None:
    bits = torch.cat([torch.randint(-(2**31), 2**31, (10000,)), torch.tensor([0x8000, 0x7FFF, 0x18000, 0x3F808000])])
    x = bits.to(torch.int32).view(torch.float32)
    x = x[x.isfinite()]
    high, low = common.split_planes(x)
    assert torch.equal(common.join_planes(high, low).view(torch.int32), x.view(torch.int32))
    small = x[(x.abs() < 1e38) & (x.abs() > 1e-37)]
    assert torch.all((common.split_planes(small)[0].double() - small.double()).abs() <= small.double().abs() * 2**-8)
    assert relative_error(common.split_planes(torch.tensor([1 + 2**-8 + 2**-20]))[0], torch.tensor([1 + 2**-7])) == 0


def test_nan_stays_nan_in_the_high_plane() -> None:
    """Rounding a GPU's NaN, 0x7FFFFFFF, like a number would carry into the sign and give -0."""
    bits = torch.tensor([0x7FFFFFFF, 0x7FFF8000, 0x7FC00000, -1, 0x7F800001]).to(torch.int32)
    high, low = common.split_planes(bits.view(torch.float32))
    assert high.isnan().all()
    assert common.join_planes(high, low).isnan().all()


@interpreted
@pytest.mark.parametrize("operator", GENERATE)
def test_unsupported_shapes_strides_and_dtypes_are_rejected(operator: str) -> None:
    module = GENERATE[operator]
    (scale, weight, bias), token = outer_parameters(2, 16, 4), random_token(3, 2, 16, torch.float32, 1)
    state = module.GenerateState.from_state(random_state(operator, [0, 1, 3], 2, 16, 4), "dual", "float32")
    for wrong, words in (
        ((scale[:3], weight, bias), r"token_scale has shape \(3,\): expected \(4,\)"),
        ((scale.repeat_interleave(2)[::2], weight, bias), r"token_scale has strides \(2,\)"),
        ((scale, weight.T.contiguous().T, bias), r"ln_weight has strides \(1, 2\)"),
        ((scale, weight, bias[:1].expand(2, 16)), r"ln_bias has strides \(0, 1\)"),
    ):
        with pytest.raises(ValueError, match=words):
            module.generate_step(*token, *wrong, state)
    (q, k, v, lr), outer = token, (scale, weight, bias)
    for wrong, words in (
        ((q.long(), k, v, lr), "q.dtype is torch.int64"),
        ((q, k.bfloat16(), v, lr), "k.dtype is torch.bfloat16"),
        ((q, k, v, lr.int()), "lr.dtype is torch.int32"),
        ((q, k, v.to("meta"), lr), "v is on meta: q is on"),
    ):
        with pytest.raises(ValueError, match=words):
            module.generate_step(*wrong, *outer, state)
    moved = scale.to("meta")
    with pytest.raises(ValueError, match="token_scale is on meta"):
        module.generate_step(*token, moved, weight, bias, state)


@interpreted
@pytest.mark.parametrize("operator", GENERATE)
@pytest.mark.parametrize(("form", "precision", "D", "m"), [("primal", "planes", 64, 16), ("dual", "float32", 64, 16),
    ("dual", "planes", 16, 16), ("dual", "planes", 64, 32)])  # fmt: skip
def test_sm90_settings_for_unsupported_states_are_rejected(
    operator: str, form: str, precision: str, D: int, m: int
) -> None:
    """generate_step rejects `sm90` settings for states that Hopper's kernel would index out of bounds."""
    module = GENERATE[operator]
    outer, token = outer_parameters(2, D, m), random_token(1, 2, D, torch.float32, 1)
    state = module.GenerateState.from_state(random_state(operator, [0], 2, D, m), form, precision)
    assert not state.suits_sm90()
    with pytest.raises(ValueError, match="the sm_90 kernel does not support this state"):
        module.generate_step(*token, *outer, state, launch=Tuning(warps=4, block=0, sm90=True))


@pytest.mark.parametrize("operator", GENERATE)
@pytest.mark.parametrize("piece_bytes", [common.PIECE_BYTES, 1])
def test_state_round_trip(operator: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "PIECE_BYTES", piece_bytes)
    generate = GENERATE[operator]
    state = random_state(operator, [0, 2, 3], 2, 16, 4)
    back = generate.GenerateState.from_state(state, "dual", "planes").to_state()
    expected = weights_of(state)
    assert all(torch.equal(x, expected[name]) for name, x in weights_of(back).items())
    assert back.position.tolist() == [0, 2, 3]
    back = generate.GenerateState.from_state(state, "dual", "float32").to_state()
    assert all(relative_error(a, b.double()) < 1e-6 for a, b in zip(masked(back), masked(state), strict=True))
    sums = generate.GenerateState.from_state(state, "primal", "float32").to_state()
    expected = OPERATORS[operator].primal_state(state)
    assert all(relative_error(a, b.double()) < 1e-6 for a, b in zip(sums, expected, strict=True))


@pytest.mark.parametrize(
    ("form", "precision", "message"), [("duall", "planes", "form is 'duall'"), ("dual", "fp8", "precision is 'fp8'")]
)
def test_unknown_forms_and_precisions_are_rejected(form: str, precision: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear_generate.GenerateState.from_state(random_state("linear", [0], 1, 16, 4), form, precision)
