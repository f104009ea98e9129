"""How a model's adapter sets the past of a generate state, and the references that read the same past."""

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
        """The same function with the same weights in `dtype`; by default the same code."""
        reference = type(model)(model.config, device(), dtype)
        reference.copy_weights(model)
        return reference

    def place(self, state: Any, context: int) -> None:
        """Put a state at `context` tokens without reading them; only a KV cache's cost depends on where it stands."""

    def fill_past(self, state: Any) -> None:
        """Fill what a generate state keeps of the tokens before `place`, with random numbers; a cache alone does."""

    def repeat_past(self, state: Any, sources: list[int]) -> None:
        """Copy what `fill_past` filled of the sequence sources[i] to sequence i; sources[i] has itself as source."""

    def restart(self, model: Any, state: Any) -> None:
        """Put a generate state where a generate case begins, in place, for the call that is checked."""
        model.reset_state(state)

    def rows_of_state(self, state: Any, rows: list[int]) -> Any:
        """What `expected_logits` needs of a state's past; nothing where it begins before the first token."""
        return None

    def expected_logits(self, reference: Any, begun: Any, calls: list[torch.Tensor], case: Case) -> torch.Tensor:
        """The reference's logits [rows, V] after the tokens [steps, rows] of calls that follow a restart."""
        return last_logits(reference, torch.cat(calls).T)

    def witness_reference(self, model: Any, dtype: torch.dtype) -> Any:
        """The reference for long prompts: as exact as `reference`, and fast enough for thousands of tokens."""
        return self.reference(model, dtype)

    def rounded_reference(self, model: Any, case: Case) -> Any:
        """A reference in the case's dtype, whose rounding sets the limits; None where there is none."""
        return self.witness_reference(model, getattr(torch, case.dtype))
