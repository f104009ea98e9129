"""The fused kernels of `edges` match PyTorch: convolutions, norms, RoPE, learning rate, output gates."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.interpreter import DEVICE, INTERPRETED
from tests.tk_kernels.tensors import assert_close, normal, rotated
from tk_kernels.edges import swiglu_product
from tk_kernels.edges.norms_and_gates import norm_gate, rms_norm, swiglu
from tk_kernels.edges.short_convolution import query_key, residual_convolution
from tk_kernels.packed import Packed

EPS = 1e-6

# Relative Frobenius error against float64. The kernels compute in float32 and round the result once (half an ulp,
# 2^-9); residual_convolution also rounds the convolution's input. Triton's interpreter truncates bfloat16: one ulp.
LIMIT = {torch.float32: 1e-6, torch.bfloat16: 8e-3 if INTERPRETED else 4e-3}

pytestmark = pytest.mark.usefixtures("triton_kernels")
dtypes = pytest.mark.parametrize("dtype", LIMIT, ids=lambda dtype: str(dtype).removeprefix("torch."))


def convolved(window: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return the depthwise convolution [B, T, C] of window [B, T + 3, C] in float64; weight [C, 1, 4], bias [C]."""
    taps = weight.double()[:, 0]
    tokens = window.shape[1] - 3
    return sum(window[:, j : j + tokens].double() * taps[:, j] for j in range(4)) + bias.double()


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x.double(), weight.shape, weight.double(), EPS)


def check_residual_convolution(B: int, T: int, C: int, dtype: torch.dtype) -> None:
    h, cache, weight, bias = (normal(*shape, dtype=dtype) for shape in ((B, T, C), (B, 3, C), (C, 1, 4), (C,)))
    norm, after_norm = (1 + 0.2 * normal(C, dtype=dtype, seed=seed) for seed in (1, 2))
    x = rms(h, norm).to(dtype)
    window = torch.cat((cache, x), 1)
    added, normed = residual_convolution(h, cache, norm, weight, bias, after_norm, EPS)
    expected = h.double() + convolved(window, weight, bias)
    assert_close(added, expected, 2 * LIMIT[dtype])
    assert_close(normed, rms(added, after_norm), LIMIT[dtype])
    assert_close(cache, window[:, -3:].double(), LIMIT[dtype])


def check_query_key(B: int, T: int, H: int, D: int, dtype: torch.dtype, m: int = 16) -> None:
    C = H * D
    projected = normal(B, T, 2 * C + H, dtype=dtype)
    x, logits = projected[..., C : 2 * C], projected[..., 2 * C :]
    cache, lr_bias = normal(B, 3, C, dtype=dtype), normal(H)
    conv_q, conv_k = ((normal(C, 1, 4, dtype=dtype, seed=s), normal(C, dtype=dtype, seed=s)) for s in (3, 4))
    position = (5 * torch.arange(B, device=DEVICE) + 3).remainder(m)
    angles = torch.arange(m)[:, None] * 1e4 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    rope = angles.cos().float().to(DEVICE), angles.sin().float().to(DEVICE)
    window = torch.cat((cache, x), 1)
    per_head = position[:, None].repeat(1, H).int()
    q, k, lr = query_key(x, cache, conv_q, conv_k, rope, per_head, logits, lr_bias, 0.1)
    angle = angles.to(DEVICE)[(position[:, None] + torch.arange(T, device=DEVICE)) % m].unsqueeze(-2)
    for got, conv in ((q, conv_q), (k, conv_k)):
        assert got.is_contiguous()
        assert_close(got, rotated(convolved(window, *conv).unflatten(-1, (H, D)), angle), LIMIT[dtype])
    assert_close(lr, 0.1 * torch.sigmoid(logits.double() + lr_bias.double()) / D, 1e-6)
    assert torch.equal(cache, window[:, -3:])


