"""Measure one layer of Gated DeltaNet, Kimi Delta Attention or Gated DeltaProduct.

The kernels are those of flash-linear-attention. A layer is its sequence mixer alone, as in TTT's layers: projections,
convolutions and output gating are left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from random import Random
from typing import Any

import torch
from torch import Tensor

from bench.cost import total
from bench.systems.checked_sequences import drawn
from bench.systems.measured_peaks import peaks_of
from bench.systems.needs import cannot_find, import_or_skip, no_gpu
from bench.systems.on_device import device
from bench.systems.triton_tuning import keep_choices, prepare
from bench.systems.ttt.layer import LAYER_CHECK_TOKENS, LAYER_LIMITS, TimedCheck, check_timed
from harness.measure.correctness import Check, Checks, relative_error
from harness.measure.system import Input, Skip, Workload
from harness.schema.case import Case
from harness.schema.work import SCAN, Work

SIZE = "1.3b"  # the only size with published heads
LONGEST_DECAY = 0.1  # log-decays are uniform in [-0.1, 0]
CHECKED_TOKENS = 4096  # a token of the naive form takes ten launches


@dataclass(frozen=True)
class Rule:
    """A layer in RULES: its chunked kernel (MODULE:FUNCTION), heads and state update.

    vector_decay: one decay per key channel instead of one per head. householder: delta-rule updates per token.
    """

    kernel: str
    heads: int
    key_dim: int
    value_dim: int
    vector_decay: bool = False
    householder: int = 1

    @property
    def state_numbers(self) -> int:
        """Number of elements in one sequence's state."""
        return self.heads * self.key_dim * self.value_dim

    def work(self, case: Case) -> Work:
        """Return FLOPs and least bytes of a case.

        FLOPs per state element and token: decay 1, delta-rule update 4, output 2.
        """
        tokens, width = case.batch * case.context, getattr(torch, case.dtype).itemsize
        decays = self.key_dim if self.vector_decay else 1
        pairs = self.householder * (self.key_dim + self.value_dim + 1)
        row = width * (self.key_dim + self.value_dim + pairs) + 4 * decays
        state = case.batch * self.state_numbers
        return Work((3 + 4 * self.householder) * tokens * self.state_numbers, tokens * self.heads * row + 4 * state)


# Gated DeltaNet (arXiv 2412.06464), Kimi Delta Attention (2510.26692), Gated DeltaProduct (2502.10297): the package's
# layers at width 2,048.
RULES = {
    "gated-deltanet": Rule("fla.ops.gated_delta_rule:chunk_gated_delta_rule", 6, 256, 512),
    "kda": Rule("fla.ops.kda:chunk_kda", 16, 128, 128, vector_decay=True),
    "deltaproduct": Rule("fla.ops.gated_delta_product:chunk_gated_delta_product", 6, 256, 512, householder=2),
}


class Regressor:
    """Adapter of the layers in RULES on fla: forwards of whole sequences from zero states."""

    packages: tuple[str, ...] = ("flash-linear-attention", "triton")

    def unavailable(self) -> str:
        """Return that the GPU or flash-linear-attention is missing; "" if both are there.

        This does not import the package, which takes ten seconds; the first case does.
        """
        keep_choices()
        return no_gpu() or cannot_find("fla")

    def build(self, case: Case) -> Workload:
        """Build the forward of `batch` sequences of `context` tokens through one layer.

        The outputs are checked against `naive`. Raises Skip for sizes other than SIZE, or if the kernel cannot be
        imported.
        """
        if case.size != SIZE:
            raise Skip(f"{case.system} supports only the size {SIZE}")
        rule = RULES[case.system]
        module, _, name = rule.kernel.partition(":")
        import_or_skip(module)
        kernel, inputs = getattr(import_module(module), name), random_inputs(rule, case)
        more = {"num_householder": rule.householder} if rule.householder > 1 else {}

        @torch.inference_mode()
        def run() -> list[Tensor]:
            return list(kernel(**inputs, **more, output_final_state=True)[:2])

        prepare(run)
        work = {SCAN: rule.work(case)}
        axis = 1 if rule.householder == 1 else None
        scales = {"q": 1.0, "k": rule.key_dim**-0.5, "v": 1.0}
        renewed = {name: Input(inputs[name], "normal", scale, 0, axis) for name, scale in scales.items()}
        return Workload(
            run=run,
            tokens=case.batch * case.context,
            device=device(),
            inputs=renewed | {"beta": Input(inputs["beta"], "uniform", 1.0, 0, axis)},
            timed_check=_timed_check(rule, inputs, case),
            check=lambda: _check(rule, kernel, more, inputs, case),
            metrics=total(work).metrics() | peaks_of(device()) | {"state_bytes": 4 * case.batch * rule.state_numbers},
            work=work,
            settings={"kernel": name, "tuned": "on this case"},
        )


