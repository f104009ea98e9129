"""Run and check a whole TTT model in PyTorch, with random weights or from a checkpoint."""

from typing import Any

import torch

from bench.models.operator import TorchOperator
from bench.systems.checked_sequences import with_prefix
from bench.systems.language_model import CHECK_BATCH, LanguageModel
from bench.systems.logits import check_logits, limit_dtype, limit_factor
from bench.systems.model_calls import exact_dtype, greedy_steps, prefill_then_generate, random_ids
from bench.systems.ttt import layer
from bench.systems.ttt.drift import with_drift_check
from bench.systems.ttt.inner_loops import inner_loop_checks
from bench.systems.ttt.replayed import ReplayedOperator
from harness.measure.correctness import Checks
from harness.measure.system import Skip, Workload
from harness.schema.case import Case

CHECKPOINT_TOKENS = 128  # tokens that the reference generates; the logits after each are compared


class TTTLanguageModel(LanguageModel):
    """Base class of adapters that run a whole TTT model; its references run in plain PyTorch."""

    exact: tuple[Any, Any] = (None, None)  # the case and the result of the last `exact_run`

    def build(self, case: Case) -> Workload:
        workload = super().build(case)
        return with_drift_check(self, workload, self._model(case), case) if case.option("compare", "") else workload

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
        return checked + self._check_generated(model, case) if case.option("checkpoint") else checked

    @torch.inference_mode()
    def _check_generated(self, model: Any, case: Case) -> Checks:
        """Check the logits after a prompt and after each token that the reference generates from it."""
        dtype, factor = limit_dtype(case), limit_factor(case)
        reference = self.timed_check_reference(model, exact_dtype(case), case)
        prompt = random_ids(model, CHECK_BATCH, self.check_prompt)
        logits, state = reference.prefill(prompt, reference.init_state(*prompt.shape))
        _, tokens = greedy_steps(reference, logits.argmax(-1), reference.generate_state(state), CHECKPOINT_TOKENS)
        ids = torch.cat([prompt, tokens.T], dim=1)
        got, expected = (prefill_then_generate(each, ids, self.check_prompt) for each in (model, reference))
        return with_prefix("generated_", check_logits(got, expected, dtype, factor))


class TTTTorch(TTTLanguageModel):
    """Adapter of ttt-linear/torch and ttt-mlp/torch: models in dual form, and the forward of single layers."""

    def build(self, case: Case) -> Workload:
        is_layer = case.option("scope", "model") == "layer"
        if case.state_dtype not in ("", "float32") or (is_layer and case.phase != "forward"):
            raise Skip(f"{case.system_backend} has states in float32, and of single layers only the forward")
        return layer.build(case) if is_layer else super().build(case)
