"""Run and check a whole TTT model in PyTorch, with random weights or from a checkpoint."""

from typing import Any

import torch

from bench.models.operator import TorchOperator
from bench.systems.checked_sequences import named
from bench.systems.language_model import CHECK_BATCH, LanguageModel
from bench.systems.logits import check_logits, rounding_of, widening
from bench.systems.model_calls import exact_dtype, greedy_steps, prefill_then_generate, random_ids
from bench.systems.ttt import layer
from bench.systems.ttt.drift import compared
from bench.systems.ttt.inner_loops import inner_loop_checks
from bench.systems.ttt.replayed import ReplayedOperator
from harness.measure.correctness import Checks
from harness.measure.system import Workload
from harness.schema.case import Case

CHECKPOINT_TOKENS = 128  # compared tokens that a checkpoint generates


class TTTLanguageModel(LanguageModel):
    """Base class of adapters that run a whole TTT model; its references run in plain PyTorch."""

    exact: tuple[Any, Any] = (None, None)  # the case and the result of the last `exact_run`

    def build(self, case: Case) -> Workload:
        workload = super().build(case)
        return compared(self, workload, self._model(case), case) if case.option("compare", "") else workload

    def reference(self, model: Any, dtype: torch.dtype) -> Any:
        reference = super().reference(model, dtype)
        reference.operator = TorchOperator(reference.config.learner, form="primal")
        return reference

    def timed_check_reference(self, model: Any, dtype: torch.dtype, case: Case) -> Any:
        reference = super().reference(model, dtype)
        reference.operator = ReplayedOperator(reference.config.learner)
        return reference

    def rounded_reference(self, model: Any, case: Case) -> Any:
        return None if case.state_dtype in ("bfloat16", "float16") else super().rounded_reference(model, case)

    def _compare(self, model: Any, case: Case) -> Checks:
        checked = super()._compare(model, case)
        checked += Checks(inner_loop_checks(model, case, self.check_prompt))
        return checked + self._token_for_token(model, case) if case.option("checkpoint") else checked

    @torch.inference_mode()
    def _token_for_token(self, model: Any, case: Case) -> Checks:
        """Check the logits after a prompt and after each token that the reference generates from it."""
        dtype, wider = rounding_of(case), widening(case)
        reference = self.timed_check_reference(model, exact_dtype(case), case)
        prompt = random_ids(model, CHECK_BATCH, self.check_prompt)
        logits, state = reference.prefill(prompt, reference.init_state(*prompt.shape))
        _, tokens = greedy_steps(reference, logits.argmax(-1), reference.generate_state(state), CHECKPOINT_TOKENS)
        ids = torch.cat([prompt, tokens.T], dim=1)
        got, expected = (prefill_then_generate(each, ids, self.check_prompt) for each in (model, reference))
        return named("generated_", check_logits(got, expected, dtype, wider))


class TTTTorch(TTTLanguageModel):
    """Adapter of ttt-linear/torch and ttt-mlp/torch: models in dual form, and single layers."""

    def build(self, case: Case) -> Workload:
        return layer.build(case) if case.option("scope", "model") == "layer" else super().build(case)
