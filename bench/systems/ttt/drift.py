"""Measure how far a generating model drifts from an exact one, token by token.

Both models read the same tokens (teacher forcing). The exact model, in float64, draws these tokens once from its own
probabilities. Runs with different state precisions are compared with the same run of the exact model.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bench.systems.logits import LOGIT_LIMITS, limit_dtype, limit_factor
from harness.measure.correctness import Check, Checks
from harness.measure.cuda_clock import graph_replay
from harness.measure.system import Workload
from harness.schema.case import Case

SEED = 0  # seed of the drawn tokens, the same for every state precision
PARTS = 8  # total_variation_first and _last are means over the first and the last 1/PARTS of a run


@dataclass(frozen=True)
class ExactRun:
    """Token ids [T, B] of a float64 model's run, and its next-token probabilities [T, B, V].

    Probabilities are on the host in float64: float32's rounding error can be an eighth of the smallest measured drift.
    """

    ids: Tensor
    probabilities: Tensor


def with_drift_check(adapter: Any, workload: Workload, model: Any, case: Case) -> Workload:
    """Extend the workload's check: also measure and limit the drift from a float64 model."""
    other_checks = workload.check
    assert other_checks is not None

    def check() -> Checks:
        key = replace(case, state_dtype="")
        if adapter.exact[0] != key:
            adapter.exact = None, None  # free it before the next run
            adapter.exact = key, exact_run(adapter.reference(model, torch.float64), case.batch, case.context)
        found = drift(model, adapter.exact[1])
        workload.metrics |= found
        limit = limit_factor(case) * LOGIT_LIMITS[limit_dtype(case)][1]
        return other_checks() + Checks([Check.at_most("total_variation_mean", found["total_variation_mean"], limit)])

    return replace(workload, check=check)


@torch.inference_mode()
def exact_run(reference: Any, sequences: int, tokens: int) -> ExactRun:
    """Sample `sequences` sequences of `tokens` tokens from the float64 model `reference`."""
    device, vocabulary = reference.device, reference.config.vocabulary
    rng = torch.Generator(device).manual_seed(SEED)
    ids = torch.randint(0, vocabulary, (sequences,), device=device, generator=rng)
    step, read = _stepper(reference, ids, tokens), []
    probabilities = torch.empty(tokens, sequences, vocabulary, dtype=torch.float64, pin_memory=device.type == "cuda")
    for row in probabilities:
        read.append(ids.clone())
        found = step().double().softmax(-1)
        row.copy_(found, non_blocking=True)
        ids.copy_(torch.multinomial(found, 1, generator=rng)[:, 0])
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # the copies to the host
    return ExactRun(torch.stack(read), probabilities)


@torch.inference_mode()
def drift(model: Any, exact: ExactRun) -> dict[str, float]:
    """Run a model on the tokens of an exact run; compare the two models' probabilities.

    total_variation_mean, total_variation_max: over all positions.
    total_variation_first, total_variation_last: means over the first and the last eighth of the run.
    argmax_disagreement: share of positions at which the two models' most probable tokens differ.
    """
    ids, tokens, steps = exact.ids[0].clone(), len(exact.ids), []
    step = _stepper(model, ids, tokens)
    for read, probabilities in zip(exact.ids, exact.probabilities, strict=True):
        ids.copy_(read)
        logits, truth = step(), probabilities.to(ids.device, non_blocking=True)
        distance = (logits.double().softmax(-1) - truth).abs().sum(-1) / 2
        steps.append((distance, logits.argmax(-1) != truth.argmax(-1)))
    distances, differs = (torch.stack(each).cpu() for each in zip(*steps, strict=True))  # [T, B]
    part = max(1, tokens // PARTS)
    return {
        "compared_tokens": tokens,
        "total_variation_mean": float(distances.mean()),
        "total_variation_max": float(distances.max()),
        "total_variation_first": float(distances[:part].mean()),
        "total_variation_last": float(distances[-part:].mean()),
        "argmax_disagreement": float(differs.double().mean()),
    }


def _stepper(model: Any, ids: Tensor, tokens: int) -> Callable[[], Tensor]:
    """Return f() -> logits [B, V], a generate step on buffer `ids` [B]; at most `tokens` calls."""
    state = model.init_generate_state(len(ids), tokens)
    logits: list[Tensor] = []

    def step() -> None:
        logits[:] = [model.generate_step(ids, state)[0]]

    advance = graph_replay(step)
    model.reset_state(state)  # capturing advanced it

    def next_logits(_: Any = state) -> Tensor:  # keeps the state alive: a graph writes to its memory
        advance()
        return logits[0]

    return next_logits
