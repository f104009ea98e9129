"""Base class of adapters whose package tunes Triton kernels at the first call."""

from typing import Any

import torch

from bench.systems.language_model import LanguageModel
from bench.systems.phases import PhaseWork
from bench.systems.triton_tuning import chosen_anew, compile_ahead, keep_choices, prepare, untuned
from harness.measure.correctness import Checks
from harness.schema.case import Case

SPAN_BITS = 4  # one tuning serves work within a factor of 16 in tokens at once


class TunedLanguageModel(LanguageModel):
    """Base class of adapters that compile and tune Triton kernels on the timed work.

    A case reuses the previous case's tuning if model, phase and log16(tokens per pass), rounded down, are equal.
    """

    def __init__(self) -> None:
        super().__init__()
        keep_choices()
        self._tuned: tuple[Any, str, int] | None = None

    def make_ready(self, work: PhaseWork) -> None:
        """Compile `work`'s kernels, tune them unless a tuning can be reused, and reset the state."""
        at_once = work.case.batch * (1 if work.case.phase == "generate" else work.case.context)
        phase, span = work.case.phase, (at_once.bit_length() - 1) // SPAN_BITS
        wanted = (self.loaded, phase, span)
        if wanted != self._tuned:
            with chosen_anew():
                prepare(work.launch_each_kernel)
            self._tuned = wanted
        else:
            compile_ahead(work.launch_each_kernel)
        low, high = 1 << SPAN_BITS * span, (1 << SPAN_BITS * (span + 1)) - 1
        work.settings |= {"tuned": f"on the first {phase} of {low:,} to {high:,} tokens at once"}
        work.restart()

    def _check(self, model: Any, case: Case) -> Checks:
        if self._checked is not None:
            return self._checked
        with untuned(lambda: (self._head_rows(model), self._compare(model, case))):
            torch.manual_seed(1)  # the same inputs for every case
            return super()._check(model, case)