def check_norm_gate(rows: int, C: int, dtype: torch.dtype) -> None:
    z, gate = 3 + normal(2, rows, C, dtype=dtype), normal(2, rows, 3 * C, dtype=dtype)[..., C : 2 * C]
    weight, bias = 1 + normal(C, dtype=dtype, seed=1), normal(C, dtype=dtype, seed=2)
    expected = F.layer_norm(z.double(), (C,), weight.double(), bias.double(), EPS)
    got = norm_gate(z, gate, weight, bias, EPS)
    assert_close(got, expected * F.gelu(gate.double(), approximate="tanh"), LIMIT[dtype])


def check_rms_norm(rows: int, C: int, dtype: torch.dtype) -> None:
    x, weight = 3 * normal(2, rows, 2 * C, dtype=dtype)[..., C:], 1 + normal(C, dtype=dtype, seed=1)
    for each in (x, x.contiguous()):
        assert_close(rms_norm(each, weight, EPS), rms(x, weight), LIMIT[dtype])


def check_swiglu(rows: int, width: int, dtype: torch.dtype) -> None:
    x = normal(2, rows, 2 * width, dtype=dtype)
    a, b = x.double().chunk(2, -1)
    assert_close(swiglu(x), F.silu(a) * b, LIMIT[dtype])


@dtypes
@pytest.mark.parametrize("T", [1, 2, 3, 35])
def test_residual_convolution(T: int, dtype: torch.dtype) -> None:
    check_residual_convolution(2, T, 24, dtype)


@dtypes
@pytest.mark.parametrize("T", [1, 2, 3, 19])
def test_query_key(T: int, dtype: torch.dtype) -> None:
    check_query_key(3, T, 2, 24, dtype, m=6)


@dtypes
@pytest.mark.parametrize("shape", [(3, 40), (2, 5, 40)])
def test_the_swiglu_gemm_without_its_kernel(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weights = normal(*shape, dtype=dtype), normal(48, 40, dtype=dtype)
    gate, up = F.linear(x, weights).double().chunk(2, -1)
    assert not swiglu_product.fits(x.flatten(0, -2), weights)
    assert_close(swiglu_product.swiglu_product(x, weights), F.silu(gate) * up, LIMIT[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("concurrent", [False, True])
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 64, 128), (40000, 64, 192), (130, 128, 384), (2048, 2048, 5504)]
)
def test_the_swiglu_gemm_in_its_kernel(rows: int, inputs: int, outputs: int, concurrent: bool, monkeypatch) -> None:
    if swiglu_product.available():
        pytest.skip(swiglu_product.available())
    monkeypatch.setattr(swiglu_product, "LEAST_ROWS", 1)
    x, weights = normal(rows, inputs, dtype=torch.bfloat16), normal(2 * outputs, inputs, dtype=torch.bfloat16)
    weights *= 3 / inputs**0.5
    assert swiglu_product.fits(x, weights)
    gate, up = (x.double() @ weights.double().T).chunk(2, -1)
    found = swiglu_product.swiglu_product(x, weights, concurrent=concurrent)
    assert_close(found, F.silu(gate) * up, 4e-3)


@dtypes
def test_norms_and_gates(dtype: torch.dtype) -> None:
    check_norm_gate(3, 24, dtype)
    check_rms_norm(3, 24, dtype)
    check_swiglu(3, 40, dtype)


def test_a_sequence_may_be_split_anywhere() -> None:
    h, weights = normal(2, 37, 16), (normal(16), normal(16, 1, 4), normal(16, seed=1), normal(16, seed=2))

    def run(*sizes: int) -> list[torch.Tensor]:
        cache = torch.zeros(2, 3, 16, device=DEVICE)
        parts = [residual_convolution(x.contiguous(), cache, *weights, EPS) for x in h.split(sizes, 1)]
        return [torch.cat(each, 1) for each in zip(*parts, strict=True)]

    for whole, split in zip(run(37), run(1, 2, 32, 1, 1), strict=True):
        assert torch.equal(whole, split)


