"""The cost formulas give the numbers of the design, and count what the products they name take."""

import subprocess
import sys

import pytest

from tk_kernels.ttt_linear import cost as linear
from tk_kernels.ttt_mlp import cost as mlp

COPY_BANDWIDTH = 2.96e12  # bytes a second, one H100
COSTS = {"linear": linear, "mlp": mlp}


def floor_us(bytes_moved: float) -> float:
    return bytes_moved / COPY_BANDWIDTH * 1e6


def product(rows: int, inner: int, columns: int) -> int:
    """FLOPs of a matrix product."""
    return 2 * rows * inner * columns


def test_mlp_flops_of_a_token() -> None:
    assert mlp.forward_flops(1, 1, 32, 64) / 1e6 == pytest.approx(8.0, rel=0.01)


def test_flops_are_the_sum_of_the_products() -> None:
    """2 m n k for each product of one mini-batch, as in ttt_layer.md."""
    m, D, F = 16, 64, 256
    inside = product(m, D, m) + product(m, m, D)
    assert linear.forward_flops(1, m, 1, D) == 2 * product(m, D, D) + product(D, m, D) + inside
    weights = 2 * product(m, D, F) + 2 * product(m, F, D) + product(m, D, F) + product(D, m, F) + product(F, m, D)
    inside = product(m, D, m) + product(m, m, F) + product(m, F, m) + product(m, m, D)
    assert mlp.forward_flops(1, m, 1, D) == weights + inside


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_forward_traffic(cost) -> None:
    assert floor_us(cost.token_bytes(16, 2048, 32, 64)) / 1e3 == pytest.approx(0.18, rel=0.02)
    state = cost.state_bytes(16, 32, 64)
    assert cost.forward_bytes(16, 2048, 32, 64) == cost.token_bytes(16, 2048, 32, 64) + 4 * 16 * 2048 * 32 + 2 * state


def test_state_sizes() -> None:
    assert linear.state_bytes(1, 32, 64) == 32 * (64 * 64 + 64) * 4
    assert mlp.state_bytes(1, 32, 64) == 32 * (2 * 64 * 256 + 256 + 64) * 4


def test_generate_floors_of_one_layer() -> None:
    assert floor_us(linear.generate_bytes(512, 32, 64)) == pytest.approx(69, rel=0.03)
    published = {"form": "primal", "state": "float16", "sum_element_bytes": 2}
    assert floor_us(linear.generate_bytes(512, 32, 64, **published)) == pytest.approx(3 * 134.2e6 / 2.96e6, rel=0.05)


def test_generate_floors_of_the_model() -> None:
    """The floors of the 1.3B model at B=512 differ by 24 layers of generate traffic: 1.7 ms (Linear), 14.8 ms (MLP)."""
    for cost, saved_ms in ((linear, 5.3 - 3.6), (mlp, 28.5 - 13.7)):
        dual = cost.generate_bytes(512, 32, 64)
        primal = cost.generate_bytes(512, 32, 64, form="primal", state="float16", sum_element_bytes=2)
        assert 24 * floor_us(primal - dual) / 1e3 == pytest.approx(saved_ms, rel=0.05)


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_generate_orders(cost) -> None:
    """A dual token costs at most what a forward token does, and planes lie between float16 and float32."""
    assert cost.generate_flops(1, 32, 64) <= cost.forward_flops(1, 1, 32, 64)
    assert cost.generate_flops(1, 32, 64, form="primal") > cost.generate_flops(1, 32, 64)
    half, planes, full = (cost.generate_bytes(1, 32, 64, state=x) for x in ("float16", "planes", "float32"))
    assert half < planes < full
    assert cost.generate_bytes(1, 32, 64, form="primal") > full


def test_flops_of_a_primal_token_are_the_sum_of_its_products() -> None:
    D, F = 64, 256
    assert linear.generate_flops(2, 3, D, form="primal") == 2 * 3 * (
        2 * product(1, D, D) + product(D, 1, D) + 2 * D * D
    )
    weights = 5 * product(1, D, F)  # k W1, x2 W2, g2 W2^T, q W1, x2bar W2
    gradients = product(D, 1, F) + product(F, 1, D) + 2 * 2 * D * F  # added to their sums, which are then applied
    assert mlp.generate_flops(2, 3, D, form="primal") == 2 * 3 * (weights + gradients)


def test_flops_of_a_dual_token_are_the_mean_of_a_mini_batch() -> None:
    """Token t has the products with t rows, its own among them; the last one also the update by all rows."""
    m, D, F = 16, 64, 256
    tokens = range(1, m + 1)
    steps = sum(2 * product(1, D, D) + 2 * product(1, D, t) for t in tokens)
    assert m * linear.generate_flops(1, 1, D, m) == steps + product(D, m, D)
    steps = sum(5 * product(1, D, F) + 2 * product(1, D, t) + 2 * product(1, F, t) for t in tokens)
    assert m * mlp.generate_flops(1, 1, D, m) == steps + product(D, m, F) + product(F, m, D)


def test_traffic_of_a_token_is_the_sum_of_what_it_reads_and_writes() -> None:
    m, D, F = 16, 64, 256
    rows = (m - 1) / 2 + 1  # earlier ones read, one written
    passes = 2 * (m - 1) / m  # of a sum: read at every token but the first, written at every one but the last
    ends = 4 * 2 * D  # q, k, v, z in 16 bits
    for cost, weights, biases, row in ((linear, D * D, D, 2 * D), (mlp, 2 * D * F, D + F, 2 * (D + F))):
        for state, read, rewrite in (("planes", 2, 6), ("float32", 4, 4), ("float16", 2, 2), ("bfloat16", 2, 2)):
            kept = weights * (read + rewrite / m) + 4 * biases + ends
            assert cost.generate_bytes(2, 3, D, m, state=state) == 2 * 3 * (kept + 2 * row * rows)
            found = cost.generate_bytes(2, 3, D, m, form="primal", state=state, sum_element_bytes=2)
            assert found == 2 * 3 * (kept + passes * (2 * weights + 4 * biases))


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_unknown_names_are_errors(cost) -> None:
    with pytest.raises(ValueError, match="form is 'fast'"):
        cost.generate_bytes(1, 32, 64, form="fast")
    with pytest.raises(ValueError, match="form is 'fast'"):
        cost.generate_flops(1, 32, 64, form="fast")
    with pytest.raises(ValueError, match="state is 'int8'"):
        cost.generate_bytes(1, 32, 64, state="int8")


def test_costs_need_no_torch() -> None:
    modules = "from tk_kernels.ttt_linear import cost; from tk_kernels.ttt_mlp import cost"
    program = f"import sys; {modules}; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
