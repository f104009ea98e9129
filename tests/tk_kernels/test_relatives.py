"""The layers in `relatives` match their formulas, and Theorems 1 and 2 of the TTT paper hold."""

import torch
import torch.nn.functional as F
from reference_cases import OPERATORS, case, naive
from tensors import OUTPUT_ERROR

from harness.measure.correctness import relative_error
from tk_kernels.reference.naive import fresh_state, layer_norm
from tk_kernels.relatives import drop_in_attention, initial_query, two_layer_relu
from tk_kernels.relatives.non_causal import gated, reversed_time
from tk_kernels.relatives.theorems import linear_attention, nadaraya_watson

EXACT = OUTPUT_ERROR[torch.float64]


def test_two_layer_relu_with_gradients_by_hand() -> None:
    args = case("mlp", 4, batch=1, heads=1, mini_batch=4)
    q, k, v, lr = (x[0, :, 0] for x in args[:4])
    weights = W1, b1, W2, b2 = tuple(x[0, 0] for x in args.state[:4])
    expected = torch.empty_like(q)
    for i in range(4):
        step = [torch.zeros_like(x) for x in weights]
        for j in range(i + 1):
            hidden = k[j] @ W1 + b1
            error = k[j] + hidden.clamp_min(0) @ W2 + b2 - v[j]
            back = (W2 @ error) * (hidden > 0)
            for total, x in zip(step, (k[j].outer(back), back, hidden.clamp_min(0).outer(error), error), strict=True):
                total += args.token_scale[i] * lr[j] * x
        hidden = (q[i] @ (W1 - step[0]) + b1 - step[1]).clamp_min(0)
        expected[i] = q[i] + hidden @ (W2 - step[2]) + b2 - step[3]
    assert relative_error(two_layer_relu.forward(weights, q, k, v, lr, args.token_scale), expected) < EXACT


def test_initial_query_reads_the_weights_of_the_mini_batch_s_start() -> None:
    args = case("linear", 40, batch=1, heads=1)
    q, k, v, lr = (x[0, :, 0] for x in args[:4])
    ln = (args.ln_weight[0], args.ln_bias[0])
    begun = fresh_state(args.state.W[0, 0], args.state.b[0, 0])
    out, _ = initial_query.forward(q, k, v, lr, args.token_scale, *ln, begun)
    for start in (0, 16, 32):
        _, state = OPERATORS["linear"].forward(*args.tokens(slice(start)), *args.outer(), args.state)
        part = slice(start, start + 16)
        expected = q[part] + layer_norm(q[part] @ state.W[0, 0] + state.b[0, 0], *ln)
        assert relative_error(out[part], expected) < EXACT


def test_drop_in_attention_has_no_learned_outer_parameters() -> None:
    args = case("linear", 21, heads=2)
    state = drop_in_attention.fresh_state(args.q, mini_batch=8)
    plain = args._replace(
        lr=torch.full((2, 21, 2), 0.5 / 16, dtype=torch.float64),
        token_scale=1 / torch.arange(1.0, 9.0, dtype=torch.float64),
        ln_weight=torch.ones(2, 16, dtype=torch.float64),
        ln_bias=torch.zeros(2, 16, dtype=torch.float64),
        state=state,
    )
    out, end = drop_in_attention.attention(*args[:3], state)
    assert relative_error(out, naive("linear", plain)[0]) < EXACT
    assert end.position.tolist() == [5, 5]
    first, middle = drop_in_attention.attention(*(x[:, :9] for x in args[:3]), state)
    second, _ = drop_in_attention.attention(*(x[:, 9:] for x in args[:3]), middle)
    assert relative_error(torch.cat((first, second), 1), out) < EXACT


def test_gate_and_reversed_pass() -> None:
    x, alpha, beta = case("linear", 20, batch=1).q.flatten(2), torch.randn(32).double(), torch.randn(32).double()

    def layer(x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (2, 16))
        return drop_in_attention.attention(heads, heads.roll(1, -1), heads.flip(-1))[0].flatten(2)

    both = gated(reversed_time(layer), beta)(gated(layer, alpha)(x))
    h = alpha.tanh() * layer(x) + x
    backwards = layer(torch.stack([h[:, 19 - t] for t in range(20)], 1))
    for t in range(20):
        expected = beta.tanh() * backwards[:, 19 - t] + h[:, t]
        assert relative_error(both[:, t], expected) < EXACT
    assert relative_error(layer(x.flip(1)).flip(1), layer(x)) > 1e-3  # direction matters


def test_theorem_1_linear_attention() -> None:
    q, k, v = (x[0, :, 0] for x in case("linear", 12, batch=1, heads=1)[:3])
    assert relative_error(linear_attention(q, k, v), (q @ k.T).tril() @ v) < EXACT


def test_theorem_2_softmax_attention() -> None:
    q, k, v = case("linear", 23)[:3]
    expected = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)
    assert relative_error(nadaraya_watson(q, k, v), expected) < EXACT
    assert nadaraya_watson(100 * q, 100 * k, v).isfinite().all()
