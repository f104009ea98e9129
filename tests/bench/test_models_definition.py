"""The TTT model is the paper's (arXiv 2407.04620, Section 2): one token at a time, autograd's gradient."""

import pytest
import torch
import torch.nn.functional as F

from bench.models.config import TTTConfig, model_config
from bench.models.factory import from_seed

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS = 21  # one whole mini-batch and a part
TOLERANCE = 1e-12  # float64, two orders of the same sums


def naive_logits(config, weights, ids):
    """Logits after one sequence of ids [T], from the definition alone."""
    h = weights["model.embed_tokens.weight"][ids]
    for index in range(config.layers):
        prefix = f"model.layers.{index}."
        w = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
        if config.backbone == "mamba":
            h = h + convolve(rms(h, w["conv.norm.weight"]), w["conv.conv.weight"], w["conv.conv.bias"])
        s = {key.removeprefix("seq_modeling_block."): value for key, value in w.items()}
        h = h + naive_ttt(config, s, rms(h, w["seq_norm.weight"]))
        x = rms(h, w["ffn_norm.weight"])
        gate, up = (x @ w[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        h = h + (F.silu(gate) * up) @ w["mlp.down_proj.weight"].T
    return rms(h, weights["model.norm.weight"])[-1] @ weights["model.embed_tokens.weight"].T


def rms(x, weight):
    return weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def convolve(x, weight, bias):
    padded = torch.cat((x.new_zeros(3, x.shape[1]), x))
    return torch.stack([(padded[t : t + 4] * weight[:, 0].T).sum(0) + bias for t in range(len(x))])


def naive_ttt(config, w, x):
    q = x @ w["q_proj.weight"].T
    k = x @ w["k_proj.weight"].T if config.backbone == "transformer" else q
    if config.backbone == "mamba":
        q, k = (convolve(q, w[f"conv_{name}.weight"], w[f"conv_{name}.bias"]) for name in "qk")
    v, D = x @ w["v_proj.weight"].T, config.head_dim
    heads = [naive_head(config, w, x, *(y[:, h * D : (h + 1) * D] for y in (q, k, v)), h) for h in range(config.heads)]
    out = F.layer_norm(torch.cat(heads, -1), (config.width,), w["post_norm.weight"], w["post_norm.bias"], 1e-6)
    if config.backbone == "mamba":
        out = F.gelu(x @ w["g_proj.weight"].T, approximate="tanh") * out
    return out @ w["o_proj.weight"].T


def naive_head(config, w, x, q, k, v, head):
    """One head, token by token: W_t = W - s_i * (the sum so far of lr_j times autograd's gradient at W)."""
    b, D = config.mini_batch, config.head_dim
    now = [w[name][head] for name in config.weight_shapes]
    gamma, beta = w["ttt_norm_weight"][head], w["ttt_norm_bias"][head]
    rates = config.base_lr * torch.sigmoid(x @ w["learnable_ttt_lr_weight"][head, 0] + w["learnable_ttt_lr_bias"][head])

    def learner(parameters, key):
        z = key @ parameters[0] + parameters[1]
        if len(parameters) == 4:
            z = F.gelu(z, approximate="tanh") @ parameters[2] + parameters[3]
        return F.layer_norm(z, (D,), gamma, beta, 1e-6)

    out = []
    for t in range(len(x)):
        i = t % b
        if i == 0:
            start = [p.detach().requires_grad_() for p in now]
            total = [torch.zeros_like(p) for p in start]
        q_t, k_t = rotate(q[t], i), rotate(k[t], i)
        loss = (learner(start, k_t[None]) - (v[t] - k_t)).square().sum() / 2
        total = [a + rates[t] / D * g for a, g in zip(total, torch.autograd.grad(loss, start), strict=True)]
        scale = max(0.0, 1 / (i + 1) + w["learnable_token_idx"][i].item())
        now = [p - scale * a for p, a in zip(start, total, strict=True)]
        out.append((q_t + learner(now, q_t[None])[0]).detach())
    return torch.stack(out)


def rotate(x, position):
    """Each pair (2i, 2i+1) is a complex number, turned by position * 10000^(-2i/D)."""
    angle = position * 10000.0 ** (-torch.arange(0, len(x), 2, dtype=x.dtype) / len(x))
    turned = torch.view_as_complex(x.reshape(-1, 2)) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten()


CONFIGS = {
    f"{system} {backbone}": model_config(system, "tiny", backbone=backbone)
    for system in ("ttt-linear", "ttt-mlp")
    for backbone in ("mamba", "transformer")
} | {
    f"{learner}, heads of 96, mini-batch 6": TTTConfig(learner, 192, 64, 1, 2, 512, mini_batch=6, base_lr=0.7)
    for learner in ("linear", "mlp")
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_model_is_the_definition(name):
    config = CONFIGS[name]
    model = from_seed(config, 0, "cpu", torch.float64)
    weights = model.weights()
    generator = torch.Generator().manual_seed(1)
    for weight in weights.values():  # nothing may hide behind a weight of 0 or 1
        weight += 0.1 * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    ids = torch.randint(config.vocabulary, (1, TOKENS), generator=generator)
    expected = naive_logits(config, weights, ids[0])
    logits, _ = model.prefill(ids, model.init_state(1, TOKENS))
    assert (logits[0] - expected).norm() <= TOLERANCE * expected.norm()
