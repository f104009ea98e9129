"""Load and save models as safetensors, with the published code's parameter names."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bench.models.base import CausalLM
from bench.models.config import CheckpointError, ModelConfig, TTTConfig
from bench.models.factory import default_dtype, model_class
from bench.models.hugging_face import CONFIG_FILE, config_values, read_config
from harness.schema.files import listed, open_regular

WEIGHTS_FILE = "model.safetensors"


def save(model: CausalLM, folder: str | Path, config: Mapping[str, Any] | None = None) -> None:
    """Save a model's weights, tied weights once, and config.json in a folder.

    config: contents of config.json. None: a TTT model's own configuration; for other models, no config.json.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.contiguous() for name, weight in model.weights().items()}
    save_file(weights, folder / WEIGHTS_FILE, {"format": "pt"})
    if config is None and isinstance(model.config, TTTConfig):
        config = config_values(model.config) | {"dtype": str(model.dtype).removeprefix("torch.")}
    if config is not None:
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n")


def load(folder: str | Path, device: torch.device | str, dtype: torch.dtype | None = None, **options: Any) -> CausalLM:
    """Load a TTT model from config.json and .safetensors files; CheckpointError if unusable.

    dtype: dtype of projections, by default bfloat16 (GPU) or float32 (CPU). options: `TTTModel`'s operator and block.
    """
    return load_weights(read_config(folder), folder, device, dtype, **options)


def load_weights(
    config: ModelConfig,
    folder: str | Path,
    device: torch.device | str,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> CausalLM:
    """Build a model of `config` with the weights in a folder's .safetensors files.

    dtype: dtype of the projections, by default bfloat16 on a GPU and float32 on a CPU. TTT's inner loops and Mamba's
    decays use at least float32. options: further arguments of the model's class, such as operator and block.
    Raises CheckpointError for a missing or unreadable file, and for weights that are missing, unknown or unusable.
    """
    model = model_class(config)(config, device, dtype or default_dtype(device), **options)
    try:
        copy_tensors(model, _tensors(Path(folder)))
    except CheckpointError as error:
        # A published record shows the message, so it has no path.
        raise CheckpointError(f"{Path(folder).resolve().name}: {error}") from None
    return model


def copy_tensors(model: CausalLM, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
    """Copy tensors into the model's weights of the same names; return these names.

    A checkpoint may store a tied head, the embedding or both. Raises CheckpointError for a wrong or missing name, a
    wrong shape or dtype, NaN or infinity, and a head and embedding that are tied but differ.
    """
    weights, given = model.weights(), dict[str, str]()
    for key, tensor in tensors:
        name = model.tied.get(key, key)
        if name not in weights:
            raise CheckpointError(f"{key}: not a weight of this model")
        weight = weights[name]
        if tensor.shape != weight.shape:
            raise CheckpointError(f"{key}: has shape {list(tensor.shape)}, expected {list(weight.shape)}")
        if not tensor.is_floating_point():
            raise CheckpointError(f"{key}: has dtype {tensor.dtype}, expected a float")
        if name in given and not torch.equal(tensor.to(weight), weight):
            raise CheckpointError(f"{key}: differs from {given[name]}, which is stored too")
        weight.copy_(tensor)
        if not weight.isfinite().all():
            what = f"values outside the range of {weight.dtype}" if tensor.isfinite().all() else "NaN or infinity"
            raise CheckpointError(f"{key}: holds {what}")
        given[name] = key
    if missing := [name for name in weights if name not in given]:
        shape, more = list(weights[missing[0]].shape), len(missing) - 1
        raise CheckpointError(f"{missing[0]}: missing, expected {shape}{f'; and {more} more' if more else ''}")
    return set(given)


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    files = listed(folder, "*.safetensors")
    if not files:
        raise CheckpointError("holds no .safetensors file; other formats are not read")
    for file in files:
        try:
            open_regular(file).close()
            with safe_open(file, framework="pt") as opened:
                for key in opened.keys():  # noqa: SIM118 - cannot be iterated itself
                    yield key, opened.get_tensor(key)
        except (SafetensorError, OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error  # without the path
            raise CheckpointError(f"{file.name}: not a complete safetensors file ({why})") from None
