"""Is each relative its own formula, written here once more and naively, and do both theorems of the paper hold?"""

import pytest
import torch
import torch.nn.functional as F
from reference_cases import OPERATORS, Case, case, generate, naive
from tolerances import OUTPUT_ERROR, relative_error

from tk_kernels.reference.layer import Variant
from tk_kernels.relatives import attention as relatives

EXACT = OUTPUT_ERROR[torch.float64]
VARIANTS = {
    "no norm, ReLU": relatives.NO_NORM_RELU,
    "initial query": relatives.INITIAL_QUERY,
    "linear attention": relatives.LINEAR_ATTENTION,
    "no residual": Variant(residual=False),
    "no bias": Variant(bias=False),
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("name", VARIANTS)
def test_variant_is_its_formula_in_every_form(operator: str, name: str) -> None:
    module, args, variant = OPERATORS[operator], case(operator, 35, batch=1), VARIANTS[name]
    expected = naive(operator, args, variant)
    assert relative_error(naive(operator, args), expected) > 1e-3  # it is another function
    for form in ("dual", "primal"):
        assert relative_error(module.forward(*args, form=form, variant=variant)[0], expected) < EXACT
    for state in (args.state, module.primal_state(args.state)):
        assert relative_error(generate(operator, args, state, variant=variant)[0], expected) < EXACT


def test_two_layer_relu_residual_transcribed() -> None:
    """f(k) = k + relu(k W1 + b1) W2 + b2 learns v by 1/2 |f(k) - v|^2; one mini-batch, its gradients by hand."""
    args = case("mlp", 4, batch=1, heads=1, mini_batch=4)
    q, k, v, lr = (x[0, :, 0] for x in args[:4])
    W1, b1, W2, b2 = (x[0, 0] for x in args.state[:4])
    expected = torch.empty_like(q)
    for i in range(4):
        step = [torch.zeros_like(x) for x in (W1, b1, W2, b2)]
        for j in range(i + 1):
            hidden = k[j] @ W1 + b1
            error = k[j] + hidden.clamp_min(0) @ W2 + b2 - v[j]
            back = (W2 @ error) * (hidden > 0)
            for total, x in zip(step, (k[j].outer(back), back, hidden.clamp_min(0).outer(error), error), strict=True):
                total += args.token_scale[i] * lr[j] * x
        hidden = (q[i] @ (W1 - step[0]) + b1 - step[1]).clamp_min(0)
        expected[i] = q[i] + hidden @ (W2 - step[2]) + b2 - step[3]
    out, _ = OPERATORS["mlp"].forward(*args, variant=relatives.NO_NORM_RELU)
    assert relative_error(out[0, :, 0], expected) < EXACT


@pytest.mark.parametrize(("learner", "base_lr"), [("linear", 1.0), ("mlp", 0.1)])
def test_attention_has_no_learned_outer_parameters(learner: str, base_lr: float) -> None:
    args = case(learner, 21)
    state = relatives.attention_state(args.q, learner=learner, mini_batch=8)
    plain = Case(
        *args[:3],
        torch.full((2, 21, 2), base_lr / 2 / 16, dtype=torch.float64),
        1 / torch.arange(1.0, 9.0, dtype=torch.float64),
        torch.ones(2, 16, dtype=torch.float64),
        torch.zeros(2, 16, dtype=torch.float64),
        state,
    )
    out, end = relatives.attention(*args[:3], state)
    assert relative_error(out, naive(learner, plain)) < EXACT
    assert end.position.tolist() == [5, 5]
    first, middle = relatives.attention(*(x[:, :9] for x in args[:3]), state)
    second, _ = relatives.attention(*(x[:, 9:] for x in args[:3]), middle)
    assert relative_error(torch.cat((first, second), 1), out) < EXACT


def test_attention_starts_from_a_seed() -> None:
    q = torch.zeros(1, 2, 3, 4)
    assert relatives.attention(q, q, q)[1].W.shape == (1, 3, 4, 4)
    assert not torch.equal(relatives.attention_state(q).W, relatives.attention_state(q, seed=1).W)
    with pytest.raises(ValueError, match="learner is 'rnn': supported are 'linear', 'mlp'"):
        relatives.attention_state(q, learner="rnn")


def test_gate_and_reversed_pass() -> None:
    """The video model: h = tanh(alpha) TTT(x) + x, then tanh(beta) rev(TTT(rev(h))) + h."""
    x, alpha, beta = case("linear", 20, batch=1).q.flatten(2), torch.randn(32).double(), torch.randn(32).double()

    def layer(x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (2, 16))
        return relatives.attention(heads, heads.roll(1, -1), heads.flip(-1))[0].flatten(2)

    both = relatives.gated(relatives.reversed_time(layer), beta)(relatives.gated(layer, alpha)(x))
    h = layer(x)
    for t in range(20):
        h[:, t] = alpha.tanh() * h[:, t] + x[:, t]
    backwards = layer(torch.stack([h[:, 19 - t] for t in range(20)], 1))
    for t in range(20):
        expected = beta.tanh() * backwards[:, 19 - t] + h[:, t]
        assert relative_error(both[:, t], expected) < EXACT
    assert relative_error(layer(x.flip(1)).flip(1), layer(x)) > 1e-3  # direction matters


def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(v)
    for t in range(q.shape[1]):
        for j in range(t + 1):
            out[:, t] += (q[:, t] * k[:, j]).sum(-1, keepdim=True) * v[:, j]
    return out


@pytest.mark.parametrize("form", ["dual", "primal"])
def test_theorem_1_linear_attention(form: str) -> None:
    """Linear f, one batch of size T, eta 1/2, W0 = 0, loss |f(k) - v|^2: linear attention (Section 2.6)."""
    q, k, v = case("linear", 12)[:3]
    module, ones = OPERATORS["linear"], torch.ones(12, dtype=torch.float64)
    state = module.init_state(torch.zeros(2, 16, 16), torch.zeros(2, 1, 16), 2, 12, torch.float64)
    norm = torch.ones(2, 16, dtype=torch.float64)
    lr = torch.ones(2, 12, 2, dtype=torch.float64)  # eta / the 1/2 of our loss
    out, _ = module.forward(q, k, v, lr, ones, norm, norm, state, form=form, variant=relatives.LINEAR_ATTENTION)
    assert relative_error(out, linear_attention(q, k, v)) < EXACT


def test_theorem_2_softmax_attention() -> None:
    """A Nadaraya-Watson learner with an exponential kernel: softmax attention (Section 2.6), in pieces too."""
    q, k, v = case("linear", 23)[:3]
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    expected = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)
    out, _ = relatives.nadaraya_watson(q, k, v)
    assert relative_error(out, expected) < EXACT
    state, outputs = None, []
    for cut in (slice(1), slice(1, 10), slice(10, 23)):
        out, state = relatives.nadaraya_watson(q[:, cut], k[:, cut], v[:, cut], state)
        outputs.append(out)
    assert relative_error(torch.cat(outputs, 1), expected) < EXACT


def test_kernel_estimator_with_another_kernel_and_extreme_inputs() -> None:
    q, k, v = case("linear", 6, batch=1, heads=1)[:3]

    def gaussian(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return -torch.cdist(q, k).square() / 2

    out, _ = relatives.nadaraya_watson(q, k, v, log_kernel=gaussian)
    weight = [(-(q[0, 5, 0] - k[0, j, 0]).square().sum() / 2).exp() for j in range(6)]
    expected = sum(w * v[0, j, 0] for j, w in enumerate(weight)) / sum(weight)
    assert relative_error(out[0, 5, 0], expected) < EXACT
    assert relatives.nadaraya_watson(100 * q, 100 * k, v)[0].isfinite().all()
