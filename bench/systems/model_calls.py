"""Load a case's language model, and run prompts and generate steps on any `CausalLM`."""

from typing import Any

import torch

from bench.models.case_model import checkpoint_folder, config_of
from bench.models.checkpoint import load
from bench.models.factory import from_seed
from bench.systems.on_device import device
from harness.schema.case import Case

STEPS = 16  # generate steps per call, unless the mini-batch does not divide it


def model_of(case: Case, **options: Any) -> Any:
    """Load a case's model on `device()` in its dtype: a checkpoint, or seeded random weights.

    options: further arguments of the model's class, such as `operator` of `TTTModel`.
    Raises CheckpointError if the case's checkpoint cannot be loaded or is unsupported.
    """
    dtype, folder = getattr(torch, case.dtype), checkpoint_folder(case)
    if folder is None:
        return from_seed(config_of(case), 0, device(), dtype, **options)
    return load(folder, device(), dtype, **options)


def random_ids(model: Any, *shape: int) -> torch.Tensor:
    return torch.randint(0, model.config.vocabulary, shape, device=device())


def prefill_then_generate(model: Any, ids: torch.Tensor, prompt: int) -> torch.Tensor:
    """Run the first `prompt` tokens of ids [B, T] as a prompt, then one token per step.

    Returns logits [T - prompt + 1, B, V]: after the prompt, then after each later token.
    """
    logits, state = model.prefill(ids[:, :prompt], model.init_state(*ids.shape))
    rows, state = [logits.clone()], model.generate_state(state)
    for column in range(prompt, ids.shape[1]):
        rows.append(model.generate_step(ids[:, column], state)[0].clone())
    return torch.stack(rows)


def exact_dtype(case: Case) -> torch.dtype:
    """Return the dtype of exact references: float64 for float32 cases, else float32."""
    return torch.float64 if case.dtype == "float32" else torch.float32


def last_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits [B, V] after prompt ids [B, T], from an empty state."""
    return model.prefill(ids, model.init_state(*ids.shape))[0]


def greedy_steps(model: Any, ids: torch.Tensor, state: Any, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Run greedy generate steps from token ids [B]; update `state` in place.

    Returns the last logits [B, V], and the token ids [steps, B] that the steps read.
    """
    read = []
    for _ in range(steps):
        read.append(ids)
        logits, _ = model.generate_step(ids, state)
        ids = logits.argmax(-1)
    return logits, torch.stack(read)
