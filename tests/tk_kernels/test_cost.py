"""The cost formulas of both operators equal the sums over their matmuls and memory accesses."""

import pytest

from tk_kernels.cost import COSTS

linear, mlp = COSTS["linear"], COSTS["mlp"]


def matmul(rows: int, inner: int, columns: int) -> int:
    return 2 * rows * inner * columns


def test_flops_are_the_sum_of_the_matmuls() -> None:
    """The FLOPs of one mini-batch are those of the matmuls in ttt_layer.md."""
    m, D, F = 16, 64, 256
    inside = matmul(m, D, m) + matmul(m, m, D)
    assert linear.forward_flops(1, m, 1, D) == 2 * matmul(m, D, D) + matmul(D, m, D) + inside
    weights = 2 * matmul(m, D, F) + 2 * matmul(m, F, D) + matmul(m, D, F) + matmul(D, m, F) + matmul(F, m, D)
    inside = matmul(m, D, m) + matmul(m, m, F) + matmul(m, F, m) + matmul(m, m, D)
    assert mlp.forward_flops(1, m, 1, D) == weights + inside


@pytest.mark.parametrize(("cost", "numbers"), [(linear, 64 * 64 + 64), (mlp, 2 * 64 * 256 + 256 + 64)], ids=COSTS)
def test_forward_traffic(cost, numbers: int) -> None:
    tokens, lr, state = 4 * 16 * 2048 * 32 * 64 * 2, 4 * 16 * 2048 * 32, 4 * 16 * 32 * numbers
    assert cost.forward_bytes(16, 2048, 32, 64) == tokens + lr + 2 * state


def test_flops_of_a_primal_token_are_the_sum_of_its_matmuls() -> None:
    D, F = 64, 256
    assert linear.generate_flops(2, 3, D, form="primal") == 2 * 3 * (2 * matmul(1, D, D) + matmul(D, 1, D) + 2 * D * D)
    weights = 5 * matmul(1, D, F)  # k W1, x2 W2, g2 W2^T, q W1, x2bar W2
    gradients = matmul(D, 1, F) + matmul(F, 1, D) + 2 * 2 * D * F  # added to running sums, then applied to the weights
    assert mlp.generate_flops(2, 3, D, form="primal") == 2 * 3 * (weights + gradients)


def test_flops_of_a_dual_token_are_the_mean_of_a_mini_batch() -> None:
    """Token t of m in a mini-batch reads t rows of cached inputs and gradients; token m also updates the weights."""
    m, D, F = 16, 64, 256
    tokens = range(1, m + 1)
    steps = sum(2 * matmul(1, D, D) + 2 * matmul(1, D, t) for t in tokens)
    assert m * linear.generate_flops(1, 1, D, m) == steps + matmul(D, m, D)
    steps = sum(5 * matmul(1, D, F) + 2 * matmul(1, D, t) + 2 * matmul(1, F, t) for t in tokens)
    assert m * mlp.generate_flops(1, 1, D, m) == steps + matmul(D, m, F) + matmul(F, m, D)


def test_traffic_of_a_token_is_the_sum_of_its_reads_and_writes() -> None:
    m, D, F = 16, 64, 256
    rows = (m - 1) / 2 + 1  # reads earlier rows, writes one
    passes = 2 * (m - 1) / m  # m - 1 reads and m - 1 writes of a sum per mini-batch
    token = 4 * 2 * D  # q, k, v and output in 16 bits
    for cost, weights, biases, row in ((linear, D * D, D, 2 * D), (mlp, 2 * D * F, D + F, 2 * (D + F))):
        for state, read, rewrite in (("planes", 2, 6), ("float32", 4, 4), ("float16", 2, 2), ("bfloat16", 2, 2)):
            parameters = weights * (read + rewrite / m) + 4 * biases + token
            row_bytes = 4 if state == "float32" else 2
            assert cost.generate_bytes(2, 3, D, m, state=state) == 2 * 3 * (parameters + row_bytes * row * rows)
            found = cost.generate_bytes(2, 3, D, m, form="primal", state=state)
            assert found == 2 * 3 * (parameters + passes * 4 * (weights + biases))


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_unknown_names_are_errors(cost) -> None:
    with pytest.raises(ValueError, match="form is 'fast'"):
        cost.generate_bytes(1, 32, 64, form="fast")
    with pytest.raises(ValueError, match="form is 'fast'"):
        cost.generate_flops(1, 32, 64, form="fast")
    with pytest.raises(ValueError, match="state is 'int8'"):
        cost.generate_bytes(1, 32, 64, state="int8")
