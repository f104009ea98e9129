"""The TTT model of a case, random weights by seed or a checkpoint's, and its comparison with the reference."""

from typing import Any

import torch

from bench.models.case_model import checkpoint_folder, ttt_config_of
from bench.models.checkpoint import load
from bench.models.config import CheckpointError
from bench.models.operator import TorchOperator
from bench.models.ttt import TTTModel
from bench.systems.language_model import GATE_BATCH, LanguageModel
from bench.systems.logits import choice_check, logits_verdict, widening
from bench.systems.model_calls import greedy_steps, prefill_then_generate, random_ids
from bench.systems.on_device import device
from bench.systems.ttt.drift import compared
from bench.systems.ttt.inner_loops import inner_loop_checks
from bench.systems.ttt.replayed import ReplayedOperator
from harness.measure.gate import Check, Verdict
from harness.measure.system import Workload
from harness.schema.case import Case

CHECKPOINT_TOKENS = 128  # that a checkpoint generates, each compared


class TTTLanguageModel(LanguageModel):
    """A whole model; its references are those of plain PyTorch."""

    def build(self, case: Case) -> Workload:
        """See LanguageModel.build; with the option `compare`, the fidelity to the exact model too."""
        workload = super().build(case)
        return compared(self, workload, self._model(case), case) if case.option("compare", "") else workload

    def reference(self, model: Any, dtype: torch.dtype) -> Any:
        """Every gradient and every W_t materialised."""
        reference = super().reference(model, dtype)
        reference.operator = TorchOperator(reference.config.learner, form="primal")
        return reference

    def witness_reference(self, model: Any, dtype: torch.dtype) -> Any:
        """The dual form in a wider type, in replays: the primal form materialises a W for every token."""
        reference = super().reference(model, dtype)
        reference.operator = ReplayedOperator(reference.config.learner)
        return reference

    def _compare(self, model: Any, case: Case) -> Verdict:
        """See LanguageModel._compare; each layer's inner loop too, and of a checkpoint the tokens that it generates."""
        verdict = super()._compare(model, case)
        verdict += Verdict(inner_loop_checks(model, case, self.gate_prompt))
        return verdict + Verdict(self._token_for_token(model, case)) if case.option("checkpoint") else verdict

    @torch.inference_mode()
    def _token_for_token(self, model: Any, case: Case) -> list[Check]:
        """The model against the reference at each token that the reference generates after a prompt of random ids."""
        dtype, wider = case.dtype, widening(case)
        reference = self.witness_reference(model, torch.float64 if dtype == "float32" else torch.float32)
        prompt = random_ids(model, GATE_BATCH, self.gate_prompt)
        logits, state = reference.prefill(prompt, reference.init_state(*prompt.shape))
        _, tokens = greedy_steps(reference, logits.argmax(-1), reference.generate_state(state), CHECKPOINT_TOKENS)
        ids = torch.cat([prompt, tokens.T], dim=1)
        got, expected = (prefill_then_generate(each, ids, self.gate_prompt) for each in (model, reference))
        checks = [
            Check.at_most(f"generated_{each.name}", each.value, each.limit)
            for each in logits_verdict(got, expected, dtype, wider).checks
        ]
        return [*checks, choice_check("generated_choice_below_best", expected, got.argmax(-1), dtype, wider)]


def model_of(case: Case, **options: Any) -> TTTModel:
    """On `device()` in the dtype of the case; options (operator, block) are those of TTTModel."""
    dtype, folder = getattr(torch, case.dtype), checkpoint_folder(case)
    if folder is None:
        return TTTModel.from_seed(ttt_config_of(case), 0, device(), dtype, **options)
    try:
        model = load(folder, device(), dtype, **options)
        checkpoint_folder(case)  # its files are still those of the case
    except CheckpointError as error:  # it becomes the reason of a record, which is published
        raise CheckpointError(str(error).replace(str(folder), folder.name)) from None
    assert isinstance(model, TTTModel)
    return model
