"""Base class of the adapters that measure and check a language model in PyTorch."""

from typing import Any

import torch

from bench import model_facts
from bench.cost import model_work, total
from bench.kept import kept_bytes
from bench.models.config import MODELS
from bench.models.layers import mark_layers
from bench.systems.logits import check_logits, limits_by_rounding, rounding_of, widened, widening
from bench.systems.measured_peaks import peaks_of
from bench.systems.model_calls import last_logits, prefill_then_generate, random_ids
from bench.systems.on_device import device
from bench.systems.phases import Forward, Generate, PhaseWork, Request
from harness.measure.correctness import Checks
from harness.measure.system import Input, Workload
from harness.schema.case import Case
from harness.schema.work import Work

CHECK_BATCH, CHECK_PROMPT, CHECK_STEPS = 2, 37, 13  # 50 tokens pass three ends of mini-batches of 16
WITHOUT_EFFECT = ("steps", "compare", "positions")  # options that leave the model as it is


class LanguageModel:
    """An adapter (`harness.SystemAdapter`) of a model with the interface of `bench.models.base.CausalLM`.

    A subclass loads its model; the model and its reference have the same random weights.
    """

    packages: tuple[str, ...] = ()
    # Prompt tokens read before generate steps, for the record; None if the steps start at the case's context.
    prompt_tokens: int | None = 0
    form = "dual"  # form of a TTT model's generate steps
    check_prompt = CHECK_PROMPT

    def __init__(self) -> None:
        self._loaded: tuple[tuple[Any, ...], Any] | None = None
        self._checked: Checks | None = None

    def unavailable(self) -> str:
        """Return "", because PyTorch models run on any device."""
        return ""

    def settings(self, case: Case) -> dict[str, str]:
        """Return settings of a case for its record, such as wider limits."""
        return widened(case)

    def load(self, case: Case) -> Any:
        """Load the model of the case with random weights, on `device()` in the dtype of the case."""
        raise NotImplementedError

    def build(self, case: Case) -> Workload:
        """Build the workload of a case: a forward, a mini-batch of generate steps, or a request."""
        peaks = peaks_of(device())  # measured while the GPU's memory is still empty
        model = self._model(case)
        mark_layers(device() == "cuda")  # NVTX ranges cost a microsecond per layer
        work = self.work(model, case)
        self.make_ready(work)
        read = self.prompt_tokens if case.phase == "generate" else None
        prompt = {} if read is None else {"prompt_tokens": str(read)}
        cost = self.cost(model, case)
        return Workload(
            run=work.run,
            units=work.units,
            tokens=work.tokens,
            device=device(),
            capture=work.capture,
            inputs={"ids": Input(work.ids, "tokens", model.config.vocabulary, 0, work.token_axis)},
            timed_check=work.timed_check,
            renews_past=work.renews_past,
            check=lambda: self._check(model, case),
            measured=work.measured,
            metrics=self._facts(model).metrics() | total(cost).metrics() | self.kept(model, case) | peaks,
            work=cost,
            settings=self._facts(model).settings() | self.settings(case) | prompt | work.settings,
        )

    def work(self, model: Any, case: Case) -> PhaseWork:
        """Return the timed work of a case, by its phase."""
        return {"forward": Forward, "generate": Generate, "request": Request}[case.phase](self, model, case)

    def make_ready(self, work: PhaseWork) -> None:
        """Compile or tune the kernels of the work, then reset it to the start of the case. By default, do nothing."""

    def cost(self, model: Any, case: Case) -> dict[str, Work]:
        """Return FLOPs and bytes of one unit of a case (see `Workload`), by part of the model."""
        return model_work(self.counted_as(model), self._facts(model).parameters, case, self.form)

    def counted_as(self, model: Any) -> Any:
        """Return the configuration from which `bench.cost` counts FLOPs and bytes."""
        return model.config

    def kept(self, model: Any, case: Case) -> dict[str, float | None]:
        """Return the metric `state_bytes`, for the state of all sequences; {} for a system that MODELS lacks."""
        if case.system not in MODELS:
            return {}
        return {"state_bytes": case.batch * kept_bytes(model.config, case, self.form)}

    def reference(self, model: Any, dtype: torch.dtype) -> Any:
        """Return the same weights in `dtype`, with `prefill` and `logits` of `CausalLM`. By default the same class."""
        reference = type(model)(model.config, device(), dtype)
        reference.copy_weights(model)
        return reference

    def place(self, state: Any, context: int) -> None:
        """Move a KV cache to position `context` without reading tokens. A recurrent state needs no move."""

    def fill_past(self, state: Any) -> None:
        """Fill a KV cache with random numbers as its past. Recurrent states read random tokens instead."""

    def repeat_past(self, state: Any, sources: list[int]) -> None:
        """Copy the past of sequence sources[i] to sequence i."""

    def restart(self, model: Any, state: Any) -> None:
        """Reset a generate state in place to the start of its case, for the checked call."""
        model.reset_state(state)

    def rows_of_state(self, state: Any, rows: list[int]) -> Any:
        """Return the past of the sequences `rows` for `expected_logits`; None if they start at the initial state."""
        return None

    def expected_logits(self, reference: Any, begun: Any, calls: list[torch.Tensor], case: Case) -> torch.Tensor:
        """Return the reference's logits [rows, V] after the calls since a restart.

        begun: result of `rows_of_state` at the restart. calls: tokens [steps, rows] that each call read.
        """
        return last_logits(reference, torch.cat(calls).T)

    def timed_check_reference(self, model: Any, dtype: torch.dtype) -> Any:
        """Return a reference as exact as `reference` and fast enough for thousands of tokens."""
        return self.reference(model, dtype)

    def rounded_reference(self, model: Any, case: Case) -> Any:
        """Return a reference in the case's dtype, whose rounding sets the limits; None for fixed limits."""
        return self.timed_check_reference(model, getattr(torch, case.dtype))

    def _model(self, case: Case) -> Any:
        options = tuple(pair for pair in case.options if pair[0] not in WITHOUT_EFFECT)
        key = (case.size, case.dtype, case.state_dtype, options)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None  # free the old model before loading another
            self._checked = None
            self._loaded = (key, self.load(case))
        return self._loaded[1]

    @property
    def loaded(self) -> Any:
        """The key of the loaded model: (size, dtype, state dtype, options). None before the first load."""
        return self._loaded and self._loaded[0]

    def _facts(self, model: Any, **counted: float) -> model_facts.Facts:
        return model_facts.facts_of(model.weights(), model.head.shape[0], **counted)

    def _check(self, model: Any, case: Case) -> Checks:
        """Check the loaded model against its reference and for a fair comparison, once per loaded model."""
        if self._checked is None:
            fair = model_facts.checks(self._facts(model, **self._counted(model)), case)
            self._checked = self._compare(model, case) + Checks(fair)
        return self._checked

    @torch.inference_mode()
    def _counted(self, model: Any) -> dict[str, float]:
        """Run a forward and return {"head_rows": rows that pass the LM head per prompt}."""
        ids = random_ids(model, CHECK_BATCH, self.check_prompt)
        _, rows = model_facts.count_head_rows(lambda: last_logits(model, ids), model.head)
        return {"head_rows": rows / CHECK_BATCH}

    @torch.inference_mode()
    def _compare(self, model: Any, case: Case) -> Checks:
        """Compare the logits of a forward and of generate steps with those of one forward of the reference."""
        reference = self.reference(model, torch.float64 if case.dtype == "float32" else torch.float32)
        prompt = self.check_prompt
        ids = random_ids(model, CHECK_BATCH, prompt + CHECK_STEPS)
        got = prefill_then_generate(model, ids, prompt)
        expected = reference.logits(ids, CHECK_STEPS + 1).transpose(0, 1)
        return self._judge(model, ids, got, expected, case)

    def _judge(self, model: Any, ids: torch.Tensor, got: torch.Tensor, expected: torch.Tensor, case: Case) -> Checks:
        """Check logits against the expected ones, both [CHECK_STEPS + 1, B, V].

        The first follow the prompt, ids [B, T] without its last CHECK_STEPS tokens; the others follow these tokens.
        """
        rounded = self.rounded_reference(model, case)
        wider = widening(case) if rounded is None else limits_by_rounding(last_logits(rounded, ids), expected[-1], case)
        return check_logits(got, expected, rounding_of(case), wider)