def check_packed(run: Callable[..., tuple[torch.Tensor, ...]], channels: int) -> None:
    """Check that `run` gives packed sequences the results of each alone, and ignores old caches at position 0."""
    lengths, starts, slots = [5, 0, 1, 40, 2, 16], [0, 3, 7, 16, 21, 0], [4, 1, 6, 0, 3, 5]
    ends = torch.tensor([0, *lengths], device=DEVICE).cumsum(0, dtype=torch.int32)
    start, at = torch.tensor(starts, dtype=torch.int32, device=DEVICE), torch.tensor(slots, device=DEVICE)
    tokens, pages = normal(1, sum(lengths), channels), normal(7, 2, 3, channels, seed=1)[:, 0]
    expected, outputs = pages.clone(), []
    for s, (slot, piece) in enumerate(zip(slots, tokens.split(lengths, 1), strict=True)):
        if lengths[s]:
            window = expected[slot : slot + 1].clone() * (starts[s] > 0)
            outputs.append(run(piece.contiguous(), window, start[s : s + 1]))
            expected[slot] = window[0]
    found = run(tokens, pages, start, sequences=Packed(ends, start, at, sum(lengths)))
    for got, single in zip(found, zip(*outputs, strict=True), strict=True):
        assert_close(got, torch.cat(single, 1).double(), 1e-6)
    assert torch.equal(pages[[1, 2]], expected[[1, 2]])
    assert_close(pages, expected.double(), 1e-6)


def test_packed_sequences_in_residual_convolution() -> None:
    weights = (normal(24), normal(24, 1, 4), normal(24), normal(24, seed=1))
    check_packed(lambda h, cache, _, **packing: residual_convolution(h, cache, *weights, EPS, **packing), 24)


def test_packed_sequences_in_query_key() -> None:
    conv_q, conv_k = ((normal(48, 1, 4, seed=seed), normal(48, seed=seed)) for seed in (1, 2))
    rope, bias = (normal(6, 12), normal(6, 12, seed=1)), normal(2)

    def run(x: torch.Tensor, cache: torch.Tensor, start: torch.Tensor, **packing: Any) -> tuple[torch.Tensor, ...]:
        return query_key(x, cache, conv_q, conv_k, rope, start, x[..., :2].contiguous(), bias, 0.1, **packing)

    check_packed(run, 48)


def test_a_nan_stays_in_its_sequence() -> None:
    h, cache = normal(3, 5, 16), torch.zeros(3, 3, 16, device=DEVICE)
    h[1, 2], cache[1] = float("nan"), float("nan")
    weights = normal(16), normal(16, 1, 4), normal(16, seed=1), normal(16, seed=2)
    for out in residual_convolution(h, cache, *weights, EPS):
        assert out[1].isnan().any()
        assert not out[[0, 2]].isnan().any()
    assert not cache[[0, 2]].isnan().any()


def test_wrong_layouts_are_named() -> None:
    h, cache, weights = normal(2, 4, 16), normal(2, 3, 16), (normal(16), normal(16, 1, 4), normal(16), normal(16))
    elsewhere = normal(16).to("meta")
    conv, angles = (normal(20, 1, 4), normal(20)), (normal(4, 3), normal(4, 3))
    heads = (torch.zeros(2, dtype=torch.int32, device=DEVICE), normal(2, 4, 3), normal(3), 1.0)
    long = torch.empty(1, (1 << 27) + 1, 16, device="meta")
    for function, arguments, why in (
        (residual_convolution, (h[:, ::2], cache, *weights), "h has strides"),
        (residual_convolution, (h, cache[:1], *weights), r"cache has shape \(1, 3, 16\)"),
        (residual_convolution, (h, cache, *weights[:3], normal(8)), r"next_norm has shape \(8,\)"),
        (residual_convolution, (h, cache, *weights[:2], elsewhere, weights[3]), f"is on meta: .* is on {DEVICE}"),
        (residual_convolution, (long,) * 6, r"at most 2\^31 elements, split it"),
        (norm_gate, (h, h[:, :2], normal(16), normal(16)), "gate has shape"),
        (norm_gate, (h, h, normal(16), normal(32)[::2]), r"bias has strides \(2,\)"),
        (norm_gate, (h, h, normal(16), elsewhere), f"is on meta: .* is on {DEVICE}"),
        (rms_norm, (h, normal(8)), r"weight has shape \(8,\)"),
        (rms_norm, (h, normal(32)[::2]), r"weight has strides \(2,\)"),
        (rms_norm, (h, elsewhere), f"is on meta: .* is on {DEVICE}"),
    ):
        with pytest.raises(ValueError, match=why):
            function(*arguments, EPS)
    with pytest.raises(ValueError, match="x has 7 columns: must be even"):
        swiglu(normal(2, 7))
    with pytest.raises(ValueError, match=r"x has 20 columns: must be 18, for 3 heads of 6 channels \(rope\)"):
        query_key(normal(2, 4, 20), normal(2, 3, 20), conv, conv, angles, *heads)


