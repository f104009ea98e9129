"""Convert a JAX checkpoint: `python -m bench.commands.convert JAX_FILE -o DIR`."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bench.ending import guarded, run_app
from bench.errors import UserError
from harness.schema.files import refusing

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def convert_checkpoint(
    file: Annotated[Path, typer.Argument(metavar="JAX_FILE", help="`streaming_params` or `streaming_train_state`.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder, for `ttt-bench run --checkpoint`.")],
    base_lr: Annotated[float | None, typer.Option(help="The training run's ttt_base_lr; default: the paper's.")] = None,
) -> None:
    """Convert a checkpoint of the TTT authors' JAX code to safetensors; print its system and size."""
    from bench.models.case_model import read_checkpoint
    from bench.models.jax_checkpoint import convert

    try:
        with refusing(output, "written", UserError):
            convert(file, output, base_lr)
        found = read_checkpoint(output)
    except ImportError:
        raise UserError("convert: needs msgpack; pip install msgpack") from None
    config = found.config
    print(f"wrote {output}: {found.system}, {found.size}, base_lr {config.base_lr:g} ({found.name})")


if __name__ == "__main__":
    sys.exit(guarded(partial(run_app, app)))
