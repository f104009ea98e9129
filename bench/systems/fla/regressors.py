"""Measure layers of flash-linear-attention: delta rules, MesaNet and TTT-Linear.

Shapes: B sequences, T tokens, H heads; K key channels and V value channels per head.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bench.models.case_model import ttt_config_of
from bench.models.config import BASE_LR
from bench.systems.on_device import device
from bench.systems.regressor import MAX_LOG_DECAY, LayerAdapter, RandomInput, RecurrentLayer
from bench.systems.ttt.layer import LAYER_CHECK_TOKENS, LAYER_TIMED_CHECK_TOKENS, Results, layer_inputs, layer_work
from harness.measure.system import Skip
from harness.schema.case import Case
from harness.schema.work import TTT, Work


@dataclass(frozen=True)
class DeltaRule(RecurrentLayer):
    """A delta-rule layer with decay; each head of v has a state S [K, V].

    For each token: S = Diag(exp g) S; S += beta k (v - S^T k)^T for each pair (k, v); o = S^T q / sqrt(K).
    heads: number of heads of q and k.
    value_heads: number of heads of v, g and beta, a multiple of `heads`. 0 stands for `heads`.
    vector_decay: whether g has K values per head of v, instead of one.
    householder: number of pairs (k, v) per token.
    """

    value_heads: int = 0
    vector_decay: bool = False
    householder: int = 1

    @property
    def states(self) -> int:
        """Number of state matrices per sequence."""
        return self.value_heads or self.heads

    @property
    def state_elements(self) -> int:
        return self.states * self.key_dim * self.value_dim

    def work(self, case: Case) -> Work:
        tokens, width = case.batch * case.context, getattr(torch, case.dtype).itemsize
        decays = self.key_dim if self.vector_decay else 1
        keys = width * self.heads * self.key_dim * (1 + self.householder)  # and q
        values = width * (self.value_dim + self.householder * (self.value_dim + 1)) + 4 * decays  # and output, beta
        moved = tokens * (keys + self.states * values) + 4 * case.batch * self.state_elements
        return Work(
            (3 + 4 * self.householder) * tokens * self.state_elements, moved
        )  # FLOPs: decay 1, pair 4, output 2

    def random_inputs(self, case: Case) -> dict[str, RandomInput]:
        """Draw q, k, v, beta and log-decays g.

        q [B, T, H, K]; k [B, n T, H, K]; v [B, n T, states, V]; beta [B, n T, states].
        g [B, T, states], or [B, T, states, K] if `vector_decay`. n: `householder`.
        """
        batch, tokens, dtype = case.batch, case.context, getattr(torch, case.dtype)
        rows, scale = self.householder, self.key_dim**-0.5  # the mean of |k|^2 is 1
        decays = (self.key_dim,) if self.vector_decay else ()
        k = _normal(batch, tokens * rows, self.heads, self.key_dim).mul_(scale).to(dtype)
        v = _normal(batch, tokens * rows, self.states, self.value_dim).to(dtype)
        beta = torch.rand(batch, tokens * rows, self.states, device=device()).to(dtype)
        return {
            "q": RandomInput(_normal(batch, tokens, self.heads, self.key_dim).to(dtype), "normal"),
            "k": RandomInput(k, "normal", scale, rows=rows),
            "v": RandomInput(v, "normal", rows=rows),
            "beta": RandomInput(beta, "uniform", rows=rows),
            "g": RandomInput(-MAX_LOG_DECAY * torch.rand(batch, tokens, self.states, *decays, device=device())),
        }

    def run(self, kernel: Callable[..., Any], inputs: dict[str, Tensor]) -> Results:
        more = {"num_householder": self.householder} if self.householder > 1 else {}
        output, state, *_ = kernel(**inputs, **more, output_final_state=True)
        return {"output": output, "state": state}

    def naive(self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> Results:  # type: ignore[override]
        q, k, v, beta, decay = q.float() * self.key_dim**-0.5, k.float(), v.float(), beta.float(), g.float().exp()
        if not self.vector_decay:
            decay = decay[..., None]
        q, k = (x.repeat_interleave(self.states // self.heads, 2) for x in (q, k))
        state = q.new_zeros(q.shape[0], self.states, self.key_dim, self.value_dim)
        outputs = []
        for token in range(q.shape[1]):
            state = state * decay[:, token, ..., None]
            for row in range(token * self.householder, (token + 1) * self.householder):
                error = v[:, row] - torch.einsum("bhkv,bhk->bhv", state, k[:, row])
                state = state + torch.einsum("bhk,bhv->bhkv", beta[:, row, :, None] * k[:, row], error)
            outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, token]))
        return {"output": torch.stack(outputs, dim=1), "state": state}


SOLVED_TOKENS = 32  # tokens whose linear systems the naive MesaNet solves in one call


@dataclass(frozen=True)
class Mesa(RecurrentLayer):
    """A MesaNet layer: each query solves a decayed least-squares problem over all tokens so far.

    With k and q of norm 1: G = exp(g) G + beta k k^T; S = exp(g) S + beta k v^T; o = S^T (G + Diag(lamb))^-1 q.
    The states G [K, K] and S [K, V] are per head. Source: arXiv 2506.05233.
    iterations: number of conjugate-gradient steps of the kernel's solver.
    """

    iterations: int = 30  # the default of the package's layer

    @property
    def state_elements(self) -> int:
        return self.heads * self.key_dim * (self.key_dim + self.value_dim)

    def work(self, case: Case) -> Work:
        tokens, width = case.batch * case.context, getattr(torch, case.dtype).itemsize
        gram, values = (self.heads * self.key_dim * dim for dim in (self.key_dim, self.value_dim))
        row = width * 2 * (self.key_dim + self.value_dim) + 4 * 2  # q, k, v and output; beta and g
        flops = 3 * (gram + values) + 2 * self.iterations * gram + 2 * values  # per iteration, one K x K GEMV
        return Work(tokens * flops, tokens * self.heads * row + 4 * case.batch * self.state_elements)

    def random_inputs(self, case: Case) -> dict[str, RandomInput]:
        """Draw q, k [B, T, H, K]; v [B, T, H, V]; beta, log-decays g [B, T, H]; lamb [H, K] >= 0.25."""
        shape, dtype = (case.batch, case.context, self.heads), getattr(torch, case.dtype)
        return {
            "q": RandomInput(_normal(*shape, self.key_dim).to(dtype), "normal"),
            "k": RandomInput(_normal(*shape, self.key_dim).to(dtype), "normal"),
            "v": RandomInput(_normal(*shape, self.value_dim).to(dtype), "normal"),
            "beta": RandomInput(torch.rand(shape, device=device()), "uniform"),
            "g": RandomInput(-MAX_LOG_DECAY * torch.rand(shape, device=device())),
            "lamb": RandomInput(0.25 + torch.rand(self.heads, self.key_dim, device=device()), axis=None),
        }

    def run(self, kernel: Callable[..., Any], inputs: dict[str, Tensor]) -> Results:
        how = {"max_CG_iteration": self.iterations, "use_qk_l2norm_in_kernel": True, "output_final_state": True}
        return dict(zip(("output", "state", "state_2"), kernel(**inputs, **how), strict=True))

    def naive(  # type: ignore[override]
        self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, lamb: Tensor
    ) -> Results:
        q, k, v, beta, decay, lamb = q.double(), k.double(), v.double(), beta.double(), g.double().exp(), lamb.double()
        q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
        gram = q.new_zeros(q.shape[0], self.heads, self.key_dim, self.key_dim)
        values = q.new_zeros(q.shape[0], self.heads, self.key_dim, self.value_dim)
        outputs = []
        for start in range(0, q.shape[1], SOLVED_TOKENS):
            grams, sums = [], []
            for token in range(start, min(start + SOLVED_TOKENS, q.shape[1])):
                factor, weighted = decay[:, token, :, None, None], (beta[:, token, :, None] * k[:, token])[..., None]
                gram = factor * gram + weighted * k[:, token, :, None]
                values = factor * values + weighted * v[:, token, :, None]
                grams.append(gram)
                sums.append(values)
            systems = torch.stack(grams, 1) + torch.diag_embed(lamb)
            solved = torch.linalg.solve(systems, q[:, start : start + SOLVED_TOKENS])
            outputs.append(torch.einsum("bthkv,bthk->bthv", torch.stack(sums, 1), solved))
        return {"output": torch.cat(outputs, 1), "state": gram, "state_2": values}


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, device=device())


MINI_BATCH = 16


class TTTLinear(RecurrentLayer):
    """TTT-Linear in flash-linear-attention (fla), whose outputs differ from the TTT paper's.

    fla divides q by sqrt(D), where D is the number of channels per head.
    fla scales the rows of Q K^T by the learning rates; the paper scales the columns.
    With o = q W + b, fla returns o + LN(o); the paper returns q + LN(o).
    """

    check_tokens = LAYER_CHECK_TOKENS
    timed_check_tokens = LAYER_TIMED_CHECK_TOKENS
    part = TTT
    settings: ClassVar[Mapping[str, str]] = {"function": "flash-linear-attention's, not the paper's"}

    @property
    def state_elements(self) -> int:
        return super().state_elements + self.heads * self.value_dim  # W and b

    def work(self, case: Case) -> Work:
        return layer_work(ttt_config_of(case), case)[TTT]

    def random_inputs(self, case: Case) -> dict[str, RandomInput]:
        if options := [f"{name}={value}" for name in ("form", "mini_batch", "part") if (value := case.option(name))]:
            raise Skip(f"{case.system_backend} does not support {' or '.join(options)}; {case.system}/torch does")
        given = layer_inputs(ttt_config_of(case), case.batch, case.context, getattr(torch, case.dtype))
        rates = given["lr"][..., None].to(given["k"].dtype)
        return {name: RandomInput(given[name], "normal") for name in "qkv"} | {  # [B, T, H, D]
            "w": RandomInput(given["ln_weight"], axis=None),  # [H, D]
            "b": RandomInput(given["ln_bias"], axis=None),  # [H, D]
            "eta": RandomInput(rates, "uniform", BASE_LR["linear"] / self.key_dim),  # [B, T, H, 1]
            "initial_state": RandomInput(given["state"].W.clone(), axis=0),  # [B, H, D, D]
            "initial_state_bias": RandomInput(given["state"].b[:, :, None].clone(), axis=0),  # [B, H, 1, D]
        }

    def run(self, kernel: Callable[..., Any], inputs: dict[str, Tensor]) -> Results:
        output, state, _ = kernel(**inputs, chunk_size=MINI_BATCH, output_final_state=True)
        return {"output": output, "state": state}

    def naive(self, **inputs: Tensor) -> Results:
        from fla.ops.ttt.naive import chunk_ttt_linear_ref

        exact = {name: value.float().clone() for name, value in inputs.items()}  # fla scales q in place
        output, state, _ = chunk_ttt_linear_ref(**exact, mini_batch_size=MINI_BATCH, output_final_state=True)
        return {"output": output, "state": state}


# Qwen3-Next's Gated DeltaNet, also at width 2,048: heads, key and value channels, value heads.
QWEN = (16, 128, 128, 32)
CHUNKED = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"


class FlaLayerAdapter(LayerAdapter):
    """Adapter of single layers of flash-linear-attention at width 2,048.

    Sources: Gated DeltaNet (arXiv 2412.06464), Kimi Delta Attention (2510.26692), Gated DeltaProduct (2502.10297).
    """

    module = "fla"
    packages = ("flash-linear-attention", "triton")
    layers: ClassVar[dict[str, RecurrentLayer]] = {
        "gated-deltanet": DeltaRule(CHUNKED, 6, 256, 512),
        "gated-deltanet-128": DeltaRule(CHUNKED, *QWEN),
        "kda": DeltaRule("fla.ops.kda:chunk_kda", 16, 128, 128, vector_decay=True),
        "deltaproduct": DeltaRule("fla.ops.gated_delta_product:chunk_gated_delta_product", 6, 256, 512, householder=2),
        "mesanet": Mesa("fla.ops.mesa_net:chunk_mesa_net", 16, 128, 128),
        "ttt-linear": TTTLinear("fla.ops.ttt:chunk_ttt_linear|fused_chunk_ttt_linear", 32, 64, 64),
    }
