"""Base class of the adapters that measure and check a language model in PyTorch."""

from typing import Any, ClassVar

import torch

from bench import model_facts
from bench.cost import model_work, total
from bench.models.config import MODELS
from bench.models.layers import enable_layer_ranges
from bench.state_size import state_bytes
from bench.systems.logits import check_logits, limit_dtype, limit_factor_by_rounding, limit_settings
from bench.systems.measured_peaks import peaks_of
from bench.systems.model_calls import exact_dtype, last_logits, model_of, prefill_then_generate, random_ids
from bench.systems.on_device import device
from bench.systems.phases import Forward, Generate, PhaseWork, Request
from harness.measure.correctness import Checks
from harness.measure.system import Input, Workload
from harness.schema.case import Case

CHECK_BATCH, CHECK_PROMPT, CHECK_STEPS = 2, 37, 13  # 50 tokens: three mini-batches of 16 and two more
NON_MODEL_OPTIONS = ("steps", "compare", "positions")  # options that do not change the model


class LanguageModel:
    """Base class of adapters that time and check a language model in PyTorch.

    The model has the interface of `bench.models.base.CausalLM`. phases: for each phase, the class that runs it.
    """

    packages: tuple[str, ...] = ()
    phases: ClassVar[dict[str, type[PhaseWork]]] = {"forward": Forward, "generate": Generate, "request": Request}
    form = "dual"  # for the generate steps of a TTT model
    check_prompt = CHECK_PROMPT

    def __init__(self) -> None:
        self.model_key: Any = None  # key of `_current`: size, dtype, state dtype, options
        self._current: Any = None  # the loaded model
        self._checked: Checks | None = None

    def unavailable(self) -> str:
        return ""

    def settings(self, case: Case) -> dict[str, str]:
        """Return settings to store in the case's record, such as the factor on the check's limits."""
        return limit_settings(case)

    def load(self, case: Case) -> Any:
        """Load the model of the case on `device()`; by default, call `model_of`."""
        return model_of(case)

    def build(self, case: Case) -> Workload:
        peaks = peaks_of(device())  # measured before the first model takes the GPU's memory
        model = self._model(case)
        enable_layer_ranges(device() == "cuda")  # NVTX ranges; they slow runs on a CPU
        phase = self.phases[case.phase](self, model, case)
        self.prepare_kernels(phase)
        facts = model_facts.facts_of(model.weights(), model.head.shape[0])
        work = model_work(self.cost_config(model), facts.parameters, case, self.form)
        state = (
            {"state_bytes": case.batch * state_bytes(model.config, case, self.form)} if case.system in MODELS else {}
        )
        return Workload(
            run=phase.run,
            units=phase.units,
            tokens=phase.tokens,
            device=device(),
            capture=phase.capture,
            inputs={"ids": Input(phase.ids, "tokens", model.config.vocabulary, 0, phase.token_axis)},
            timed_check=phase.timed_check,
            renews_past=phase.renews_past,
            check=lambda: self._check(model, case),
            measured=phase.measured,
            metrics=facts.metrics() | total(work).metrics() | state | peaks,
            work=work,
            settings=facts.settings() | self.settings(case) | phase.settings,
        )

    def prepare_kernels(self, work: PhaseWork) -> None:
        """Compile or tune the kernels of `work`, then reset its state. By default, do nothing."""

    def cost_config(self, model: Any) -> Any:
        """Return the configuration from which `bench.cost` counts FLOPs and bytes."""
        return model.config

    def reference(self, model: Any, dtype: torch.dtype) -> Any:
        """Return a model in `dtype` with the same weights; it has `init_state`, `prefill`, `logits`."""
        reference = type(model)(model.config, device(), dtype)
        reference.copy_weights(model)
        return reference

    def timed_check_reference(self, model: Any, dtype: torch.dtype, case: Case) -> Any:
        """Return a reference for timed outputs, which can have long prompts; by default `reference`."""
        return self.reference(model, dtype)

    def rounded_reference(self, model: Any, case: Case) -> Any:
        """Return a reference in the case's dtype; its error bounds the limits. None: fixed limits."""
        return None if case.dtype == "float32" else self.timed_check_reference(model, getattr(torch, case.dtype), case)

    def _model(self, case: Case) -> Any:
        options = tuple(pair for pair in case.options if pair[0] not in NON_MODEL_OPTIONS)
        key = (case.size, case.dtype, case.state_dtype, options)
        if self.model_key != key:
            self.model_key = self._current = self._checked = None  # free the old model before loading another
            self._current, self.model_key = self.load(case), key
        return self._current

    def _check(self, model: Any, case: Case) -> Checks:
        if self._checked is None:
            facts = model_facts.facts_of(model.weights(), model.head.shape[0], head_rows=self._head_rows(model))
            self._checked = self._compare(model, case) + Checks(model_facts.checks(facts, case))
        return self._checked

    @torch.inference_mode()
    def _head_rows(self, model: Any) -> float:
        ids = random_ids(model, CHECK_BATCH, self.check_prompt)
        _, rows = model_facts.count_head_rows(lambda: last_logits(model, ids), model.head)
        return rows / CHECK_BATCH

    @torch.inference_mode()
    def _compare(self, model: Any, case: Case) -> Checks:
        reference = self.reference(model, exact_dtype(case))
        prompt = self.check_prompt
        ids = random_ids(model, CHECK_BATCH, prompt + CHECK_STEPS)
        got = prefill_then_generate(model, ids, prompt)
        expected = reference.logits(ids, CHECK_STEPS + 1).transpose(0, 1)
        rounded = self.rounded_reference(model, case)
        factor = limit_factor_by_rounding(None if rounded is None else last_logits(rounded, ids), expected[-1], case)
        return check_logits(got, expected, limit_dtype(case), factor)
