"""Hooks of a model's adapter: set the past of a generate state, and name the references that read it."""

from typing import Any, ClassVar

import torch

from bench.systems.model_calls import last_logits
from bench.systems.on_device import device
from harness.schema.case import Case


class Past:
    """The hooks of an adapter that the phases call; the defaults are those of a recurrent state."""

    # Prompt tokens read before decoding; None where the state of a generate case stands at the context.
    prompt_tokens: ClassVar[int | None] = 0

    def reference(self, model: Any, dtype: torch.dtype) -> Any:
        """The same weights in `dtype`, with `prefill` and `logits` of `CausalLM`; by default the same code."""
        reference = type(model)(model.config, device(), dtype)
        reference.copy_weights(model)
        return reference

    def place(self, state: Any, context: int) -> None:
        """Set a state to `context` tokens without reading them; only a KV cache's cost depends on it."""

    def fill_past(self, state: Any) -> None:
        """Fill a KV cache before `context` with random numbers; recurrent states need none."""

    def repeat_past(self, state: Any, sources: list[int]) -> None:
        """Copy the past of sequence sources[i] to sequence i."""

    def restart(self, model: Any, state: Any) -> None:
        """Reset a generate state in place to the start of its case, for the checked call."""
        model.reset_state(state)

    def rows_of_state(self, state: Any, rows: list[int]) -> Any:
        """The past that `expected_logits` reads; empty for a state that begins at the initial state."""
        return None

    def expected_logits(self, reference: Any, begun: Any, calls: list[torch.Tensor], case: Case) -> torch.Tensor:
        """Reference logits [rows, V] after the tokens [steps, rows] of the calls since a restart."""
        return last_logits(reference, torch.cat(calls).T)

    def timed_check_reference(self, model: Any, dtype: torch.dtype) -> Any:
        """Reference for long prompts: as exact as `reference`, and fast enough for thousands of tokens."""
        return self.reference(model, dtype)

    def rounded_reference(self, model: Any, case: Case) -> Any:
        """Reference in the case's dtype, whose rounding sets the limits; None without one."""
        return self.timed_check_reference(model, getattr(torch, case.dtype))
