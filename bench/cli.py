"""The command line `ttt-bench`."""

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.arguments import refuse_arguments
from bench.catalogue.suites import BUDGETS_S
from bench.ending import guarded, replace_closed_streams
from bench.options import (
    COLUMNS,
    SLOWER,
    Batch,
    Checkpoint,
    Context,
    Device,
    Gpus,
    Json,
    Markdown,
    Out,
    Page,
    Phase,
    RetryOption,
    RunFolder,
    Suites,
    Systems,
    TimeLimit,
)

if TYPE_CHECKING:
    from bench.request import RunRequest

_COLUMN_INCHES = 3.3  # the width of a column of a paper
app = typer.Typer(
    add_completion=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Typer's panels call every flag a <bool>
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    help="Build, measure and explain Test-Time Training (TTT) kernels.",
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"ttt-bench {version('ttt-bench')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Build, measure and explain Test-Time Training (TTT) kernels."""
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


@app.command("list")
def list_all() -> None:
    """List suites, and what can run here and why the rest cannot."""
    from bench.commands.listing import list_suites, list_systems

    list_suites()
    print()
    list_systems()


@app.command()
def build(
    learner: Annotated[list[str] | None, typer.Argument(help="With --tune: linear, mlp; by default both.")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Measure launch settings of the Triton kernels on this GPU instead.")
    ] = False,
    form: Annotated[str | None, typer.Option(help="With --tune: dual, primal, forward; by default all.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="Of --tune, the state's: planes, float32, bfloat16, float16; by default all.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Of --tune: sequences that generate together; 512.", min=1)] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Of --tune: a new file of sections; by default printed.")
    ] = None,
) -> None:
    """Compile the CUDA kernels; show their registers and spills.

    It needs nvcc and no GPU. --tune writes sections for tk_kernels/generate/tuning.toml or TTT_BENCH_TUNING=FILE.
    """
    from bench.errors import UserError

    if tune:
        from bench.commands.tune import tune as measure_settings

        measure_settings(learner or (), form, precision, batch or 512, output)
        return
    given = {"LEARNER": learner, "--form": form, "--precision": precision, "--batch": batch, "--output": output}
    for name, value in given.items():
        if value:
            raise UserError(f"build {name}: says what to tune; add --tune")
    from bench.commands.build import build_kernels

    build_kernels()


@app.command()
def run(
    suite: Suites = None,
    systems: Systems = None,
    batch: Batch = None,
    context: Context = None,
    phase: Phase = None,
    checkpoint: Checkpoint = None,
    out: Out = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what is finished; measure the rest, skipped cases too.")
    ] = False,
    retry: RetryOption = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the cases, the jobs and how long they will take; --device cuda: of a GPU."
        ),
    ] = False,
    time_limit: TimeLimit = 600,
    budget: Annotated[
        float | None,
        typer.Option(
            help=f"Seconds of sampling a case; {BUDGETS_S['cuda']:g} on a GPU, {BUDGETS_S['cpu']:g} on a CPU.",
            min=0.001,
        ),
    ] = None,
    device: Device = "auto",
    gpus: Gpus = None,
    slurm: Annotated[
        str | None,
        typer.Option(help="Submit tasks to Slurm instead: partition=gpu,time=01:00:00,gpus=4 and more of sbatch's."),
    ] = None,
) -> None:
    """Measure suites into a run folder.

    OUT/run.json says what is measured, OUT/records/ holds a record of every case.
    """
    from bench.commands import measure
    from bench.commands import slurm as tasks
    from bench.errors import UserError
    from bench.request import RunRequest

    if gpus is not None and slurm is not None:
        raise UserError("--gpus --slurm: one of them; --slurm says gpus=N itself")
    request = RunRequest(
        suites=suite, systems=systems, batch=batch, context=context, phase=phase, checkpoint=checkpoint, device=device,
        budget_s=budget, time_limit_s=time_limit, gpus=gpus, slurm=slurm, out=out, resume=resume, retry=retry,
    )  # fmt: skip
    if dry_run:
        measure.dry_run(request, _folder(request))
    elif slurm is not None:
        tasks.submit(request, _folder(request))
    else:
        measure.run(request, _folder(request))


def _folder(request: "RunRequest") -> Path:
    """OUT, or a new folder that is named after this moment."""
    from datetime import datetime

    from bench.errors import UserError

    if request.out is None and request.resume:
        raise UserError("--resume: say by --out which run")
    return request.out or Path("out") / f"{datetime.now():%Y%m%d-%H%M%S}"


