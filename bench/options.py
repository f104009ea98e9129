"""Options and arguments that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Suites = Annotated[
    list[str] | None, typer.Argument(help="Suites or groups of them (paper, all); by default those for this machine.")
]
Systems = Annotated[str | None, typer.Option(help="Systems, as NAME or NAME/BACKEND, comma-separated.")]
Batch = Annotated[str | None, typer.Option(help="Batch sizes instead of the suite's, comma-separated.")]
Context = Annotated[str | None, typer.Option(help="Context lengths instead of the suite's, comma-separated.")]
Phase = Annotated[str | None, typer.Option(help="Only these: forward, generate, request, comma-separated.")]
RetryOption = Annotated[
    str | None,
    typer.Option(
        "--retry",
        help="Resume, and run again: cases whose worker was `lost` (the default), all that `failed`, or those that "
        "the page has `marked` as disturbed (by other programs, by heat, or unsteady).",
    ),
]
Checkpoint = Annotated[
    Path | None, typer.Option(help="A folder with config.json and safetensors: its model in place of random weights.")
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the run; by default out/DATE-TIME.")]
Gpus = Annotated[
    str | None, typer.Option(help="A job per GPU: `all` of this machine, or those numbered 0,1,3 by nvidia-smi.")
]
TimeLimit = Annotated[float, typer.Option(help="Seconds that one case may take, model and checks included.", min=0.001)]
COLUMNS = "Columns, comma-separated, such as system,context,latency_ms; `all` for every one, under its name."
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is a GPU.")]
SLOWER = "Exit with status 1 for a case that is shown to be slower by more than this,"
Page = Annotated[Path | None, typer.Option(help="Write an HTML page of the comparison too.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Markdown, for a pull request.")]
Json = Annotated[bool, typer.Option("--json", help="A JSON object, unrounded.")]
