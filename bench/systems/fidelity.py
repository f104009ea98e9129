"""How far does a model drift from the exact one while it generates? Next-token probabilities of both, token by token.

Both read the same tokens (teacher forcing): those that the exact model, in float64, draws from its own probabilities.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bench.systems.language_model import LIMITS, LanguageModel, repeatable
from harness.case import Case
from harness.gate import Check, Verdict
from harness.system import Workload

SEED = 0  # of the drawn tokens, so that every state precision reads the same
# Of two roundings the coarser sets the limit; "float32-planes" keeps the rows of a mini-batch in bfloat16.
STATE_ROUNDING = {"float32-planes": "bfloat16"}
PARTS = 8  # the first and the last of so many equal parts show whether the distance grows


def compared(adapter: LanguageModel, workload: Workload, model: Any, case: Case) -> Workload:
    """The workload with a gate that compares `context` generated tokens of `batch` sequences and adds its metrics."""

    def gate() -> Verdict:
        reference = adapter.reference(model, torch.float64)
        found = fidelity(model, reference, case.batch, case.context)
        workload.metrics |= found
        roundings = (case.dtype, STATE_ROUNDING.get(case.state_dtype, case.state_dtype))
        limit = max(LIMITS[rounding][1] for rounding in roundings)
        return Verdict(
            [
                Check.at_most("total_variation_mean", found["total_variation_mean"], limit),
                Check.at_most("argmax_disagreement", found["argmax_disagreement"], 1.0),
            ]
        )

    return replace(workload, gate=gate)


@torch.inference_mode()
def fidelity(model: Any, reference: Any, sequences: int, tokens: int) -> dict[str, float]:
    """Total variation distance of the next token's probabilities, and the share of tokens whose best one differs.

    Of the distance: its mean, its largest, and its mean over the first and the last eighth of the tokens.
    """
    steps = zip(*_steps(model, reference, sequences, tokens), strict=True)
    distances, differs = (torch.stack(rows).cpu() for rows in steps)
    part = max(1, tokens // PARTS)
    return {
        "compared_tokens": tokens,
        "total_variation_mean": float(distances.mean()),
        "total_variation_max": float(distances.max()),
        "total_variation_first": float(distances[:part].mean()),
        "total_variation_last": float(distances[-part:].mean()),
        "argmax_disagreement": float(differs.double().mean()),
    }


def _steps(model: Any, reference: Any, sequences: int, tokens: int) -> list[tuple[Tensor, Tensor]]:
    """Of each step: the distance [B], NaN where a model's probabilities are, and whether the best token differs [B]."""
    device = model.device
    chance = torch.Generator(device).manual_seed(SEED)
    ids = torch.randint(0, model.config.vocabulary, (sequences,), device=device, generator=chance)
    ours, exact = _Stepper(model, ids, tokens), _Stepper(reference, ids, tokens)
    found = []
    for _ in range(tokens):
        logits, expected = ours.next(), exact.next()
        truth = expected.double().softmax(-1)
        distance = (logits.double().softmax(-1) - truth).abs().sum(-1) / 2
        found.append((distance, logits.argmax(-1) != expected.argmax(-1)))
        ids.copy_(torch.multinomial(truth, 1, generator=chance)[:, 0])
    return found


class _Stepper:
    """A model's steps from an empty state that read `ids` where they are; on a GPU replays of one graph."""

    def __init__(self, model: Any, ids: Tensor, tokens: int) -> None:
        self._model, self._ids = model, ids
        self._state = model.init_generate_state(len(ids), tokens)  # where the graph finds it, so it must stay
        self._logits: Tensor
        self._advance = repeatable(self._step)
        model.reset_state(self._state)  # capturing has moved it

    def _step(self) -> None:
        self._logits = self._model.generate_step(self._ids, self._state)[0]

    def next(self) -> Tensor:
        """Logits [B, V] after the token that `ids` hold."""
        self._advance()
        return self._logits
