"""Random arguments for the reference tests, and helpers that run generate steps or the naive form on them."""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tk_kernels.reference import naive as definition
from tk_kernels.ttt_linear import reference as ttt_linear
from tk_kernels.ttt_mlp import reference as ttt_mlp

torch.set_num_threads(1)  # more threads slow down cases this small

OPERATORS: dict[str, Any] = {"linear": ttt_linear, "mlp": ttt_mlp}
NAIVE: dict[str, Any] = {"linear": definition.linear, "mlp": definition.mlp}


class Case(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    lr: Tensor
    token_scale: Tensor
    ln_weight: Tensor
    ln_bias: Tensor
    state: Any

    def tokens(self, at: Any) -> tuple[Tensor, ...]:
        return tuple(x[:, at] for x in self[:4])

    def outer(self) -> tuple[Tensor, ...]:
        return self[4:7]


def case(
    operator: str,
    tokens: int = 35,
    *,
    batch: int = 2,
    heads: int = 2,
    head_dim: int = 16,
    mini_batch: int = 16,
    dtype: torch.dtype = torch.float64,
) -> Case:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, std: float = 1.0) -> Tensor:
        return std * torch.randn(*shape, generator=generator, dtype=torch.float64)

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    q, k, v = (normal(batch, tokens, heads, head_dim).bfloat16().to(dtype) for _ in range(3))
    lr = (torch.sigmoid(normal(batch, tokens, heads)) / head_dim).to(wide)
    token_scale = (1 / torch.arange(1, mini_batch + 1) + normal(mini_batch, std=0.01)).clamp_min(0.01).to(wide)
    ln_weight, ln_bias = (1 + normal(heads, head_dim, std=0.1)).to(wide), normal(heads, head_dim, std=0.1).to(wide)
    widths = (head_dim, head_dim) if operator == "linear" else (head_dim, 4 * head_dim, head_dim)
    weights = [normal(heads, *shape, std=0.1) for i, o in pairwise(widths) for shape in ((i, o), (1, o))]
    state = OPERATORS[operator].init_state(*weights, batch=batch, mini_batch=mini_batch, dtype=wide)
    for rows in state[len(weights) : -1]:  # rows past the position are unused
        rows.copy_(normal(*rows.shape))
    return Case(q, k, v, lr, token_scale, ln_weight, ln_bias, state)


def naive(operator: str, case: Case) -> tuple[Tensor, list[Tensor]]:
    """Run the naive form on each sequence and head; return (outputs shaped like case.q, tensors of the final state).

    The tensors are in the order of the fields of the reference's `primal_state`.
    """
    out, states, weights = torch.empty_like(case.q), [], case.state[: len(case.state) // 2]
    for row in range(len(case.q)):
        for head in range(case.q.shape[2]):
            outer = (case.token_scale, case.ln_weight[head], case.ln_bias[head])
            tokens = (x[row, :, head] for x in case[:4])
            state = definition.fresh_state(*(x[row, head] for x in weights))
            out[row, :, head], state = definition.forward(NAIVE[operator], *tokens, *outer, state)
            states.append([*state.weights, *state.sums, torch.tensor(state.position)])
    shape = (len(case.q), case.q.shape[2])
    tensors = [torch.stack(parts).unflatten(0, shape) for parts in zip(*states, strict=True)]
    return out, [*tensors[:-1], tensors[-1][:, 0].int()]


def masked(state: Any) -> list[Tensor]:  # unused rows become 0
    count = state.position[:, None, None, None]
    return [
        torch.where(torch.arange(x.shape[2], device=x.device)[:, None] < count, x, 0) if name.endswith("rows") else x
        for name, x in zip(state._fields, state, strict=True)
    ]


def generate(operator: str, case: Case, state: Any, first: int = 0, **options: Any) -> tuple[Tensor, Any]:
    """Run generate steps on tokens from `first` on; return (outputs [batch, steps, heads, head_dim], last state)."""
    outputs = [case.q[:, :0]]
    for t in range(first, case.q.shape[1]):
        out, state = OPERATORS[operator].generate_step(*case.tokens(t), *case.outer(), state, **options)
        outputs.append(out[:, None])
    return torch.cat(outputs, 1), state
