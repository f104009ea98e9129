"""The interface of every model (prefill, generate, weights), and prefill in pieces of bounded memory."""

from math import ceil
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.config import NORM_EPS
from bench.models.layers import RMSNorm, embedding, fill_with_initial_weights

# A chunk of 32768 tokens of the 1.3B model in bfloat16 needs 0.4 GB for its widest activation (5504), and has a few of
# these at a time, however long the prompts are. Smaller chunks would leave a large GPU idle.
PREFILL_TOKENS = 32768


class CausalLM(nn.Module):
    """Token ids and a state in, logits of the next token out; the state's tensors are updated in place.

    Every call leaves the state's tensors where they are in memory: a CUDA graph of one generate_step captured on a
    state serves every later step and, after reset_state and prefill, every later prompt. To prefill between replays of
    a graph without a reset, set `state.length = None` first, where the state has a length.
    """

    @classmethod
    def from_seed(cls, config: Any, seed: int, device: torch.device | str, dtype: torch.dtype, **options: Any) -> Self:
        """A model with random initial weights, the same for a seed on every device of one kind.

        The weights are drawn on the device, for speed; a CPU and a GPU therefore draw different ones.
        """
        model = cls(config, device, dtype, **options)
        model.fill(seed)
        return model

    def init_state(self, batch: int, context: int) -> Any:
        """The state of `batch` sequences before their first token; `context` is how many tokens it must hold."""
        raise NotImplementedError

    def reset_state(self, state: Any) -> None:
        """Put a used state back before its first token, in place."""
        raise NotImplementedError

    def generate_state(self, state: Any, into: Any = None) -> Any:
        """The state that generate_step takes, made from the one that prefill left: here the same."""
        return state

    def init_generate_state(self, batch: int, context: int) -> Any:
        """A state for generate_step before the first token."""
        return self.generate_state(self.init_state(batch, context))

    def prefill(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """ids [B, T], the next T tokens of every sequence -> (logits [B, V] after the last of them, state)."""
        raise NotImplementedError

    def generate_step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """ids [B], the next token of every sequence -> (logits [B, V] after it, state); no host synchronisation."""
        raise NotImplementedError

    def fill(self, seed: int) -> None:
        """Overwrite all weights with random initial ones."""
        raise NotImplementedError

    def weights(self) -> dict[str, Tensor]:
        """Every weight once, by its name in a checkpoint."""
        return {name: weight.detach() for name, weight in self.named_parameters()}

    def copy_weights(self, other: "CausalLM") -> None:
        """Overwrite all weights with those of the same names in `other`, in this model's dtype."""
        given = other.weights()
        for name, weight in self.weights().items():
            weight.copy_(given[name])

    @property
    def head(self) -> Tensor:
        """The LM head's weight [V, C], where logits are computed with it: the embedding's own memory where tied."""
        raise NotImplementedError

    @property
    def tied(self) -> dict[str, str]:
        """Names that a checkpoint may also hold -> the weight that each of them repeats."""
        return {}


class Decoder(nn.Module):
    """The part of a model under the prefix `model.`: embedding, blocks, last norm."""

    def __init__(
        self,
        vocabulary: int,
        width: int,
        blocks: list[nn.Module],
        device: torch.device,
        dtype: torch.dtype,
        norm_eps: float = NORM_EPS,
    ) -> None:
        super().__init__()
        self.embed_tokens = embedding(vocabulary, width, device, dtype)
        self.layers = nn.ModuleList(blocks)
        self.norm = RMSNorm(width, device, dtype, norm_eps)


class ChunkedModel(CausalLM):
    """A model that runs prompts in pieces. Its head is its embedding unless it has an `lm_head`.

    A piece is a chunk of the prompts of a group of sequences. Groups go through their prompts one after another, as few
    sequences as fill a piece: a state is read and written once a chunk, so the fewer chunks, the less its traffic.
    """

    model: Decoder
    prefill_tokens = PREFILL_TOKENS  # of all sequences of a group together, in one chunk
    least_group = 1  # sequences of a group, however long their prompts are

    def __init__(self) -> None:
        super().__init__()
        self.lm_head: nn.Linear | None = None

    @torch.no_grad()
    def prefill(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """See CausalLM.prefill. Raises ValueError for an empty prompt and for a batch that is not the state's."""
        check_ids(ids, 2, state.batch)
        groups = self._groups(*ids.shape)
        if len(groups) == 1:
            return self._logits(self._through_prompt(ids, state)), state
        parts = [state.rows(rows) for rows in groups]
        last = [self._through_prompt(ids[rows], part) for rows, part in zip(groups, parts, strict=True)]
        state.length = parts[0].length
        return self._logits(torch.cat(last)), state

    @torch.no_grad()
    def generate_step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """See CausalLM.generate_step. Raises ValueError for a batch that is not the state's."""
        check_ids(ids, 1, state.batch)
        return self._logits(self._hidden_step(ids[:, None], state)), state

    @torch.no_grad()
    def fill(self, seed: int) -> None:
        fill_with_initial_weights(self, torch.Generator(self.device).manual_seed(seed))

    @property
    def tied(self) -> dict[str, str]:
        """See CausalLM.tied."""
        return {} if self.lm_head is not None else {"lm_head.weight": "model.embed_tokens.weight"}

    @property
    def head(self) -> Tensor:
        """See CausalLM.head."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    @property
    def device(self) -> torch.device:
        return self.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of tokens and projections."""
        return self.model.embed_tokens.weight.dtype

    def _hidden(self, ids: Tensor, state: Any) -> Tensor:
        """ids [B, T] -> the residual stream [B, T, C] after the last block."""
        raise NotImplementedError

    def _hidden_step(self, ids: Tensor, state: Any) -> Tensor:
        """ids [B, 1] -> the residual stream [B, 1, C] after the last block."""
        raise NotImplementedError

    def _groups(self, batch: int, tokens: int) -> list[slice]:
        """Which sequences go through their prompts together: groups of one size but for a last smaller one."""
        most = max(self.least_group, self.prefill_tokens // tokens)
        size = ceil(batch / ceil(batch / most))
        return [slice(first, min(first + size, batch)) for first in range(0, batch, size)]

    def _through_prompt(self, ids: Tensor, state: Any) -> Tensor:
        """ids [B, T] of a group, chunk by chunk -> the residual stream [B, 1, C] after their last token."""
        for chunk in ids.split(self._chunk_length(ids.shape[0]), dim=1):
            hidden = self._hidden(chunk, state)
        return hidden[:, -1:]

    def _chunk_length(self, batch: int) -> int:
        return max(1, self.prefill_tokens // batch)

    def _logits(self, hidden: Tensor) -> Tensor:
        """The head on the last token alone: [B, T, C] -> [B, V]."""
        return F.linear(self.model.norm(hidden[:, -1]), self.head)


def check_ids(ids: Tensor, dimensions: int, batch: int) -> None:
    if ids.dim() != dimensions or ids.numel() == 0:
        layout = "[batch, tokens]" if dimensions == 2 else "[batch]"
        raise ValueError(f"ids of shape {list(ids.shape)}: expected {layout}, at least one token")
    if ids.shape[0] != batch:
        raise ValueError(f"ids of {ids.shape[0]} sequences: the state is of {batch}")
