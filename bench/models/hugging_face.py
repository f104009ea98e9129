"""Read and write a TTT checkpoint's config.json in Hugging Face's layout, without torch.

Keys and defaults are those of `TTTConfig` in the authors' PyTorch code (github.com/test-time-training/ttt-lm-pytorch).
An absent key takes its default. `ttt_base_lr` is then 1.0 for TTT-MLP too, although the paper uses 0.1.
An unsupported value raises CheckpointError with the key's name.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.models.config import CONV_KERNEL, CheckpointError, ConfigError, TTTConfig
from harness.schema.files import read_regular
from harness.schema.reason import clipped

CONFIG_FILE = "config.json"

# Keys without influence on the logits: training, tokenizer, bookkeeping of transformers.
_WITHOUT_EFFECT = {
    "_name_or_path",
    "auto_map",
    "bos_token_id",
    "eos_token_id",
    "initializer_range",
    "max_position_embeddings",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",
    "return_dict",
    "scan_checkpoint_group_size",
    "transformers_version",
    "use_cache",
}
_BACKBONE = ("pre_conv", "share_qk", "use_gate")
_FIELDS = {  # key -> field of TTTConfig; the keys in _BACKBONE give `backbone`
    "ttt_layer_type": "learner",
    "ttt_base_lr": "base_lr",
    "vocab_size": "vocabulary",
    "hidden_size": "width",
    "intermediate_size": "ffn_width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "mini_batch_size": "mini_batch",
    "rms_norm_eps": "norm_eps",
    "rope_theta": "rope_theta",
    "tie_word_embeddings": "tied",
}

_Count = Annotated[int, Field(ge=1, le=1 << 20)]  # a larger model fits no machine
_Number = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Dtype = Literal["float64", "float32", "float16", "bfloat16"] | None


class _Settings(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    model_type: Literal["ttt"]
    architectures: Annotated[list[Literal["TTTForCausalLM"]], Field(min_length=1, max_length=1)] | None = None
    dtype: _Dtype = None
    torch_dtype: _Dtype = None
    vocab_size: _Count = 32000
    hidden_size: _Count = 2048
    intermediate_size: _Count = 5504
    num_hidden_layers: _Count = 24
    num_attention_heads: _Count = 32
    mini_batch_size: _Count = 16
    rms_norm_eps: _Number = 1e-6
    rope_theta: _Number = 10000.0
    ttt_base_lr: _Number = 1.0
    tie_word_embeddings: bool = True
    pre_conv: bool = False
    share_qk: bool = False
    use_gate: bool = False
    ttt_layer_type: Literal["linear", "mlp"] = "linear"
    hidden_act: Literal["silu"] = "silu"
    conv_kernel: Any = CONV_KERNEL


def read_config(folder: str | Path) -> TTTConfig:
    """Read a folder's config.json; CheckpointError for a missing file or an unsupported setting."""
    file = Path(folder) / CONFIG_FILE
    if not file.exists():
        raise CheckpointError(f"{file.parent}: holds no {CONFIG_FILE}; name a folder with it and safetensors files")
    known = _Settings.model_fields
    values = {
        key: value
        for key, value in read_json(file).items()
        if key not in _WITHOUT_EFFECT and (key in known or value is not None)  # an unknown key counts unless null
    }
    try:
        settings = _Settings.model_validate(values)
        fields = {name: getattr(settings, key) for key, name in _FIELDS.items()}
        return TTTConfig(**fields, backbone=_backbone(file, settings))
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        must = first["msg"].replace("Input should be", "must be")
        if first["type"] == "extra_forbidden":
            must = "not a setting of the published TTTConfig; remove it if it has no effect"
        raise _setting_error(file, key, values.get(key), must) from None
    except ConfigError as error:
        raise CheckpointError(f"{file}: {error}") from None


def config_values(config: TTTConfig) -> dict[str, Any]:
    """Return the content of a config.json from which `read_config` restores `config`."""
    return {
        "model_type": "ttt",
        "architectures": ["TTTForCausalLM"],
        **{key: getattr(config, name) for key, name in _FIELDS.items()},
        **dict.fromkeys(_BACKBONE, config.backbone == "mamba"),
    }


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object from a checkpoint's file; CheckpointError if it is none."""
    try:
        values = json.loads(read_regular(file).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{file}: not a readable JSON file ({why})") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{file}: holds {type(values).__name__}, must be a JSON object")
    return values


def _backbone(file: Path, settings: _Settings) -> str:
    on = [getattr(settings, key) for key in _BACKBONE]
    if any(on) != all(on):
        values = ", ".join(f"{key} = {json.dumps(getattr(settings, key))}" for key in _BACKBONE)
        raise CheckpointError(f"{file}: {values}: must be all true (Mamba backbone) or all false (Transformer)")
    if all(on) and settings.conv_kernel != CONV_KERNEL:
        raise _setting_error(file, "conv_kernel", settings.conv_kernel, f"must be {CONV_KERNEL}")
    return "mamba" if all(on) else "transformer"


def _setting_error(file: Path, key: str, value: Any, must: str) -> CheckpointError:
    return CheckpointError(f"{file}: {key} = {clipped(json.dumps(value), 60)}: {must}")
