"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
Suites = Annotated[
    list[str] | None,
    typer.Argument(metavar="SUITE...", help="Suites or groups (paper, all); default: paper on a GPU, quick without."),
]
Systems = Annotated[str | None, typer.Option(help="Comma-separated systems, as SYSTEM or SYSTEM/BACKEND.")]
Batch = Annotated[str | None, typer.Option(help="Comma-separated batch sizes; default: the suite's.")]
Context = Annotated[str | None, typer.Option(help="Comma-separated context lengths; default: the suite's.")]
Phase = Annotated[str | None, typer.Option(help="Comma-separated phases: forward, generate, request.")]
RetryOption = Annotated[
    str | None,
    typer.Option(
        "--retry",
        help="Resume, and measure again: cases with a `lost` worker (default), all `failed` cases, or cases `flagged` "
        "on the page (contended machine, thermally throttled, unsteady).",
    ),
]
Checkpoint = Annotated[
    Path | None, typer.Option(help="Folder with config.json and safetensors; default: random weights.")
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="The run folder; default: out/DATE-TIME.")]
Gpus = Annotated[str | None, typer.Option(help="One job per GPU: `all`, or numbers of nvidia-smi such as 0,1.")]
TimeLimit = Annotated[float, typer.Option(help="Seconds per case, with its model and checks.", min=0.001)]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Page = Annotated[Path | None, typer.Option(help="Also write the comparison as an HTML page.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON object with unrounded numbers.")]