@app.command()
def status(
    run: RunFolder,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the Slurm job that works on it.")] = False,
) -> None:
    """Show how far a run is and who works on it."""
    from bench.commands.status import status

    status(run, cancel)


@app.command(hidden=True)
def work(
    run: RunFolder,
    keys: Annotated[
        Path | None, typer.Option(help="A file with the keys of the cases to run, a line each; all without it.")
    ] = None,
    retry: RetryOption = None,
    time_limit: TimeLimit = 600,
    checkpoint: Checkpoint = None,
) -> None:
    """Be one task of a run that Slurm's tasks share."""
    from bench.commands.slurm import work
    from bench.request import RunRequest

    work(RunRequest(checkpoint=checkpoint, time_limit_s=time_limit, retry=retry), run, keys)


@app.command()
def verify(
    suite: Suites = None,
    systems: Systems = None,
    batch: Batch = None,
    context: Context = None,
    phase: Phase = None,
    checkpoint: Checkpoint = None,
    time_limit: TimeLimit = 600,
    device: Device = "auto",
) -> None:
    """Check outputs and fidelity; time nothing.

    Exit status 1 when a case differs or fails, or all are skipped.
    """
    from bench.commands.verify import verify as check
    from bench.request import RunRequest

    check(
        RunRequest(
            command="verify", suites=suite, systems=systems, batch=batch, context=context, phase=phase,
            checkpoint=checkpoint, device=device, time_limit_s=time_limit,
        )
    )  # fmt: skip


@app.command()
def table(
    run: RunFolder,
    csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values.")] = False,
    json: Annotated[bool, typer.Option("--json", help="A JSON list of rows.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False,
    columns: Annotated[str | None, typer.Option(help=COLUMNS)] = None,
    systems: Systems = None,
) -> None:
    """Print a run as a table."""
    from bench.commands import results
    from bench.errors import UserError

    formats = [name for name, asked in (("csv", csv), ("json", json), ("markdown", markdown)) if asked]
    if len(formats) > 1:
        raise UserError(f"--{' --'.join(formats)}: one format at a time")
    results.table(run, formats[0] if formats else "text", systems, columns)


@app.command()
def report(
    run: RunFolder,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The page; by default RUN/report.html.")] = None,
    systems: Systems = None,
    png: Annotated[
        Path | None, typer.Option(help="Draw figures to this PNG file instead; needs Chromium and playwright.")
    ] = None,
    pdf: Annotated[
        Path | None, typer.Option(help="Draw figures to this PDF file instead, for a paper; needs the same.")
    ] = None,
    inches: Annotated[
        float | None,
        typer.Option(help="The width of each figure alone, without title and caption.", min=2, max=20),
    ] = None,
    figures: Annotated[
        str, typer.Option(help="Of --png: figures by their name, such as fig15; `all`: the page; else the first.")
    ] = "",
    theme: Annotated[str, typer.Option(help="Of --png: light or dark.")] = "light",
    width: Annotated[int, typer.Option(help="Of --png: the page's, in CSS pixels.", min=320, max=4096)] = 1240,
    log_y: Annotated[bool, typer.Option("--log-y", help="Of --png: logarithmic values.")] = False,
) -> None:
    """Draw a run as one page, or its figures as PNG or PDF."""
    from bench.commands import results
    from bench.errors import UserError

    targets = {"--output": output, "--png": png, "--pdf": pdf}
    given = [name for name, path in targets.items() if path is not None]
    if len(given) > 1:
        raise UserError(f"{' '.join(given)}: one of them; each names the file to write")
    if pdf is not None:
        results.picture(run, pdf, figures, theme, width, log_y, systems, inches or _COLUMN_INCHES)
    elif png is not None:
        results.picture(run, png, figures, theme, width, log_y, systems, inches)
    else:
        results.report(run, output, systems)


@app.command()
def site(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the site.")],
    runs: Annotated[list[Path] | None, typer.Argument(metavar="RUN...", help="The folders of runs.")] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the site on the loopback address, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(help="Of --serve; 0 for a free one.", min=0, max=65535)] = 8000,
) -> None:
    """Make, update or serve a static site of runs.

    It has a page of each run, systems over time, and any two runs compared.
    """
    from bench.commands import site as commands
    from bench.errors import UserError

    if not runs and not serve:
        raise UserError("site: name the folders of runs, or add --serve to look at a site")
    if runs:
        commands.site(runs, output)
    if serve:
        commands.serve(output, port)


@app.command()
def convert(
    file: Annotated[Path, typer.Argument(metavar="JAX_FILE", help="`streaming_params` or `streaming_train_state`.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The new folder, for --checkpoint.")],
    base_lr: Annotated[
        float | None,
        typer.Option(help="The run's ttt_base_lr; by default the paper's: 1 of TTT-Linear, 0.1 of TTT-MLP."),
    ] = None,
) -> None:
    """Convert a checkpoint of the authors' JAX code.

    The new folder has config.json and safetensors.
    """
    from bench.commands.convert import convert_checkpoint

    convert_checkpoint(file, output, base_lr)


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="The folder of a run.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The folder of the run that is compared with it.")],
    fail_on: Annotated[
        str | None, typer.Option(help=f"{SLOWER} at least 5%; smaller differences need `ttt-bench ab`.")
    ] = None,
    markdown: Markdown = False,
    json: Json = False,
    html: Page = None,
) -> None:
    """Compare two runs; judge differences beyond 5%.

    It shows B/A of each case, and how the machines differ.
    """
    from bench.commands import compare as commands

    commands.compare(a, b, fail_on, commands.Shown(_format(markdown, json), html))


