"""Register TTT models in vLLM, with a check of the engine's settings."""

from typing import Any

from vllm import ModelRegistry
from vllm.model_executor.models.config import MODELS_CONFIG_MAP, MambaModelConfig
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum, register_backend

from bench.models.hugging_face import read_config
from bench.serving.hugging_face import ARCHITECTURE
from bench.serving.refusals import unsupported_setting


class TTTModelConfig(MambaModelConfig):
    """Hook that vLLM calls before an engine starts: check its settings, set its scheduler."""

    @classmethod
    def verify_and_update_config(cls, vllm_config: Any) -> None:
        """Raise ValueError for unsupported settings; default to `TTTScheduler` for async scheduling."""
        super().verify_and_update_config(vllm_config)
        if why := unsupported_setting(vllm_config, read_config(vllm_config.model_config.model).mini_batch):
            raise ValueError(why)
        scheduler = vllm_config.scheduler_config
        if scheduler.scheduler_cls is None and scheduler.async_scheduling is not False:
            scheduler.scheduler_cls = "bench.serving.scheduler.TTTScheduler"


def register_model() -> None:
    """Register the model's class, its attention backend and its configuration hook in vLLM."""
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():  # an adapter may have registered the class object
        ModelRegistry.register_model(ARCHITECTURE, f"bench.serving.model:{ARCHITECTURE}")
    backend = "bench.serving.metadata.TTTBackend"
    register_backend(MambaAttentionBackendEnum.CUSTOM, backend, is_mamba=True)
    MODELS_CONFIG_MAP[ARCHITECTURE] = TTTModelConfig
