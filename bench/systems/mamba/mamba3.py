"""Run one Mamba-3 layer (single input, single output) on mamba-ssm's chunked Triton kernel."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.systems.on_device import device
from bench.systems.regressor import LayerAdapter, RandomInput, RecurrentLayer
from bench.systems.ttt.layer import Results
from harness.measure.system import Skip
from harness.schema.case import Case
from harness.schema.work import Work

# Elements [sequence, token, head, channel] that signed 32-bit indices reach; the kernel has a copy of q per head.
MAX_INDEXED = 1 << 31
MIN_DECAY = 1e-4
MIN_STEP, MAX_STEP = 0.001, 0.1  # range of the initial time steps dt


@dataclass(frozen=True)
class Mamba3(RecurrentLayer):
    """A Mamba-3 layer without skip connection, whose heads have a state S [V, K] each.

    S = a S + (1 - l) dt a v' k'^T + l dt v k^T and o = S q, where v' and k' are the previous token's v and k.
    a = exp(A dt); l = sigmoid(trap). q and k are rotated by the sum of pi tanh(angle) dt over the tokens so far.
    Heads share q, k and angles, but have separate biases and time steps dt.
    angles: number of rotated channel pairs. K: `key_dim`. V: `value_dim`.
    Source: mamba-ssm 2.3.2, mamba_ssm/modules/mamba3.py.
    """

    angles: int

    @property
    def state_elements(self) -> int:
        # S; the last token's k and v; the sums of the angles
        return super().state_elements + self.heads * (self.key_dim + self.value_dim + self.angles)

    def work(self, case: Case) -> Work:
        tokens, width = case.batch * case.context, getattr(torch, case.dtype).itemsize
        shared = width * (2 * self.key_dim + self.angles)
        row = width * (2 * self.value_dim + 1) + 4 * 2  # v, output, trap; decay and time step
        matrices = super().state_elements  # elements of S
        moved = tokens * (shared + self.heads * row) + 4 * case.batch * matrices
        return Work(5 * tokens * matrices, moved)  # FLOPs: decay 1, two merged updates 2, output 2

    def random_inputs(self, case: Case) -> dict[str, RandomInput]:
        """Draw arguments of the kernel, distributed as in a newly initialised layer.

        Q, K [B, T, 1, key_dim]; V [B, T, H, value_dim]; Angles [B, T, H, angles]; Q_bias, K_bias [H, key_dim].
        DT [B, H, T]: time steps dt. ADT [B, H, T]: log-decays A dt. Trap [B, H, T]: logits of `Mamba3`'s factor l.
        """
        if case.dtype != "bfloat16":
            raise Skip("Mamba-3's kernel rounds its inputs to bfloat16")
        most = MAX_INDEXED // (self.heads * self.key_dim)
        if case.batch * case.context > most:
            raise Skip(f"Mamba-3's kernel has 32-bit indices: at most {most} tokens, not {case.batch * case.context}")
        batch, tokens = case.batch, case.context
        first = torch.rand(self.heads, device=device()) * math.log(MAX_STEP / MIN_STEP) + math.log(MIN_STEP)
        bias = first.exp() + torch.log(-torch.expm1(-first.exp()))  # the inverse of softplus
        step = F.softplus(torch.randn(batch, self.heads, tokens, device=device()) + bias[:, None])
        decay = -F.softplus(torch.randn_like(step)).clamp(min=MIN_DECAY)
        return {
            "Q": RandomInput(_normal(batch, tokens, 1, self.key_dim), "normal"),
            "K": RandomInput(_normal(batch, tokens, 1, self.key_dim), "normal"),
            "V": RandomInput(_normal(batch, tokens, self.heads, self.value_dim), "normal"),
            "ADT": RandomInput(decay * step, axis=2),
            "DT": RandomInput(step, axis=2),
            "Trap": RandomInput(_normal(batch, self.heads, tokens), axis=2),
            "Q_bias": RandomInput(torch.ones(self.heads, self.key_dim, device=device()), axis=None),
            "K_bias": RandomInput(torch.ones(self.heads, self.key_dim, device=device()), axis=None),
            "Angles": RandomInput(_normal(batch, tokens, 1, self.angles).expand(-1, -1, self.heads, -1)),
        }

    def run(self, kernel: Callable[..., Any], inputs: dict[str, Tensor]) -> Results:
        out, _, state, _, _ = kernel(**inputs, return_final_states=True)
        return {"output": out, "state": state}

    def naive(self, **inputs: Tensor) -> Results:
        exact = {name: value.double() for name, value in inputs.items()}
        DT, V, decays, share = exact["DT"], exact["V"], exact["ADT"].exp(), exact["Trap"].sigmoid()  # V [B, T, H, V]
        angles = (math.pi * exact["Angles"].tanh() * DT.mT[..., None]).cumsum(1)
        q, k = (rotated(exact[name] + exact[f"{name}_bias"], angles) for name in "QK")
        state = V.new_zeros(*V.shape[:1], *V.shape[2:], q.shape[-1])
        before, outputs = torch.zeros_like(state), []
        for token in range(V.shape[1]):
            decay, now, step = (x[:, :, token, None, None] for x in (decays, share, DT))
            added = V[:, token, :, :, None] * k[:, token, :, None]
            state = decay * (state + (1 - now) * step * before) + now * step * added
            outputs.append(torch.einsum("bhvk,bhk->bhv", state, q[:, token]))
            before = added
        return {"output": torch.stack(outputs, 1), "state": state}


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate the first R pairs of neighboring channels of x [..., K] by `angles` [..., R] rad."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    turns = torch.polar(torch.ones_like(angles), angles)
    turns = F.pad(turns, (0, pairs.shape[-1] - turns.shape[-1]), value=1)
    return torch.view_as_real(pairs * turns).flatten(-2)


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, device=device(), dtype=torch.bfloat16)


class Mamba3SSM(LayerAdapter):
    """Adapter of the system mamba3/mamba-ssm: the package's layer at width 2,048."""

    module = "mamba_ssm"
    packages = ("mamba-ssm", "triton")
    layers: ClassVar[dict[str, RecurrentLayer]] = {
        "mamba3": Mamba3("mamba_ssm.ops.triton.mamba3.mamba3_siso_combined:mamba3_siso_combined", 64, 128, 64, 32)
    }
