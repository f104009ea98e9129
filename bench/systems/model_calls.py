"""Calls of a language model with the interface of `bench.models.base.CausalLM`."""

from typing import Any

import torch

from bench.systems.on_device import device

STEPS = 16  # of one call of generate; see `steps_of`


def random_ids(model: Any, *shape: int) -> torch.Tensor:
    """Draw token ids by PyTorch's default generator."""
    return torch.randint(0, model.config.vocabulary, shape, device=device())


def prefill_then_generate(model: Any, ids: torch.Tensor, prompt: int) -> torch.Tensor:
    """The logits after the first `prompt` of ids [B, T] and after each later one: [T - prompt + 1, B, V]."""
    logits, state = model.prefill(ids[:, :prompt], model.init_state(*ids.shape))
    rows, state = [logits.clone()], model.generate_state(state)
    for column in range(prompt, ids.shape[1]):
        rows.append(model.generate_step(ids[:, column], state)[0].clone())
    return torch.stack(rows)


def last_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The logits [B, V] after ids [B, T]."""
    return model.prefill(ids, model.init_state(*ids.shape))[0]


def greedy_steps(model: Any, ids: torch.Tensor, state: Any, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`steps` tokens, each the most probable after the one before: logits [B, V] of the last step, tokens [steps, B].

    The tokens are those that the steps read, `ids` first.
    """
    read = []
    for _ in range(steps):
        read.append(ids)
        logits, _ = model.generate_step(ids, state)
        ids = logits.argmax(-1)
    return logits, torch.stack(read)


def steps_of(model: Any) -> int:
    """Steps per generate call: whole mini-batches, so that each call rewrites W."""
    mini_batch = getattr(model.config, "mini_batch", 1)
    return STEPS if STEPS % mini_batch == 0 else mini_batch
