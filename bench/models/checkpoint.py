"""How do weights get in and out? Safetensors under the authors' names, every key, shape and dtype checked first."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bench.models.base import CausalLM
from bench.models.config import ModelConfig
from bench.models.factory import default_dtype, model_class

FLOATING = ("F64", "F32", "F16", "BF16")
NAMED_AT_MOST = 5  # wrong keys in one message; a file of another model has hundreds


class CheckpointError(ValueError):
    """A file that is not a checkpoint of this model; the message names the file, the key and what was expected."""


class _Entry(NamedTuple):
    """What a file's header says of one key."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def save(model: CausalLM, path: str | Path) -> None:
    """Write all weights to one .safetensors file in their own dtypes; a tied weight is written once."""
    path = _safetensors(Path(path))
    save_file({name: weight.contiguous() for name, weight in model.weights().items()}, path, {"format": "pt"})


def load(
    config: ModelConfig,
    path: str | Path,
    device: torch.device | str,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> CausalLM:
    """The model `config` with the weights of a .safetensors file, or of all those in a folder (shards).

    The file may be of any floating dtype; projections become `dtype` (default: bfloat16 on a GPU, float32 on a CPU),
    a TTT learner's and Mamba's decay parameters at least float32. Raises CheckpointError before any weight is read if
    a key is missing or unknown or has another shape or no floating dtype, and if the file is cut short or a pickle.
    """
    entries = _entries(Path(path))
    model = model_class(config)(config, device, dtype or default_dtype(device), **options)
    weights = model.weights()
    _check_entries(Path(path), entries, weights, model.tied)
    for file in sorted({entry.file for entry in entries.values()}):
        _copy_from(file, weights, model.tied)
    _check_tied(entries, weights, model.tied)
    return model


def _entries(path: Path) -> dict[str, _Entry]:
    """Every key of the file or the folder's files."""
    found: dict[str, _Entry] = {}
    for file in _files(path):
        with _opened(file) as opened:
            for key in opened.keys():  # noqa: SIM118 - the file is no dictionary and cannot be iterated
                if key in found:
                    raise CheckpointError(f"{path}: {key}: both in {found[key].file.name} and in {file.name}")
                header = opened.get_slice(key)
                found[key] = _Entry(file, tuple(header.get_shape()), header.get_dtype())
    return found


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    if not path.is_dir():
        return [_safetensors(path)]
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{path}: holds no .safetensors file; other formats are not read")
    return files


def _safetensors(path: Path) -> Path:
    if path.suffix != ".safetensors":
        raise CheckpointError(
            f"{path}: expected a .safetensors file; pickles ({path.suffix or 'no suffix'}) can run code and are refused"
        )
    return path


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as opened:
            yield opened
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: not a whole safetensors file ({error})") from None


def _check_entries(path: Path, entries: dict[str, _Entry], weights: dict[str, Tensor], tied: dict[str, str]) -> None:
    expected = weights | {alias: weights[name] for alias, name in tied.items()}
    wrong = [f"{key}: missing, expected {list(weights[key].shape)}" for key in weights if key not in entries]
    wrong += [f"{key}: not a weight of this model" for key in entries if key not in expected]
    for key, entry in entries.items():
        if key in expected and entry.shape != tuple(expected[key].shape):
            wrong.append(f"{key}: has shape {list(entry.shape)}, expected {list(expected[key].shape)}")
        if key in expected and entry.dtype not in FLOATING:
            wrong.append(f"{key}: has dtype {entry.dtype}, expected one of {', '.join(FLOATING)}")
    if wrong:
        more = f"; and {len(wrong) - NAMED_AT_MOST} more" if len(wrong) > NAMED_AT_MOST else ""
        raise CheckpointError(f"{path}: {'; '.join(wrong[:NAMED_AT_MOST])}{more}")


def _copy_from(file: Path, weights: dict[str, Tensor], tied: dict[str, str]) -> None:
    with _opened(file) as opened:
        for key in opened.keys():  # noqa: SIM118
            if key not in tied:
                weights[key].copy_(opened.get_tensor(key))


def _check_tied(entries: dict[str, _Entry], weights: dict[str, Tensor], tied: dict[str, str]) -> None:
    """A head stored beside the embedding must be the embedding."""
    for alias, name in tied.items():
        if alias not in entries:
            continue
        with _opened(entries[alias].file) as opened:
            repeated = opened.get_tensor(alias).to(weights[name])
        if not torch.equal(repeated, weights[name]):
            raise CheckpointError(f"{entries[alias].file}: {alias}: differs from {name}, expected the same (tied)")