def test_unsupported_arguments_of_query_key_are_named() -> None:
    conv, angles, x, cache = (
        (normal(18, 1, 4), normal(18)),
        (normal(4, 3), normal(4, 3)),
        normal(2, 4, 18),
        normal(2, 3, 18),
    )
    given = {"rope": angles, "position": torch.zeros(2, dtype=torch.int32, device=DEVICE), "lr_logits": normal(2, 4, 3)}
    given |= {"lr_bias": normal(3), "base_lr": 1.0}
    for name, wrong, why in (
        ("position", torch.zeros(1, dtype=torch.int32, device=DEVICE), r"position has shape \(1,\)"),
        (
            "position",
            torch.zeros(2, 2, dtype=torch.int32, device=DEVICE),
            r"position has shape \(2, 2\): expected \(2, 3\)",
        ),
        ("position", torch.zeros(2, device=DEVICE), "position.dtype is torch.float32"),
        ("lr_logits", normal(2, 2, 3), r"lr_logits has shape \(2, 2, 3\)"),
        ("lr_logits", normal(1, 4, 3), r"lr_logits has shape \(1, 4, 3\)"),
        ("lr_bias", normal(1), r"lr_bias has shape \(1,\)"),
        ("lr_bias", normal(6)[::2], r"lr_bias has strides \(2,\)"),
        ("rope", tuple(each.double() for each in angles), "rope's cos.dtype is torch.float64"),
        ("lr_bias", normal(3).to("meta"), f"lr_bias is on meta: x is on {DEVICE}"),
    ):
        with pytest.raises(ValueError, match=why):
            query_key(x, cache, conv, conv, **(given | {name: wrong}))


def test_no_token_changes_no_cache() -> None:
    cache, weights = normal(2, 3, 16), (normal(16), normal(16, 1, 4), normal(16), normal(16))
    before = cache.clone()
    assert [x.shape for x in residual_convolution(normal(2, 0, 16), cache, *weights, EPS)] == [(2, 0, 16)] * 2
    conv, angles = weights[1:3], (normal(4, 4), normal(4, 4))
    heads = (torch.zeros(2, dtype=torch.int32, device=DEVICE), normal(2, 0, 2), normal(2), 1.0)
    q, k, lr = query_key(normal(2, 0, 16), cache, conv, conv, angles, *heads)
    assert (q.shape, k.shape, lr.shape) == ((2, 0, 2, 8), (2, 0, 2, 8), (2, 0, 2))
    assert torch.equal(cache, before)


@pytest.mark.gpu
@dtypes
def test_at_the_size_of_a_layer(dtype: torch.dtype) -> None:
    for B, T in ((2, 2048), (1, 37), (512, 1)):
        check_residual_convolution(B, T, 2048, dtype)
        check_query_key(B, T, 32, 64, dtype)
        check_query_key(B, T, 16, 96, dtype)
        check_norm_gate(min(B * T, 500), 2048, dtype)
        check_rms_norm(min(B * T, 500), 2048, dtype)
        check_swiglu(min(B * T, 500), 5504, dtype)
    check_query_key(16, 1100, 32, 64, dtype)
