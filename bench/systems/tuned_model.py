"""Base class of adapters whose package tunes Triton kernels at the first call."""

from typing import Any

import torch

from bench.systems.language_model import LanguageModel
from bench.systems.phases import PhaseWork
from bench.systems.triton_tuning import compile_ahead, prepare, retuning, untuned
from harness.measure.correctness import Checks
from harness.schema.case import Case

SPAN_BITS = 4  # a tuning serves all cases with the same log2(tokens per pass) // SPAN_BITS


class TunedLanguageModel(LanguageModel):
    """Base class of adapters that compile and tune Triton kernels on the timed work.

    A case reuses the previous case's tuning if model, phase and log16(tokens per pass), rounded down, are equal.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tuned: tuple[Any, str, int] | None = None

    def prepare_kernels(self, work: PhaseWork) -> None:
        """Compile `work`'s kernels, tune them unless a tuning can be reused, and reset the state."""
        tokens = work.case.batch * (1 if work.case.phase == "generate" else work.case.context)
        phase, span = work.case.phase, (tokens.bit_length() - 1) // SPAN_BITS
        wanted = (self.model_key, phase, span)
        if wanted != self._tuned:
            with retuning():
                prepare(work.launch_each_kernel)
            self._tuned = wanted
        else:
            compile_ahead(work.launch_each_kernel)
        low, high = 1 << SPAN_BITS * span, (1 << SPAN_BITS * (span + 1)) - 1
        work.settings |= {"tuned": f"on the first {phase} of {low:,} to {high:,} tokens per pass"}
        work.restart()

    def _check(self, model: Any, case: Case) -> Checks:
        if self._checked is not None:
            return self._checked
        with untuned(lambda: (self._head_rows(model), self._compare(model, case))):
            torch.manual_seed(1)  # the same inputs for every case
            return super()._check(model, case)
