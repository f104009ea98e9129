"""Register TTT models in vLLM: the class, its backend, and the check of settings."""

from typing import Any

from vllm import ModelRegistry
from vllm.model_executor.models.config import MODELS_CONFIG_MAP, MambaModelConfig
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum, register_backend

from bench.models.hugging_face import read_config
from bench.serving.hugging_face import ARCHITECTURE
from bench.serving.refusals import refused


class TTTSettings(MambaModelConfig):
    """Checks an engine's settings; vLLM calls it once for a TTT model, before the start."""

    @classmethod
    def verify_and_update_config(cls, vllm_config: Any) -> None:
        """Raise ValueError if the checkpoint folder or a setting is not supported."""
        super().verify_and_update_config(vllm_config)
        model, parallel, cache = vllm_config.model_config, vllm_config.parallel_config, vllm_config.cache_config
        why = refused(
            read_config(model.model).mini_batch,
            tensor_parallel=parallel.tensor_parallel_size,
            pipeline_parallel=parallel.pipeline_parallel_size,
            block_size=cache.mamba_block_size if cache.enable_prefix_caching else None,
            speculative=vllm_config.speculative_config is not None,
            lora=vllm_config.lora_config is not None,
            quantization=model.quantization,
            dtype=str(model.dtype).removeprefix("torch."),
            v1_model_runner=not vllm_config.use_v2_model_runner,
        )
        if why:
            raise ValueError(why)


def register_model() -> None:
    """Register the model's class, its backend and the check of its settings in vLLM."""
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():  # a process may have registered the class itself
        ModelRegistry.register_model(ARCHITECTURE, f"bench.serving.model:{ARCHITECTURE}")
    backend = "bench.serving.metadata.TTTBackend"
    register_backend(MambaAttentionBackendEnum.CUSTOM, backend, is_mamba=True)
    MODELS_CONFIG_MAP[ARCHITECTURE] = TTTSettings
