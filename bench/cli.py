"""The command line `ttt-bench`."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from bench.arguments import refuse_arguments
from bench.catalogue.suites import BUDGETS_S
from bench.ending import guarded, replace_closed_streams
from bench.options import (
    COLUMNS,
    SLOWER,
    Backbone,
    Batch,
    Checkpoint,
    Context,
    Device,
    Gpus,
    Json,
    Markdown,
    MiniBatch,
    Out,
    Page,
    Phase,
    RetryOption,
    RunFolder,
    Sizes,
    StartLimit,
    Suites,
    Systems,
    SystemsFile,
    TimeLimit,
)
from harness.measure.interval import FEWEST

if TYPE_CHECKING:
    from bench.commands.planning import ToRetry
    from bench.selection import Asked

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
        bool, typer.Option("--tune", help="Measure launch settings of the generate kernels on this GPU instead.")
    ] = False,
    form: Annotated[str | None, typer.Option(help="Of --tune: dual, primal; by default both.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="Of --tune, the state's: planes, float32, bfloat16, float16; by default all.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Of --tune: sequences that generate together; 512.", min=1)] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Of --tune: a new file of sections; by default printed.")
    ] = None,
) -> None:
    """Compile the CUDA kernels; show their registers and spills.

    It needs nvcc and no GPU. --tune makes sections for tk_kernels/generate/tuning.toml.
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
    sizes: Sizes = None,
    batch: Batch = None,
    context: Context = None,
    phase: Phase = None,
    mini_batch: MiniBatch = None,
    backbone: Backbone = None,
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
    start_limit: StartLimit = 300,
    budget: Annotated[
        float | None,
        typer.Option(
            help=f"Seconds of sampling a case; {BUDGETS_S['cuda']:g} on a GPU, {BUDGETS_S['cpu']:g} on a CPU.",
            min=0.001,
        ),
    ] = None,
    min_samples: Annotated[
        int | None,
        typer.Option(help=f"Samples of a case, whatever the budget; {FEWEST} but for quick.", min=1),
    ] = None,
    repeats: Annotated[
        int, typer.Option(help="Fresh processes that each case runs in, one after another.", min=1, max=99)
    ] = 1,
    device: Device = "auto",
    systems_file: SystemsFile = None,
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
    from bench.errors import UserError
    from bench.selection import Asked
    from harness.workers.process import Limits

    axes = (systems, sizes, batch, context, phase, mini_batch, backbone, checkpoint)
    asked = Asked(tuple(suite or ()), *axes, device, systems_file, budget, min_samples, repeats)
    if gpus is not None and slurm is not None:
        raise UserError("--gpus --slurm: one of them; --slurm says gpus=N itself")
    again, limits, arguments = _retry(retry, resume), Limits(time_limit, start_limit), sys.argv[1:]
    out = _folder(out, resume)
    if dry_run:
        measure.dry_run(asked, out, gpus, slurm, resume=resume, retry=again)
    elif slurm is not None:
        from bench.commands.slurm import submit

        submit(asked, out, slurm, resume=resume, retry=again, limits=limits, arguments=arguments)
    else:
        measure.run(asked, out, resume=resume, retry=again, limits=limits, arguments=arguments, gpus=gpus)


def _folder(out: Path | None, resume: bool) -> Path:
    """OUT, or a new folder that is named after this moment."""
    from datetime import datetime

    from bench.errors import UserError

    if out is None and resume:
        raise UserError("--resume: say by --out which run")
    return out or Path("out") / f"{datetime.now():%Y%m%d-%H%M%S}"


def _retry(asked: str | None, resume: bool, known: Sequence[str] = ("lost", "failed", "marked")) -> "ToRetry":
    """What `--retry` says."""
    from bench.errors import UserError

    if asked not in (None, *known):
        raise UserError(f"--retry {asked}: must be {', '.join(known[:-1])} or {known[-1]}")
    if asked is not None and not resume:
        raise UserError(f"--retry {asked}: says what --resume does; add --resume")
    return cast("ToRetry", asked or "lost")


@app.command()
def status(
    run: RunFolder,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the Slurm job that works on it.")] = False,
) -> None:
    """Show how far a run is and who works on it."""
    from bench.commands.status import status

    status(run, cancel, _asked_by)


def _asked_by(arguments: Sequence[str]) -> "Asked":
    """What these arguments of `run` or `profile` ask for; UserError where they cannot be read."""
    from bench.errors import UserError
    from bench.selection import Asked

    name, *words = arguments
    try:
        given = typer.main.get_command(app).commands[name].make_context(name, words).params  # type: ignore[attr-defined]
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        raise UserError(f"{name}: {error.format_message()}") from None
    axes = ("systems", "sizes", "batch", "context", "phase", "mini_batch", "backbone", "checkpoint")
    return Asked(tuple(given["suite"] or ()), *(given[axis] for axis in axes))