def random_inputs(rule: Rule, case: Case) -> dict[str, Tensor]:
    """Return q, k [B, T, H, K], v [B, T, H, V], beta and log-decays g, by name.

    beta is [B, T, H]; g is [B, T, H] or [B, T, H, K].
    In k, v and beta, T is `householder` times the number of tokens. Keys have norm 1 on average, to bound the state.
    """
    batch, tokens, heads, dtype = case.batch, case.context, rule.heads, getattr(torch, case.dtype)
    rows = tokens * rule.householder
    decays = (rule.key_dim,) if rule.vector_decay else ()

    def normal(length: int, dim: int, spread: float = 1.0) -> Tensor:
        return (spread * torch.randn(batch, length, heads, dim, device=device())).to(dtype)

    return {
        "q": normal(tokens, rule.key_dim),
        "k": normal(rows, rule.key_dim, rule.key_dim**-0.5),
        "v": normal(rows, rule.value_dim),
        "beta": torch.rand(batch, rows, heads, device=device()).to(dtype),
        "g": -LONGEST_DECAY * torch.rand(batch, tokens, heads, *decays, device=device()),
    }


@torch.inference_mode()
def naive(rule: Rule, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Run a layer token by token in float32; return outputs [B, T, H, V] and the state.

    The final state is [B, H, K, V].
    The arguments are those of `random_inputs`.
    S = Diag(exp g) S; S += beta k (v - S^T k)^T for each of the token's (k, v); o = S^T q / sqrt(K).
    """
    q, k, v, beta, decay = q.float() * rule.key_dim**-0.5, k.float(), v.float(), beta.float(), g.float().exp()
    if not rule.vector_decay:
        decay = decay[..., None]
    state = q.new_zeros(q.shape[0], rule.heads, rule.key_dim, rule.value_dim)
    outputs = []
    for token in range(q.shape[1]):
        state = state * decay[:, token, ..., None]
        for row in range(token * rule.householder, (token + 1) * rule.householder):
            error = v[:, row] - torch.einsum("bhkv,bhk->bhv", state, k[:, row])
            state = state + torch.einsum("bhk,bhv->bhkv", beta[:, row, :, None] * k[:, row], error)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, token]))
    return torch.stack(outputs, dim=1), state


def _some(rule: Rule, inputs: dict[str, Tensor], rows: list[int], tokens: int) -> dict[str, Tensor]:
    """Return the inputs for the first `tokens` tokens of the sequences `rows`."""
    per = {name: 1 if name in ("q", "g") else rule.householder for name in inputs}
    return {name: value[rows, : tokens * per[name]].contiguous() for name, value in inputs.items()}


def _check(rule: Rule, kernel: Any, more: dict[str, int], inputs: dict[str, Tensor], case: Case) -> Checks:
    """Check a kernel's outputs and state on a sequence's first tokens against `naive`."""
    piece = _some(rule, inputs, [0], min(LAYER_CHECK_TOKENS + 1, case.context))  # past a chunk's end
    with torch.inference_mode():
        got = kernel(**piece, **more, output_final_state=True)
    names = ("output_relative_error", "state_relative_error")
    found = zip(names, got, naive(rule, **piece), strict=False)
    limit = LAYER_LIMITS[case.dtype]
    return Checks([Check.at_most(name, relative_error(a, b), limit) for name, a, b in found])


def _timed_check(rule: Rule, inputs: dict[str, Tensor], case: Case) -> TimedCheck:
    """Return a timed check (see `Workload`) of drawn sequences against `naive`.

    It compares the outputs of the first CHECKED_TOKENS tokens, and the final states if the context has no more tokens.
    """

    def timed_check(rng: Random) -> Callable[[Any, int], Checks]:
        rows = drawn(rng, case.batch, case.context, CHECKED_TOKENS)
        tokens = min(case.context, CHECKED_TOKENS)

        def compare(outputs: list[Tensor], calls: int) -> Checks:
            out, state = naive(rule, **_some(rule, inputs, rows, tokens))
            found = [("output", outputs[0][rows, :tokens], out)]
            if tokens == case.context:
                return check_timed([*found, ("state", outputs[1][rows], state)], case.dtype)
            rest = f"tokens after the first {tokens} were not checked: the reference reads one token at a time"
            return check_timed(found, case.dtype, rest)

        return compare

    return timed_check
