"""Hooks of a model's adapter: set a generate state's past (the tokens that it has read), and make references."""

from typing import Any, ClassVar

import torch

from bench.systems.model_calls import last_logits
from bench.systems.on_device import device
from harness.schema.case import Case


class Past:
    """Hooks of an adapter that `bench.systems.phases` calls. The defaults are for a recurrent state."""

    # Prompt tokens read before generate steps, for the record; None if the steps start at the case's context.
    prompt_tokens: ClassVar[int | None] = 0

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
