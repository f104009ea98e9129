"""GEMMs with few rows match PyTorch, with fused norms, residuals and SwiGLU."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from tests.interpreter import DEVICE, INTERPRETED
from tests.tk_kernels.tensors import assert_close, normal
from tk_kernels.edges.few_rows import (
    MANY_OUTPUTS,
    MOST_ROWS,
    MOST_ROWS_FEW_OUTPUTS,
    SHARED_BYTES,
    Norm,
    few_rows_gemm,
    fits,
    shared_bytes,
    suits,
)

EPS = 1e-6
LIMIT = {torch.float32: 2e-6, torch.bfloat16: 8e-3 if INTERPRETED else 4e-3}
BF16 = torch.bfloat16

pytestmark = pytest.mark.usefixtures("triton_kernels")


@pytest.mark.parametrize(
    ("dtype", "rows"), [(torch.float32, 1), (torch.float32, 2), (BF16, 1), (BF16, 2), (BF16, 3), (BF16, 21)]
)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        *itertools.product(["nothing", "norm", "norm and gate"], ["nothing", "residual"]),
        *[("nothing", "swiglu"), ("norm", "swiglu")],
    ],
)
def test_fused_operations_around_a_gemm(dtype: torch.dtype, rows: int, before: str, after: str) -> None:
    K, N = 160, 37
    x, gate = normal(rows, 1, K, dtype=dtype), normal(rows, 1, 3 * K, dtype=dtype)[..., K : 2 * K]
    weights = normal(2 * N, K, dtype=dtype) / K**0.5
    weight, bias = 1 + 0.2 * normal(K, dtype=dtype), normal(K, dtype=dtype)
    operand, norm = x.double(), None
    if before == "norm":
        operand, norm = F.rms_norm(operand, (K,), weight.double(), EPS), Norm(weight, EPS)
    if before == "norm and gate":
        x = x + 0.5
        normed = F.layer_norm(x.double(), (K,), weight.double(), bias.double(), EPS)
        operand, norm = normed * F.gelu(gate.double(), approximate="tanh"), Norm(weight, EPS, bias, gate)
    if after == "swiglu":
        a, b = (operand @ weights.double().T).chunk(2, -1)
        assert_close(few_rows_gemm(x, weights, norm, swiglu=True), F.silu(a) * b, 2 * LIMIT[dtype])
        return
    out = normal(rows, 1, 2 * N, dtype=dtype, seed=5)
    expected = operand @ weights.double().T + (out.double() if after == "residual" else 0)
    got = few_rows_gemm(x, weights, norm, out=out if after == "residual" else None)
    assert (got is out) is (after == "residual")
    assert_close(got, expected, 1.5 * LIMIT[dtype])


@pytest.mark.parametrize(("rows", "swiglu"), [(5, False), (5, True), (MOST_ROWS, True)])
def test_many_outputs_are_computed_in_larger_tiles(rows: int, swiglu: bool) -> None:
    N = MANY_OUTPUTS + 3
    x, weights = normal(rows, 136, dtype=BF16), normal(N * (1 + swiglu), 136, dtype=BF16) / 136**0.5
    gemm = x.double() @ weights.double().T
    expected = F.silu(gemm[:, :N]) * gemm[:, N:] if swiglu else gemm
    assert_close(few_rows_gemm(x, weights, swiglu=swiglu), expected, 2 * LIMIT[BF16])


def test_nothing_is_written_after_the_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, x, weights = normal(32, 37, dtype=BF16), normal(3, 160, dtype=BF16), normal(37, 160, dtype=BF16)
    before = memory.clone()
    monkeypatch.setattr(torch, "empty", lambda *shape, **_: memory[:3].view(shape))
    got = few_rows_gemm(x, weights)
    assert got.data_ptr() == memory.data_ptr()
    assert torch.equal(memory[3:], before[3:])


@pytest.mark.parametrize(("rows", "dtype"), [(2, torch.float32), (3, BF16)])
def test_more_inputs_than_a_program_reads_at_once(rows: int, dtype: torch.dtype) -> None:
    x, weights = normal(rows, 5000, dtype=dtype), normal(3, 5000, dtype=dtype) / 5000**0.5
    assert_close(few_rows_gemm(x, weights), x.double() @ weights.double().T, LIMIT[dtype])


def test_a_row_of_one_value_has_no_negative_variance() -> None:
    x, weights, ones = torch.full((1, 100), 300.1, device=DEVICE), normal(4, 100), torch.ones(100, device=DEVICE)
    got = few_rows_gemm(x, weights, Norm(ones, EPS, ones, 30 * ones[None]))
    assert_close(got, 30 * weights.double().sum(1)[None], 0.1)  # nearly only the norm's bias


def test_rows_may_be_columns_of_a_wider_tensor() -> None:
    wide, weights = normal(4, 1, 300, dtype=BF16), normal(5, 100, dtype=BF16) / 10
    for x in (wide[:2, :, 100:200], wide[..., 200:]):
        assert_close(few_rows_gemm(x, weights), x.double() @ weights.double().T, LIMIT[BF16])


def test_unsupported_arguments_are_named() -> None:
    weights, ones, gate = normal(8, 64), torch.ones(64, device=DEVICE), normal(2, 64)
    norm_gate = Norm(ones, EPS, ones, gate)
    for x, wrong, options, why in (
        (normal(MOST_ROWS + 1, 64), weights, {}, "rows"),
        (normal(0, 64), weights, {}, "rows"),
        (ones, weights, {}, "rows"),
        (gate, weights.to(BF16), {}, "dtype"),
        (gate, weights[:3], {"swiglu": True}, "even len"),
        (gate, weights[:, :32], {}, "weights"),
        (normal(2, 32), weights[:, :32], {}, "contiguous"),
        (normal(64, 2).T, weights, {}, "contiguous"),
        (gate, weights, {"out": torch.zeros(2, 9, device=DEVICE)}, "out"),
        (gate, weights, {"out": torch.zeros(2, 16, device=DEVICE)[:, :8]}, "contiguous"),
        (gate, weights, {"before": Norm(ones[:8], EPS)}, "norm weight"),
        (gate, weights, {"before": Norm(normal(128)[::2], EPS)}, "contiguous"),
        (gate, weights, {"before": Norm(ones, EPS, gate=gate)}, "both a bias and an output gate"),
        (gate, weights, {"before": Norm(ones, EPS, ones[:8], gate)}, "norm bias"),
        (gate[:1], weights, {"before": norm_gate}, "gate"),
        (gate, weights, {"before": Norm(ones, EPS, ones, normal(64, 2).T)}, "contiguous"),
        (gate, weights, {"before": norm_gate, "swiglu": True}, "swiglu: takes neither"),
        (gate, weights, {"out": gate, "swiglu": True}, "swiglu: takes neither"),
        (gate, weights.to("meta"), {}, "weights is on meta"),
        (gate, weights, {"before": Norm(ones.to("meta"), EPS)}, "norm weight is on meta"),
        (gate, weights, {"before": Norm(ones, EPS, ones, gate.to("meta"))}, "gate is on meta"),
        (gate.to("meta").as_strided((2, 64), (1 << 31, 1)), weights, {}, r"within 2\^31 elements"),
    ):
        with pytest.raises(ValueError, match=why):
            few_rows_gemm(x, wrong, **options)


def test_few_rows_of_16_bits_suit() -> None:
    few, many = (normal(outputs, 8, dtype=BF16) for outputs in (8, MANY_OUTPUTS))
    for weights, swiglu, most in (
        (few, False, MOST_ROWS_FEW_OUTPUTS),
        (many, True, MOST_ROWS_FEW_OUTPUTS),  # two rows of weights per output
        (many, False, MOST_ROWS),
    ):
        assert suits(normal(most, 1, 8, dtype=BF16), weights, swiglu=swiglu)
        assert not suits(normal(most + 1, 1, 8, dtype=BF16), weights, swiglu=swiglu)
    for x in (normal(0, 8, dtype=BF16), normal(1, 8), normal(1, 8, dtype=torch.float16)):
        assert not suits(x, few)
    assert not suits(normal(1, 8), normal(8, 8))
    assert not suits(normal(1, 4, dtype=BF16), few[:, :4])
    assert fits(normal(1, 8, dtype=BF16), few) is (DEVICE == "cuda" and shared_bytes(few.device) >= SHARED_BYTES)
