"""vLLM step metadata for TTT layers."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.attention.backends.mamba_attn import BaseMambaAttentionMetadata, BaseMambaAttentionMetadataBuilder

from bench.models.hugging_face import read_config
from bench.serving.pages import Generating, Step, common_length
from tk_kernels.packed import Packed


@dataclass
class TTTMetadata(BaseMambaAttentionMetadata):
    """vLLM's metadata of a step for state-space models, plus the `Step` that a TTT model runs."""

    step: Step | None = None


class TTTMetadataBuilder(BaseMambaAttentionMetadataBuilder[TTTMetadata]):
    """Builds `TTTMetadata`: a step with prompts is `Packed`, any other step is `Generating`."""

    metadata_cls = TTTMetadata
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    needs_causal_conv1d_metadata = False
    supports_update_block_table = False

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._mini_batch = read_config(vllm_config.model_config.model).mini_batch
        sequences = vllm_config.scheduler_config.max_num_seqs
        self._slots = torch.zeros(sequences, dtype=torch.int64, device=device)  # CUDA graphs read both buffers
        self._positions = torch.zeros(sequences, dtype=torch.int32, device=device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
        **rest: Any,
    ) -> TTTMetadata:
        found = self._compute_common_metadata(common_attn_metadata)
        count, prompts = found.num_decodes, found.num_prefills
        if prompts:
            found.step = self._packed(common_attn_metadata, found)
            return found
        tokens = common_attn_metadata.seq_lens[:count]
        step = Generating(self._slots[:count], self._positions[:count])
        assert found.state_indices_tensor_d is not None
        # Requests that only pad the batch to a CUDA graph's size have no token; they use slot 0, which is spare.
        step.slots.copy_(torch.where(tokens > 0, found.state_indices_tensor_d[:count, 0], 0))
        step.positions.copy_((tokens - 1).clamp_min(0) % self._mini_batch)
        found.step = step
        return found

    def _packed(self, common: CommonAttentionMetadata, found: TTTMetadata) -> Packed:
        count, requests = found.num_decodes, found.num_reqs
        computed, starts = self._prefill_cpu_metadata(common, requests, found.num_prefills, count)  # no GPU wait
        lengths = starts.diff().tolist()
        length = 0 if count else common_length(lengths, computed.tolist(), self._mini_batch)
        ends = common.query_start_loc[: requests + 1]
        before = common.seq_lens[:requests] - ends.diff()
        slots = found.state_indices_tensor_p
        assert slots is not None
        if count:
            assert found.state_indices_tensor_d is not None
            slots = torch.cat((found.state_indices_tensor_d[:count, 0], slots))
        return Packed(ends.int(), before.int(), slots.long(), count + sum(lengths), length)


class TTTBackend(AttentionBackend):
    """The attention backend from which vLLM gets the metadata builder of TTT layers."""

    @staticmethod
    def get_name() -> str:
        return "TTT"

    @staticmethod
    def get_builder_cls() -> type[TTTMetadataBuilder]:
        return TTTMetadataBuilder

    @classmethod
    def is_ssm(cls) -> bool:
        return True
