"""Read the config.json of a TTT checkpoint folder as Hugging Face holds it. Imports no torch.

Keys and defaults are those of `TTTConfig` in the authors' PyTorch code (github.com/test-time-training/ttt-lm-pytorch).
An absent key has the authors' default; in particular `ttt_base_lr` is then 1.0, for TTT-MLP too, although the paper
trains TTT-MLP with 0.1. A value that would make another function than `bench.models.ttt` computes is refused by name.

Checkpoints of the authors' JAX code, in which the models are trained, have no config.json: `jax_checkpoint` converts
them. Its blocks `ttt_linear` and `ttt_mlp` are the (M) backbone (`pre_conv`, `share_qk` and `use_gate` true).
"""

import json
import sys
from pathlib import Path
from typing import Any

from bench.models.config import CONV_KERNEL, CheckpointError, ConfigError, TTTConfig
from harness.schema.files import read_regular
from harness.schema.reason import clipped

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"

# Keys whose value decides the function, with the authors' defaults.
_COUNTS = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "mini_batch_size": 16,
}
_NUMBERS = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "ttt_base_lr": 1.0}
_SWITCHES = {"tie_word_embeddings": True, "pre_conv": False, "share_qk": False, "use_gate": False}
_CHOICES = {"ttt_layer_type": ("linear", "mlp"), "hidden_act": ("silu",)}  # the first is the default
_BACKBONE = ("pre_conv", "share_qk", "use_gate")

# Keys that say what the file is; absent (but for model_type) or one of these.
_DTYPES = ("float64", "float32", "float16", "bfloat16")
_KINDS: dict[str, tuple[Any, ...]] = {
    "model_type": ("ttt",),
    "architectures": (None, ["TTTForCausalLM"]),
    "dtype": (None, *_DTYPES),
    "torch_dtype": (None, *_DTYPES),
}

# Keys without influence on the logits: of training, of the tokenizer, of transformers' bookkeeping.
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
_MOST = 1 << 20  # of layers, tokens of the vocabulary, ...: a larger model fits no machine
_KNOWN = {*_COUNTS, *_NUMBERS, *_SWITCHES, *_CHOICES, *_KINDS, *_WITHOUT_EFFECT, "conv_kernel"}


def read_config(folder: str | Path) -> TTTConfig:
    """The configuration that the folder's config.json describes.

    Raises CheckpointError, with the file, the key and its value, for one that is not supported.
    """
    file = Path(folder) / CONFIG_FILE
    values = _values(file)
    _check_kind(file, values)
    counts = {key: _count(file, key, values.get(key, default)) for key, default in _COUNTS.items()}
    numbers = {key: _number(file, key, values.get(key, default)) for key, default in _NUMBERS.items()}
    switches = {key: _one_of(file, key, values.get(key, default), (True, False)) for key, default in _SWITCHES.items()}
    choices = {key: _one_of(file, key, values.get(key, known[0]), known) for key, known in _CHOICES.items()}
    try:
        return TTTConfig(
            learner=choices["ttt_layer_type"],
            width=counts["hidden_size"],
            ffn_width=counts["intermediate_size"],
            layers=counts["num_hidden_layers"],
            heads=counts["num_attention_heads"],
            vocabulary=counts["vocab_size"],
            backbone=_backbone(file, values, switches),
            mini_batch=counts["mini_batch_size"],
            base_lr=numbers["ttt_base_lr"],
            rope_theta=numbers["rope_theta"],
            norm_eps=numbers["rms_norm_eps"],
            tied=switches["tie_word_embeddings"],
        )
    except ConfigError as error:
        raise CheckpointError(f"{file}: {error}") from None


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; CheckpointError where there is none."""
    try:
        values = json.loads(read_regular(file).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{file}: not a readable JSON file ({why})") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{file}: holds {type(values).__name__}, must be a JSON object")
    return values


def _values(file: Path) -> dict[str, Any]:
    folder = file.parent
    if not folder.is_dir():
        hint = f"give its folder, {folder.parent}" if folder.exists() else "no such folder"
        raise CheckpointError(f"{folder}: {hint}; a checkpoint is a folder with {CONFIG_FILE} and safetensors files")
    if not file.exists():
        raise CheckpointError(f"{folder}: holds no {CONFIG_FILE}, which says what function its weights are of")
    return read_json(file)


def _check_kind(file: Path, values: dict[str, Any]) -> None:
    """Refuse another kind of model, and every key of unknown effect unless it is null."""
    for key, known in _KINDS.items():
        _one_of(file, key, values.get(key), known)
    for key, value in values.items():
        if key not in _KNOWN and value is not None:
            raise _refused(file, key, value, "not a setting of the published TTTConfig; remove it if it has no effect")


def _backbone(file: Path, values: dict[str, Any], switches: dict[str, bool]) -> str:
    on = [switches[key] for key in _BACKBONE]
    if any(on) != all(on):
        said = ", ".join(f"{key} = {json.dumps(switches[key])}" for key in _BACKBONE)
        raise CheckpointError(f"{file}: {said}: must be all true (Mamba backbone) or all false (Transformer backbone)")
    if all(on):
        _one_of(file, "conv_kernel", values.get("conv_kernel", CONV_KERNEL), (CONV_KERNEL,))
    return "mamba" if all(on) else "transformer"


def _count(file: Path, key: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= _MOST:
        raise _refused(file, key, value, f"must be an integer from 1 to {_MOST}")
    return value


def _number(file: Path, key: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
        raise _refused(file, key, value, "must be a positive number")
    return float(value)


def _one_of(file: Path, key: str, value: Any, known: tuple[Any, ...]) -> Any:
    """The value if it is among `known`, type included: 1 is not true."""
    if not any(type(value) is type(each) and value == each for each in known):
        raise _refused(file, key, value, f"must be {' or '.join(json.dumps(each) for each in known)}")
    return value


def _refused(file: Path, key: str, value: Any, expected: str) -> CheckpointError:
    return CheckpointError(f"{file}: {key} = {clipped(json.dumps(value), 60)}: {expected}")
