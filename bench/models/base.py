"""The language models' interface, and a base class that runs long prompts in chunks.

Shapes: B sequences, T tokens per sequence, C = width of the model, V = size of the vocabulary.
"""

from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from bench.models.config import NORM_EPS


class CausalLM(nn.Module):
    """A language model: next-token logits from token ids and a state, updated in place.

    The state's tensors stay at their addresses, so a CUDA graph of `generate_step` serves every later step and prompt.
    A graph replay does not update `state.length`, the number of tokens read. Set it to None before a `prefill` that
    continues the sequences.
    """

    def init_state(self, batch: int, context: int) -> Any:
        """Return the state of `batch` new sequences with room for `context` tokens each."""
        raise NotImplementedError

    def reset_state(self, state: Any) -> None:
        """Make a state empty again, in place."""
        raise NotImplementedError

    def generate_state(self, state: Any, into: Any = None) -> Any:
        """Convert a `prefill` state for `generate_step`; may return `state`, or share its tensors.

        into: an earlier result for this `state`, to overwrite and return. CUDA graphs that use it stay valid.
        """
        return state

    def init_generate_state(self, batch: int, context: int) -> Any:
        """Return an empty state for `generate_step`, with room for `context` tokens."""
        return self.generate_state(self.init_state(batch, context))

    def prefill(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read the next tokens, ids [B, T]; return (logits [B, V] after the last one, state)."""
        raise NotImplementedError

    def generate_step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read the next token, ids [B]; return (logits [B, V], state), without a host sync."""
        raise NotImplementedError

    @torch.no_grad()
    def logits(self, ids: Tensor, last: int) -> Tensor:
        """Run new sequences ids [B, T]; return logits [B, last, V] of the `last` final positions."""
        return self._logits(self._hidden(ids, self.init_state(*ids.shape))[:, -last:])

    def _hidden(self, ids: Tensor, state: Any) -> Tensor:
        """Run ids [B, T] and advance the state; return the residual stream [B, T, C]."""
        raise NotImplementedError

    def _logits(self, hidden: Tensor) -> Tensor:
        """Apply the final norm and LM head to the residual stream [..., C]; return logits [..., V]."""
        raise NotImplementedError

    def weights(self) -> dict[str, Tensor]:
        """Return the weights by their names in a checkpoint; a tied weight appears once."""
        return {name: weight.detach() for name, weight in self.named_parameters()}

    def copy_weights(self, other: "CausalLM") -> None:
        """Copy the weights of `other` into this model, by name, converted to this model's dtype."""
        given = other.weights()
        for name, weight in self.weights().items():
            weight.copy_(given[name])

    @property
    def head(self) -> Tensor:
        """The LM head's weight [V, C]; a tied head shares the embedding's memory."""
        raise NotImplementedError

    @property
    def tied(self) -> dict[str, str]:
        """Names that checkpoints use for a tied LM head, each mapped to the embedding's name."""
        return {}


class PackageModel(CausalLM):
    """Base class that adapts another package's model, `inner`, to the `CausalLM` interface."""

    inner: Any

    def weights(self) -> dict[str, Tensor]:
        return {name: weight.detach() for name, weight in self.inner.named_parameters()}

    @property
    def head(self) -> Tensor:
        return self.inner.lm_head.weight


class Decoder(nn.Module):
    """The embedding, blocks and final norm; their names in checkpoints begin with `model.`."""

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
        self.embed_tokens = skip_init(nn.Embedding, vocabulary, width, device=device, dtype=dtype)
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(width, norm_eps, device=device, dtype=dtype)


class ChunkedModel(CausalLM):
    """A model that runs long prompts in parts, to bound the memory of activations.

    Groups of sequences run one after another, each in chunks of tokens. Small groups allow long chunks, which read and
    write the state less often. The LM head uses the embedding's weight unless `lm_head` is set.
    """

    model: Decoder
    # Tokens of a chunk, over all sequences of its group. A 1.3B model's widest activation then takes 0.4 GB.
    chunk_tokens = 32768
    least_group_capacity = 1  # sequences that a group may have, however long their prompts are

    def __init__(self) -> None:
        super().__init__()
        self.lm_head: nn.Linear | None = None

    @torch.no_grad()
    def prefill(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        check_ids(ids, 2, state.batch)
        groups = self._groups(*ids.shape)
        if len(groups) == 1:
            return self._logits(self._run_group(ids, state)), state
        parts = [state.rows(rows) for rows in groups]
        last = [self._run_group(ids[rows], part) for rows, part in zip(groups, parts, strict=True)]
        state.length = parts[0].length
        return self._logits(torch.cat(last)), state

    @torch.no_grad()
    def generate_step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        check_ids(ids, 1, state.batch)
        return self._logits(self._hidden_step(ids[:, None], state)[:, 0]), state

    @property
    def tied(self) -> dict[str, str]:
        return {} if self.lm_head is not None else {"lm_head.weight": "model.embed_tokens.weight"}

    @property
    def head(self) -> Tensor:
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    @property
    def device(self) -> torch.device:
        return self.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of embedding, activations and projections."""
        return self.model.embed_tokens.weight.dtype

    def _hidden_step(self, ids: Tensor, state: Any) -> Tensor:
        """Run ids [B, 1] and advance the state; return the residual stream [B, 1, C]."""
        raise NotImplementedError

    def run_block(self, block: nn.Module, h: Tensor) -> Tensor:
        """Run one block on h [B, T, C] from an empty state, on h's device; return the new h."""
        raise NotImplementedError

    def _groups(self, batch: int, tokens: int) -> list[slice]:
        most = max(self.least_group_capacity, self.chunk_tokens // tokens)
        size = ceil(batch / ceil(batch / most))
        return [slice(first, min(first + size, batch)) for first in range(0, batch, size)]

    def _run_group(self, ids: Tensor, state: Any) -> Tensor:
        """Run ids [B, T] in chunks of tokens; return the last token's residual stream [B, C]."""
        for chunk in ids.split(self._chunk_length(ids.shape[0]), dim=1):
            hidden = self._hidden(chunk, state)
        return hidden[:, -1]

    def _chunk_length(self, batch: int) -> int:
        return max(1, self.chunk_tokens // batch)

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(self.model.norm(hidden), self.head)


def check_ids(ids: Tensor, dimensions: int, batch: int) -> None:
    """Raise ValueError unless ids are non-empty, with `dimensions` axes and `batch` rows."""
    if ids.dim() != dimensions or ids.numel() == 0:
        layout = "[batch, tokens]" if dimensions == 2 else "[batch]"
        raise ValueError(f"ids of shape {list(ids.shape)}: expected {layout}, at least one token")
    if ids.shape[0] != batch:
        raise ValueError(f"ids of {ids.shape[0]} sequences: the state has {batch}")
