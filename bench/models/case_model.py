"""Which model a case asks for: one of the size table with its options, or a checkpoint. Imports no torch.

A case names a checkpoint NAME@DIGEST, by its folder's name and its content, never by a path: a record is published, and
a folder may be written anew. Where it lies is told to a run's processes by an environment variable.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from bench.models.config import SIZES, CheckpointError, ModelConfig, TTTConfig, model_config
from bench.models.hugging_face import CONFIG_FILE, INDEX_FILE, read_config
from harness.schema.case import Case, Scalar
from harness.schema.files import listed, open_regular, refusing
from harness.schema.reason import printable

VARIABLE = "TTT_BENCH_CHECKPOINTS"  # a JSON object: NAME@DIGEST -> [folder, its files' states]
DIGITS = 16  # of the digest, in a case


@dataclass(frozen=True)
class Checkpoint:
    """A folder with config.json and safetensors files, and what its config.json says.

    name: NAME@DIGEST. states: of its files (`_states`) as they were digested.
    """

    name: str
    folder: Path
    config: TTTConfig
    states: str

    @property
    def system(self) -> str:
        """The system whose function it is."""
        return f"ttt-{self.config.learner}"

    @property
    def size(self) -> str:
        """The size of the table that it has, or else layers x width."""
        tables = {name: model_config(self.system, name) for name in SIZES}
        own = f"{self.config.layers}x{self.config.width}"
        return next((name for name, each in tables.items() if _shape(each) == _shape(self.config)), own)

    @property
    def options(self) -> dict[str, tuple[Scalar, ...]]:
        """The options of its cases, one value each."""
        return {
            "checkpoint": (self.name,),
            "mini_batch": (self.config.mini_batch,),
            "backbone": (self.config.backbone,),
        }


def _shape(config: ModelConfig) -> tuple[int, ...]:
    assert isinstance(config, TTTConfig)
    return config.width, config.ffn_width, config.layers, config.heads


def read_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint of a folder; CheckpointError where its config.json is not of a TTT model that is supported.

    CheckpointError also for a file that cannot be read, such as a Git LFS pointer.
    Every byte that `bench.models.checkpoint.load` may read is digested: seconds for some gigabytes.
    """
    states = _states(folder)
    config = read_config(folder)
    digest = hashlib.sha256()
    for file in _files(folder):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with refusing(file, "read", CheckpointError), os.fdopen(open_regular(file), "rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    name = printable(folder.resolve().name)[:100]
    return Checkpoint(f"{name}@{digest.hexdigest()[:DIGITS]}", folder.resolve(), config, states)


def _files(folder: Path) -> list[Path]:
    every = (folder / CONFIG_FILE, folder / INDEX_FILE, *listed(folder, "*.safetensors"))
    return [file for file in every if file.is_file()]


def _states(folder: Path) -> str:
    """The sizes of the files and when they were written: others where a file was since, as by a training job."""
    states = [(file.name, file.stat()) for file in _files(folder)]
    return " ".join(f"{name}:{state.st_size}:{state.st_mtime_ns}" for name, state in states)


def offer(checkpoint: Checkpoint) -> None:
    """Tell this process, and those that it starts, where a checkpoint lies."""
    os.environ[VARIABLE] = json.dumps(_offered() | {checkpoint.name: [str(checkpoint.folder), checkpoint.states]})


def checkpoint_folder(case: Case) -> Path | None:
    """Where the checkpoint of a case lies, None for a case without.

    CheckpointError where nobody has said it, or its files are no longer those of the case's digest.
    """
    name = str(case.option("checkpoint", ""))
    if not name:
        return None
    folder, states = _offered().get(name, ("", ""))
    if not folder:
        raise CheckpointError(f"checkpoint {name}: say where it lies, --checkpoint DIR")
    if _states(Path(folder)) != states:
        raise CheckpointError(f"checkpoint {name}: its files were written since it was read; begin another run")
    return Path(folder)


def checkpoint_missing(case: Case) -> str:
    """Why the checkpoint of a case cannot be read here, "" where it can or the case has none."""
    try:
        checkpoint_folder(case)
    except CheckpointError as error:
        return str(error)
    return ""


def config_of(case: Case) -> ModelConfig:
    """The configuration of a case's model. Raises ConfigError for a model or size that is not in the tables."""
    folder = checkpoint_folder(case)
    if folder is not None:
        return read_config(folder)
    backbone, mini_batch = str(case.option("backbone", "mamba")), int(case.option("mini_batch", 16))
    return model_config(case.system, case.size, backbone=backbone, mini_batch=mini_batch)


def ttt_config_of(case: Case) -> TTTConfig:
    """The same of a TTT system."""
    config = config_of(case)
    assert isinstance(config, TTTConfig)
    return config


def _offered() -> dict[str, tuple[str, str]]:
    return json.loads(os.environ.get(VARIABLE, "{}"))
