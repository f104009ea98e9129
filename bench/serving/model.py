"""A TTT language model for vLLM: the project's blocks, with states in vLLM's cache."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.config import CUDAGraphMode
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.layers.mamba.mamba_utils import get_temporal_copy_spec
from vllm.model_executor.models.interfaces import HasInnerState, IsAttentionFree, SupportsMambaPrefixCaching
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

from bench.models.checkpoint import copy_tensors
from bench.models.fused import FusedBlock
from bench.models.hugging_face import read_config
from bench.models.kernel_operator import KernelOperator
from bench.models.ttt import BlockState, TTTModel
from bench.serving.graphs import MOST_TOKENS, PromptGraphs
from bench.serving.pages import Layout, Step, hidden, warm_up
from tk_kernels.packed import Packed


class States(MambaBase):
    """One layer's states, which vLLM stores as pages of bytes; `Layout` defines a page."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.kv_cache = ()

    def bind_kv_cache(self, kv_cache: Tensor) -> None:
        self.kv_cache = (kv_cache.squeeze(dim=(1, 2)),)  # from [slots, 1, 1, bytes]

    @property
    def kv_cache(self) -> Sequence[Tensor]:
        """A sequence of one tensor, the layer's pages [slots, bytes]; empty if vLLM has no cache."""
        return self._pages

    @kv_cache.setter
    def kv_cache(self, pages: Sequence[Tensor]) -> None:
        self._pages = pages
        self.state = self.layout.state(pages[0]) if len(pages) else None

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return ((self.layout.page_bytes,),)

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        return (torch.int8,)

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        return MambaAttentionBackendEnum.CUSTOM


class TTTForCausalLM(nn.Module, HasInnerState, IsAttentionFree, SupportsMambaPrefixCaching):
    """The model class that vLLM loads: wraps a `TTTModel` and stores states in vLLM's cache."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        config, dtype = read_config(vllm_config.model_config.model), vllm_config.model_config.dtype
        self.ttt = TTTModel(
            config, vllm_config.device_config.device, dtype, KernelOperator(config.learner), block=FusedBlock
        )
        self.layout = _layout(vllm_config)
        self.states = [States(self.layout) for _ in range(config.layers)]
        known = vllm_config.compilation_config.static_forward_context
        self._names = [f"{prefix}{'.' if prefix else ''}model.layers.{index}" for index in range(config.layers)]
        known.update(zip(self._names, self.states, strict=True))
        self._is_warm = False
        self._graphs: PromptGraphs | None = None
        if vllm_config.compilation_config.cudagraph_mode != CUDAGraphMode.NONE:
            self._graphs = PromptGraphs(self.ttt, vllm_config.scheduler_config.max_num_seqs)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.ttt.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **rest: Any,
    ) -> Tensor:
        """Return the hidden states [N, C] of token ids [N], after the last norm; zeros for padding.

        C: the model's width. vLLM's forward context has the step's requests. Other arguments are ignored.
        """
        assert input_ids is not None
        metadata = (get_forward_context().attn_metadata or {}).get(self._names[0])
        if metadata is None:  # vLLM measures how much memory a step takes, or tunes FlashInfer
            if not self._is_warm:
                warm_up(self.ttt, self.layout)
                self._is_warm = True
            step, layers = self._one_prompt(len(input_ids), input_ids.device)
        else:
            step, layers = metadata.step, [each.state for each in self.states if each.state is not None]
        if self._graphs and metadata and isinstance(step, Packed) and not step.length and step.tokens <= MOST_TOKENS:
            x = self._graphs.hidden(layers, input_ids, step)
        else:
            x = hidden(self.ttt, layers, input_ids, step)
        return F.pad(self.ttt.model.norm(x), (0, 0, 0, len(input_ids) - len(x)))

    def _one_prompt(self, tokens: int, device: torch.device) -> tuple[Step, list[BlockState]]:
        ends = torch.tensor([0, tokens], dtype=torch.int32, device=device)
        state = self.layout.state(torch.zeros(1, self.layout.page_bytes, dtype=torch.int8, device=device))
        return Packed(ends, ends[:1], ends[:1].long(), tokens), [state] * len(self.states)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        return F.linear(hidden_states, self.ttt.head)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        if self._is_warm:
            raise ValueError("CUDA graphs use values of the current weights: start vLLM again to load others")
        return {f"ttt.{name}" for name in copy_tensors(self.ttt, weights)}

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: Any) -> tuple[torch.dtype, ...]:
        return (torch.int8,)

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: Any) -> tuple[tuple[int, ...], ...]:
        return ((_layout(vllm_config).page_bytes,),)

    @classmethod
    def get_mamba_state_copy_func(cls) -> tuple[Any, ...]:
        return (get_temporal_copy_spec,)


def _layout(vllm_config: Any) -> Layout:
    config = read_config(vllm_config.model_config.model)
    return Layout(config, KernelOperator(config.learner), vllm_config.model_config.dtype)
