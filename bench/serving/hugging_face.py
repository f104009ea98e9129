"""Subclasses of transformers' PretrainedConfig for TTT checkpoints."""

from typing import Any

from transformers import PretrainedConfig

ARCHITECTURE = "TTTForCausalLM"


class HuggingFaceConfig(PretrainedConfig):
    """A TTT checkpoint's config.json for transformers; checked by `read_config`, not here."""

    model_type = "ttt"

    def __init__(self, **values: Any) -> None:
        values.pop("max_position_embeddings", None)  # a TTT model's state holds any context
        super().__init__(**{"architectures": [ARCHITECTURE], "tie_word_embeddings": True, **values})


def unusable_config(why: str) -> type[HuggingFaceConfig]:
    """Return a configuration class whose constructor raises ValueError(why), so no checkpoint opens."""

    class UnusableConfig(HuggingFaceConfig):
        def __init__(self, **values: Any) -> None:
            raise ValueError(why)

    return UnusableConfig