@app.command()
def ab(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A git revision, or the folder of a checkout.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="What is compared with it.")],
    suite: Suites = None,
    systems: Systems = None,
    batch: Batch = None,
    context: Context = None,
    phase: Phase = None,
    rounds: Annotated[
        int, typer.Option(help="Fresh processes of each case and side, in turns; fewer than 5 raise false alarms.")
    ] = 6,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the two runs, OUT/old and OUT/new.")] = Path(
        "out/ab"
    ),
    fail_on: Annotated[str | None, typer.Option(help=f"{SLOWER} such as 3%.")] = None,
    markdown: Markdown = False,
    json: Json = False,
    html: Page = None,
    time_limit: TimeLimit = 600,
    budget: Annotated[float | None, typer.Option(help="Seconds of sampling a case and side.", min=0.001)] = None,
    device: Device = "auto",
) -> None:
    """Measure two commits in turns on this machine, and judge.

    Each case is faster, slower, same or undecided; exit status 1 if one is slower.
    """
    from bench.commands import compare as commands
    from bench.request import RunRequest

    request = RunRequest(
        command="ab", sides=(old, new), suites=suite, systems=systems, batch=batch, context=context, phase=phase,
        rounds=rounds, budget_s=budget, time_limit_s=time_limit, device=device, out=out,
    )  # fmt: skip
    commands.ab(request, out, fail_on, commands.Shown(_format(markdown, json), html))


def _format(markdown: bool, json: bool) -> str:
    from bench.errors import UserError

    if markdown and json:
        raise UserError("--markdown --json: one format at a time")
    return "markdown" if markdown else "json" if json else "text"


@app.command()
def profile(
    suite: Suites = None,
    systems: Systems = None,
    batch: Batch = None,
    context: Context = None,
    phase: Phase = None,
    checkpoint: Checkpoint = None,
    way: Annotated[
        str,
        typer.Option(
            "--with",
            help="nsys or torch for times; ncu for bytes, operations and stalls beside torch's times; "
            "auto: the best of what is here.",
        ),
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="A run whose cases are profiled, or the folder of a new one; by default out/DATE-TIME."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the profiles that are there; make the rest.")] = False,
    retry: Annotated[
        str | None,
        typer.Option(help="Resume, and make again what was `lost` (the default), or all that `failed`."),
    ] = None,
    time_limit: TimeLimit = 600,
    device: Device = "auto",
    gpus: Gpus = None,
) -> None:
    """Run cases again under a profiler, never timed.

    OUT/profiles/ holds where the time of each went, and why.
    """
    from bench.commands.profile import profile
    from bench.request import RunRequest

    request = RunRequest(
        command="profile", suites=suite, systems=systems, batch=batch, context=context, phase=phase,
        checkpoint=checkpoint, way=way, device=device, time_limit_s=time_limit, gpus=gpus, out=out, resume=resume,
        retry=retry,
    )  # fmt: skip
    profile(request, _folder(request))


def main() -> None:
    """Entry point: a user's mistake is one sentence on stderr and exit status 2."""
    replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no µ shows a mark
    sys.exit(guarded(_command))


def _command() -> Any:
    refuse_arguments(sys.argv[1:], typer.main.get_command(app))
    return app(standalone_mode=False)
