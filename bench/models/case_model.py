"""Find a case's model: a size with options, or a checkpoint. Imports no torch.

A case names a checkpoint as NAME@DIGEST: the folder's name and a digest of its content. Records hold no path, so
worker processes read the folder's path from an environment variable.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from bench.models.config import CheckpointError, ModelConfig, TTTConfig, model_config
from bench.models.hugging_face import CONFIG_FILE, read_config
from harness.schema.case import Case, Scalar
from harness.schema.files import listed, open_regular, refusing
from harness.schema.reason import printable

VARIABLE = "TTT_BENCH_CHECKPOINTS"  # environment variable, a JSON object: NAME@DIGEST -> folder
DIGITS = 16  # hexadecimal digits of DIGEST


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder, its configuration and its `name` in cases, NAME@DIGEST."""

    name: str
    folder: Path
    config: TTTConfig

    @property
    def system(self) -> str:
        return f"ttt-{self.config.learner}"

    @property
    def size(self) -> str:
        return f"{self.config.layers}x{self.config.width}"

    @property
    def options(self) -> dict[str, tuple[Scalar, ...]]:
        config = self.config
        return {"checkpoint": (self.name,), "mini_batch": (config.mini_batch,), "backbone": (config.backbone,)}


def read_checkpoint(folder: Path) -> Checkpoint:
    """Return a folder's checkpoint. CheckpointError if it is unreadable or unsupported."""
    config = read_config(folder)
    digest = hashlib.sha256()
    for file in (folder / CONFIG_FILE, *listed(folder, "*.safetensors")):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with refusing(file, "read", CheckpointError), open_regular(file) as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    name = printable(folder.resolve().name)[:100]
    return Checkpoint(f"{name}@{digest.hexdigest()[:DIGITS]}", folder.resolve(), config)


def register_checkpoint(folder: Path) -> Checkpoint:
    """Register a checkpoint for workers, in an environment variable; return the checkpoint."""
    checkpoint = read_checkpoint(folder)
    os.environ[VARIABLE] = json.dumps(_registered() | {checkpoint.name: str(checkpoint.folder)})
    return checkpoint


def checkpoint_folder(case: Case) -> Path | None:
    """Return the folder of a case's checkpoint, if it has one; CheckpointError if unregistered."""
    if missing := checkpoint_missing(case):
        raise CheckpointError(missing)
    name = str(case.option("checkpoint", ""))
    return Path(_registered()[name]) if name else None


def checkpoint_missing(case: Case) -> str:
    """Return an error message if the case's checkpoint is not registered; otherwise ""."""
    name = str(case.option("checkpoint", ""))
    return f"checkpoint {name}: name its folder with --checkpoint DIR" if name and name not in _registered() else ""


def config_of(case: Case) -> ModelConfig:
    """Return a case's model configuration; ConfigError or CheckpointError if unusable."""
    folder = checkpoint_folder(case)
    if folder is not None:
        return read_config(folder)
    backbone, mini_batch = str(case.option("backbone", "mamba")), int(case.option("mini_batch", 16))
    return model_config(case.system, case.size, backbone=backbone, mini_batch=mini_batch)


def ttt_config_of(case: Case) -> TTTConfig:
    """Return `config_of(case)`. AssertionError unless the case's model is a TTT model."""
    config = config_of(case)
    assert isinstance(config, TTTConfig)
    return config


def _registered() -> dict[str, str]:
    return json.loads(os.environ.get(VARIABLE, "{}"))
