"""The language models that are measured.

`config` holds the sizes, `hugging_face` reads a checkpoint's config.json; they import no torch, so that the parent
process can use them. `factory` makes models from a seed, `checkpoint` from files. `ttt`, `transformer` and `mamba` are
the models. A TTT model takes two parts from outside: the inner loop (`operator`: PyTorch; `kernel_operator`: the
project's kernels) and the block around it (`ttt.TTTBlock`: PyTorch; `fused.FusedBlock`: fused kernels).
"""

from bench.models.config import (
    BACKBONES,
    MODELS,
    SIZES,
    ConfigError,
    MambaConfig,
    ModelConfig,
    TransformerConfig,
    TTTConfig,
    model_config,
    parameter_count,
)

__all__ = [
    "BACKBONES",
    "MODELS",
    "SIZES",
    "ConfigError",
    "MambaConfig",
    "ModelConfig",
    "TTTConfig",
    "TransformerConfig",
    "model_config",
    "parameter_count",
]
