"""`ttt-bench convert`: turn a checkpoint of the authors' JAX code into a folder for `--checkpoint`."""

from pathlib import Path

from bench.errors import UserError
from harness.schema.files import refusing


def convert_checkpoint(file: Path, folder: Path, base_lr: float | None) -> None:
    """Convert the file and print the model."""
    from bench.models.case_model import read_checkpoint
    from bench.models.config import CheckpointError
    from bench.models.jax_checkpoint import convert

    try:
        with refusing(folder, "written", UserError):
            convert(file, folder, base_lr)
        found = read_checkpoint(folder)
    except CheckpointError as error:
        raise UserError(str(error)) from None
    except ImportError:
        raise UserError("convert: needs msgpack; pip install 'ttt-bench[convert]'") from None
    config = found.config
    print(f"wrote {folder}: {found.system}, {found.size}, base_lr {config.base_lr:g} ({found.name})")
