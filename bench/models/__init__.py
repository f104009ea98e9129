"""Which models are measured?

`config` holds the sizes and imports no torch, so that the parent process may read it; `factory` and `checkpoint` make
models from a seed or a file; `ttt`, `transformer` and `mamba` are the models; `operator` is the seam at which a TTT
backend is put in.
"""

from bench.models.config import (
    SIZES,
    SYSTEMS,
    ConfigError,
    MambaConfig,
    ModelConfig,
    TransformerConfig,
    TTTConfig,
    model_config,
    parameter_count,
)

__all__ = [
    "SIZES",
    "SYSTEMS",
    "ConfigError",
    "MambaConfig",
    "ModelConfig",
    "TTTConfig",
    "TransformerConfig",
    "model_config",
    "parameter_count",
]
