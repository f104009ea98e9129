"""Measure and check a language model whose Triton kernels its package tunes at the first call."""

from typing import Any

import torch

from bench.systems.language_model import LanguageModel, PhaseWork
from bench.systems.triton_tuning import compile_ahead, keep_choices, prepare, untuned
from harness.case import Case
from harness.gate import Verdict


class TunedLanguageModel(LanguageModel):
    """A LanguageModel that is compiled ahead, and tuned on the work that is timed before its gate runs."""

    def __init__(self) -> None:
        super().__init__()
        keep_choices()

    def make_ready(self, work: PhaseWork) -> None:
        """See LanguageModel.make_ready. What ran without its kernels left a state of what memory held."""
        if self._verdict is None:
            prepare(work.run)
        else:
            compile_ahead(work.run)
        work.restart()

    def _gate(self, model: Any, case: Case) -> Verdict:
        if self._verdict is not None:
            return self._verdict
        with untuned(lambda: (self._counted(model), self._compare(model, case))):
            torch.manual_seed(1)  # a verdict that does not depend on the case
            return super()._gate(model, case)