@app.command(hidden=True)
def work(
    run: RunFolder,
    keys: Annotated[
        Path | None, typer.Option(help="A file with the keys of the cases to run, a line each; all without it.")
    ] = None,
    retry: RetryOption = None,
    time_limit: TimeLimit = 600,
    start_limit: StartLimit = 300,
    systems_file: SystemsFile = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Be one task of a run that Slurm's tasks share."""
    from bench.commands.slurm import work
    from harness.workers.process import Limits

    limits = Limits(time_limit, start_limit)
    work(run, keys, systems_file, retry=_retry(retry, resume=True), limits=limits, checkpoint=checkpoint)


@app.command()
def verify(
    suite: Suites = None,
    systems: Systems = None,
    sizes: Sizes = None,
    batch: Batch = None,
    context: Context = None,
    phase: Phase = None,
    mini_batch: MiniBatch = None,
    backbone: Backbone = None,
    checkpoint: Checkpoint = None,
    time_limit: TimeLimit = 600,
    start_limit: StartLimit = 300,
    device: Device = "auto",
    systems_file: SystemsFile = None,
) -> None:
    """Check outputs and fidelity; time nothing.

    Exit status 1 when a case differs or fails, or all are skipped.
    """
    from bench.commands.verify import verify as check
    from bench.selection import Asked
    from harness.workers.process import Limits

    axes = (systems, sizes, batch, context, phase, mini_batch, backbone, checkpoint)
    asked = Asked(tuple(suite or ()), *axes, device, systems_file)
    check(asked, limits=Limits(time_limit, start_limit))


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
    figures: Annotated[
        str, typer.Option(help="Of --png: figures by their name, such as fig15; `all`: the page; else the first.")
    ] = "",
    theme: Annotated[str, typer.Option(help="Of --png: light or dark.")] = "light",
    width: Annotated[int, typer.Option(help="Of --png: the page's, in CSS pixels.", min=320, max=4096)] = 1240,
    log_y: Annotated[bool, typer.Option("--log-y", help="Of --png: logarithmic values.")] = False,
) -> None:
    """Draw a run as one self-contained page, or as a PNG."""
    from bench.commands import results
    from bench.errors import UserError

    if png is None:
        results.report(run, output, systems)
    elif output is not None:
        raise UserError("--output --png: one of them; --png names the file of a picture")
    else:
        results.picture(run, png, figures, theme, width, log_y, systems)


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
    sizes: Sizes = None,
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
    start_limit: StartLimit = 300,
    budget: Annotated[float | None, typer.Option(help="Seconds of sampling a case and side.", min=0.001)] = None,
    min_samples: Annotated[int | None, typer.Option(help="Samples of a case and side.", min=1)] = None,
    device: Device = "auto",
    systems_file: SystemsFile = None,
) -> None:
    """Measure two commits in turns on this machine, and judge.

    Each case is faster, slower, same or undecided; exit status 1 if one is slower.
    """
    from bench.commands import compare as commands
    from bench.selection import Asked
    from harness.workers.process import Limits

    asked = Asked(
        tuple(suite or ()), systems, sizes, batch, context, phase, device=device, systems_file=systems_file,
        budget_s=budget, min_samples=min_samples, repeats=rounds,
    )  # fmt: skip
    commands.ab(
        asked,
        (old, new),
        out,
        limits=Limits(time_limit, start_limit),
        fail_on=fail_on,
        shown=commands.Shown(_format(markdown, json), html),
        arguments=sys.argv[1:],
    )


def _format(markdown: bool, json: bool) -> str:
    from bench.errors import UserError

    if markdown and json:
        raise UserError("--markdown --json: one format at a time")
    return "markdown" if markdown else "json" if json else "text"


@app.command()
def profile(
    suite: Suites = None,
    systems: Systems = None,
    sizes: Sizes = None,
    batch: Batch = None,
    context: Context = None,
    phase: Phase = None,
    mini_batch: MiniBatch = None,
    backbone: Backbone = None,
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
        str | None, typer.Option(help="With --resume: what was `lost` (the default), or all that `failed`, again.")
    ] = None,
    time_limit: TimeLimit = 600,
    start_limit: StartLimit = 300,
    device: Device = "auto",
    systems_file: SystemsFile = None,
    gpus: Gpus = None,
) -> None:
    """Run cases again under a profiler, never timed.

    OUT/profiles/ holds where the time of each went, and why.
    """
    from bench.commands.profile import profile
    from bench.selection import Asked
    from harness.workers.process import Limits

    axes = (systems, sizes, batch, context, phase, mini_batch, backbone, checkpoint)
    asked = Asked(tuple(suite or ()), *axes, device, systems_file)
    profile(
        asked,
        _folder(out, resume),
        way=way,
        resume=resume,
        retry_failed=_retry(retry, resume, ("lost", "failed")) == "failed",
        limits=Limits(time_limit, start_limit),
        arguments=sys.argv[1:],
        gpus=gpus,
    )


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
