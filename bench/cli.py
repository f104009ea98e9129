"""The command line `ttt-bench`."""

import io
import sys
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.ending import guarded, run_app
from bench.errors import UserError
from bench.request import RunRequest, split_list
from harness.schema.files import refusing
from harness.schema.reason import counted

_COLUMN_INCHES = 3.3  # width of one column of a paper
app = typer.Typer(
    add_completion=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Typer's panels show every flag as a <bool>
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
Suites = Annotated[
    list[str] | None,
    typer.Argument(metavar="SUITE", help="Suites or groups (paper, all); default: paper on a GPU, otherwise quick."),
]
Systems = Annotated[str | None, typer.Option(help="Comma-separated systems, as SYSTEM or SYSTEM/BACKEND.")]
Batch = Annotated[str | None, typer.Option(help="Comma-separated batch sizes; default: the suite's.")]
Context = Annotated[str | None, typer.Option(help="Comma-separated context lengths; default: the suite's.")]
Phase = Annotated[str | None, typer.Option(help="Comma-separated phases: forward, generate, request.")]
Retry = Annotated[str | None, typer.Option(help="Resume, and repeat `failed` or `flagged` cases.")]
Checkpoint = Annotated[Path | None, typer.Option(help="A checkpoint's folder; default: random weights.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="The run folder; default: out/DATE-TIME.")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep finished cases; run the rest.")]
Budget = Annotated[float | None, typer.Option("--budget", help="Seconds of sampling per case; default: the suite's.")]
FailOn = Annotated[str | None, typer.Option(help="Exit status 1 if a case is slower by more than this, such as 5%.")]
Gpus = Annotated[str | None, typer.Option(help="One job per GPU: `all`, or names as in CUDA_VISIBLE_DEVICES: 0,1.")]
TimeLimit = Annotated[float, typer.Option("--time-limit", help="Seconds per case, including model build and checks.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"ttt-bench {version('ttt-bench')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Build, measure and explain Test-Time Training (TTT) kernels."""
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


@app.command("list")
def list_all() -> None:
    """List the suites, and which systems can run here."""
    from bench.commands.listing import list_suites, list_systems

    list_suites()
    print()
    list_systems()


@app.command()
def build(
    tune: Annotated[bool, typer.Option("--tune", help="Measure launch settings of the Triton kernels.")] = False,
) -> None:
    """Compile the CUDA kernels and print their registers and spills.

    Needs nvcc, but no GPU. --tune needs a GPU and prints sections to add to
    tk_kernels/generate/tuning.toml or to the file that TTT_BENCH_TUNING names.
    """
    if tune:
        from bench.commands.tune import tune as measure_settings

        measure_settings()
        return
    from bench.commands.build import build_kernels

    build_kernels()


@app.command()
def run(
    call: typer.Context,
    suites: Suites = None,
    systems: Systems = None,
    batch: Batch = None,
    context: Context = None,
    phase: Phase = None,
    checkpoint: Checkpoint = None,
    out: Out = None,
    resume: Resume = False,
    retry: Retry = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print cases, jobs and estimated time.")] = False,
    time_limit_s: TimeLimit = 600,
    budget_s: Budget = None,
    device: Device = "auto",
    gpus: Gpus = None,
    slurm: Annotated[str | None, typer.Option(help="Submit Slurm tasks: options such as partition=gpu,gpus=4.")] = None,
) -> None:
    """Measure suites into a run folder.

    OUT/run.json holds the plan and OUT/records/ one record per case.
    """
    from bench.commands import measure
    from bench.commands import slurm as tasks

    if gpus is not None and slurm is not None:
        raise UserError("--gpus --slurm: use one of them; --slurm takes gpus=N")
    request = _request(call)
    if dry_run:
        measure.dry_run(request, _folder(request))
    elif slurm is not None:
        tasks.submit(request, _folder(request))
    else:
        measure.run(request, _folder(request))


def _request(call: typer.Context, **more: Any) -> RunRequest:
    return RunRequest.stored({"command": call.info_name, **call.params, **more})


def _folder(request: RunRequest) -> Path:
    if request.out is None and request.resume:
        raise UserError(f"--{'resume' if request.retry == 'lost' else 'retry'}: name the run with --out")
    return request.out or Path("out") / f"{datetime.now():%Y%m%d-%H%M%S}"


@app.command()
def status(run: RunFolder) -> None:
    """Show a run's progress, and whether a process works on it."""
    from bench.commands.status import status

    status(run)


@app.command(hidden=True)
def work(
    run: RunFolder,
    keys: Annotated[Path, typer.Option(help="A file with the keys of the cases to run, one per line.")],
    checkpoint: Checkpoint = None,
) -> None:
    """Run this Slurm task's share of a run."""
    from bench.commands.slurm import work

    work(run, keys, checkpoint)


@app.command()
def verify(
    call: typer.Context,
    suites: Suites = None,
    systems: Systems = None,
    batch: Batch = None,
    context: Context = None,
    phase: Phase = None,
    checkpoint: Checkpoint = None,
    time_limit_s: TimeLimit = 600,
    device: Device = "auto",
) -> None:
    """Check each case's outputs against a reference, without timing.

    Exit status 1 if a case is incorrect, fails or has no reference, or if all cases are skipped.
    """
    from bench.commands.verify import verify as check

    check(_request(call))


@app.command()
def table(
    run: RunFolder,
    csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON with unrounded numbers.")] = False,
    markdown: Markdown = False,
    columns: Annotated[str | None, typer.Option(help="Comma-separated columns; `all` for every one.")] = None,
) -> None:
    """Print a run as a table."""
    from reports.publish import write_table

    formats = {"csv": csv, "json": json, "markdown": markdown}
    given = [name for name, flag in formats.items() if flag]
    if len(given) > 1:
        raise UserError(f"--{' --'.join(given)}: one format at a time")
    fmt = given[0] if given else "text"
    write_table(run, fmt, split_list("--columns", columns))


@app.command()
def report(
    run: RunFolder,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The page; default: RUN/report.html.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw figures into this PNG file instead; needs Chromium.")] = None,
    pdf: Annotated[Path | None, typer.Option(help="Draw figures into this PDF file instead; needs Chromium.")] = None,
    inches: Annotated[float | None, typer.Option(help="Width of each figure, for a paper.", min=2, max=20)] = None,
    figures: Annotated[str, typer.Option(help="Suite of the figures, such as fig15-forward; default: the first.")] = "",
) -> None:
    """Write a run's page, or its figures as PNG or PDF."""
    targets = {"--output": output, "--png": png, "--pdf": pdf}
    given = [name for name, path in targets.items() if path is not None]
    if len(given) > 1:
        raise UserError(f"{' '.join(given)}: use one of them")
    unused = [name for name, value in {"--inches": inches, "--figures": figures}.items() if value]
    if unused and not (png or pdf):
        raise UserError(f"{', '.join(unused)}: only with --png or --pdf")
    for name, path in (("png", png), ("pdf", pdf)):
        if path and path.suffix.lower() != f".{name}":
            raise UserError(f"--{name} {path}: name a file that ends in .{name}")
    target = output or png or pdf or run / "report.html"
    with refusing(target, "written", UserError):
        if png or pdf:
            from reports.picture import write_picture

            write_picture(run, target, figures, inches or (_COLUMN_INCHES if pdf else None))
        else:
            from reports.publish import write_report

            write_report(run, target)
    print(f"wrote {target}")


@app.command()
def site(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The site's folder.")],
) -> None:
    """Write or update a static site of runs.

    The site has each run's page, each system's latencies over time, and comparisons of runs.
    To look at it: python -m http.server --bind 127.0.0.1 --directory SITE
    """
    from reports.site.build import write_site

    with refusing(output, "written", UserError):
        removed = write_site(runs, output, lambda text: print(text, file=sys.stderr, flush=True))
    outdated = f", {counted(removed, 'outdated file')} removed" if removed else ""
    print(f"wrote {output / 'index.html'}: {counted(len(runs), 'run')}{outdated}")


@app.command()
def generate(
    checkpoint: Annotated[Path, typer.Option(help="Folder with config.json, safetensors and tokenizer.json.")],
    prompt: Annotated[str, typer.Option(help="The text to continue.")],
    tokens: Annotated[int, typer.Option(help="New tokens, at most.", min=1)] = 128,
) -> None:
    """Continue a text with a TTT checkpoint, greedily."""
    from bench.commands.generate import generate

    generate(checkpoint, prompt, tokens)


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A run folder.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The run folder to compare with A.")],
    fail_on: FailOn = None,
    markdown: Markdown = False,
) -> None:
    """Compare two runs; differences up to 5% (CPU: 30%) are noise.

    Prints each case's ratio of times B/A and how the machines differ. In the two runs of one `ab`, noise is up to 1%.
    """
    from bench.commands import compare as commands

    commands.compare(a, b, fail_on, markdown)


@app.command()
def ab(
    call: typer.Context,
    old: Annotated[str, typer.Argument(metavar="OLD", help="A git revision.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The revision to compare with OLD.")],
    suites: Suites = None,
    systems: Systems = None,
    batch: Batch = None,
    context: Context = None,
    phase: Phase = None,
    rounds: Annotated[int, typer.Option(help="Processes per case and commit; fewer than 5 raise false alarms.")] = 6,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the runs OUT/old and OUT/new.")] = Path("out/ab"),
    fail_on: FailOn = None,
    markdown: Markdown = False,
    time_limit_s: TimeLimit = 600,
    budget_s: Budget = None,
    device: Device = "auto",
) -> None:
    """Measure two commits alternately, and compare them.

    Each case is faster, slower, same or undecided.
    Exit status 1 if a case is slower (beyond --fail-on, if given) or has a result only in OLD.
    """
    from bench.commands import compare as commands

    commands.ab(_request(call, sides=(old, new)), out, fail_on, markdown)


@app.command()
def profile(
    call: typer.Context,
    suites: Suites = None,
    systems: Systems = None,
    batch: Batch = None,
    context: Context = None,
    phase: Phase = None,
    checkpoint: Checkpoint = None,
    way: Annotated[str, typer.Option("--with", help="Profiler: torch, nsys, ncu (also counters) or auto.")] = "auto",
    out: Out = None,
    resume: Resume = False,
    time_limit_s: TimeLimit = 600,
    device: Device = "auto",
    gpus: Gpus = None,
) -> None:
    """Profile cases: where their time goes, and why.

    OUT/profiles/ holds one profile per case. Without SUITE, the options select among the cases of a run in OUT.
    """
    from bench.commands.profile import profile

    request = _request(call)
    profile(request, _folder(request))


def main() -> None:
    """Run the command line and exit. A user error prints one sentence; its exit status is 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal whose encoding lacks µ shows a question mark
    sys.exit(guarded(partial(run_app, app)))
