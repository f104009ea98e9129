"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from bench.catalogue.suites import BUDGETS_S

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
Suites = Annotated[
    list[str] | None,
    typer.Argument(metavar="SUITE", help="Suites or groups (paper, all); default: paper on a GPU, quick without."),
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
Resume = Annotated[bool, typer.Option("--resume", help="Keep finished cases; run the rest and skipped cases.")]
Budget = Annotated[
    float | None,
    typer.Option(
        help=f"Seconds of sampling per case; default: {BUDGETS_S['cuda']:g} (GPU), {BUDGETS_S['cpu']:g} (CPU).",
        min=0.001,
    ),
]
FailOn = Annotated[str | None, typer.Option(help="Exit with status 1 if a case is slower by more, such as 5%.")]
Gpus = Annotated[str | None, typer.Option(help="One job per GPU: `all`, or numbers of nvidia-smi such as 0,1.")]
TimeLimit = Annotated[float, typer.Option(help="Seconds per case, with its model and checks.", min=0.001)]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Page = Annotated[Path | None, typer.Option(help="Also write the comparison as an HTML page.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with unrounded numbers.")]
