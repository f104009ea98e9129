"""Load and save models as safetensors under the authors' names.

`load` reads a folder in Hugging Face's layout; `load_weights` takes the configuration from its caller.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bench.models.base import CausalLM
from bench.models.config import CheckpointError, ModelConfig
from bench.models.factory import default_dtype, model_class
from bench.models.hugging_face import read_config
from harness.schema.files import listed, open_regular

WEIGHTS_FILE = "model.safetensors"
FLOATING = ("F64", "F32", "F16", "BF16")
NAMED_AT_MOST = 5  # wrong keys in a message


class _Entry(NamedTuple):
    file: Path
    shape: tuple[int, ...]
    dtype: str  # as safetensors names it


def save(model: CausalLM, path: str | Path) -> None:
    """Write a model's weights to a .safetensors file, in their dtypes; tied weights once."""
    save_file({name: weight.contiguous() for name, weight in model.weights().items()}, path, {"format": "pt"})


def load(folder: str | Path, device: torch.device | str, dtype: torch.dtype | None = None, **options: Any) -> CausalLM:
    """Load a TTT model from a folder with config.json and model.safetensors, or shards.

    dtype, options: as in `load_weights`. Raises CheckpointError for an unsupported setting or wrong weights.
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

    dtype: of projections, by default bfloat16 on a GPU, float32 on a CPU; inner loops and decays are at least float32.
    options: arguments of the model's class (operator, block). A tied head can be stored with or without the embedding.
    Raises CheckpointError for a truncated file, or wrong keys, shapes or dtypes, before any weight is read.
    While it reads, raises CheckpointError for NaN, infinity, or a tied head unlike the embedding.
    """
    entries = _entries(Path(folder))
    model = model_class(config)(config, device, dtype or default_dtype(device), **options)
    weights = model.weights()
    _check_entries(Path(folder), entries, weights, model.tied)
    for name, weight in weights.items():
        key = name if name in entries else next(alias for alias, repeated in model.tied.items() if repeated == name)
        _copy(entries[key].file, key, weight)
    _check_tied(entries, weights, model.tied)
    return model


def _entries(folder: Path) -> dict[str, _Entry]:
    """Return where each weight is stored, by key."""
    files = listed(folder, "*.safetensors")
    if not files:
        raise CheckpointError(f"{folder}: holds no .safetensors file; other formats are not read")
    found: dict[str, _Entry] = {}
    for file in files:
        with _opened(file) as opened:
            for key in opened.keys():  # noqa: SIM118 - cannot be iterated itself
                if key in found:
                    raise CheckpointError(f"{file}: {key}: also in {found[key].file.name}; remove one of the files")
                stored = opened.get_slice(key)
                found[key] = _Entry(file, tuple(stored.get_shape()), stored.get_dtype())
    return found


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        open_regular(file).close()
        with safe_open(file, framework="pt") as opened:
            yield opened
    except (SafetensorError, OSError, UnicodeError) as error:
        raise CheckpointError(f"{file}: not a whole safetensors file ({error})") from None


def _check_entries(path: Path, entries: dict[str, _Entry], weights: dict[str, Tensor], tied: dict[str, str]) -> None:
    expected = weights | {alias: weights[name] for alias, name in tied.items()}
    found = entries.keys() | {name for alias, name in tied.items() if alias in entries}
    wrong = [f"{key}: missing, expected {list(weights[key].shape)}" for key in weights if key not in found]
    wrong += [f"{key}: not a weight of this model" for key in entries if key not in expected]
    for key, entry in entries.items():
        if key in expected and entry.shape != tuple(expected[key].shape):
            wrong.append(f"{key}: has shape {list(entry.shape)}, expected {list(expected[key].shape)}")
        if key in expected and entry.dtype not in FLOATING:
            wrong.append(f"{key}: has dtype {entry.dtype}, expected one of {', '.join(FLOATING)}")
    if wrong:
        more = f"; and {len(wrong) - NAMED_AT_MOST} more" if len(wrong) > NAMED_AT_MOST else ""
        raise CheckpointError(f"{path}: {'; '.join(wrong[:NAMED_AT_MOST])}{more}")


def _copy(file: Path, key: str, weight: Tensor) -> None:
    """Raise CheckpointError for a value that is not finite in the dtype of `weight`."""
    with _opened(file) as opened:
        stored = opened.get_tensor(key)
    weight.copy_(stored)
    if not weight.isfinite().all():
        range_only = bool(stored.isfinite().all())
        why = f"exceeds the range of {weight.dtype}" if range_only else "holds NaN or infinite values"
        raise CheckpointError(f"{file}: {key}: {why}")


def _check_tied(entries: dict[str, _Entry], weights: dict[str, Tensor], tied: dict[str, str]) -> None:
    """tied: the head's key -> the embedding's name."""
    for alias, name in tied.items():
        if alias not in entries:
            continue
        with _opened(entries[alias].file) as opened:
            repeated = opened.get_tensor(alias).to(weights[name])
        if not torch.equal(repeated, weights[name]):
            raise CheckpointError(f"{entries[alias].file}: {alias}: differs from {name}, expected the same (tied)")
