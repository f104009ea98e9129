"""The command line `ttt-bench`: list, run, verify, table, report."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Build, measure and explain Test-Time Training (TTT) kernels.",
)

Records = Annotated[list[Path], typer.Argument(help="Record files (.jsonl), or folders of them.")]
Suites = Annotated[list[str] | None, typer.Argument(help="Suites to run; without one, those for this machine.")]
Systems = Annotated[str | None, typer.Option(help="Systems, as NAME or NAME/BACKEND, comma-separated.")]
Sizes = Annotated[str | None, typer.Option(help="Model sizes instead of the suite's, comma-separated.")]
Batch = Annotated[str | None, typer.Option(help="Batch sizes instead of the suite's, comma-separated.")]
Context = Annotated[str | None, typer.Option(help="Context lengths instead of the suite's, comma-separated.")]
Out = Annotated[Path, typer.Option(help="Folder for the records, one file a suite.")]
SystemsFile = Annotated[Path | None, typer.Option(help="A systems.toml; by default ./systems.toml if it exists.")]


@app.command()
def systems(systems_file: SystemsFile = None) -> None:
    """List what can run here, with versions, and why the rest cannot."""
    from bench import commands

    commands.list_systems(systems_file)


@app.command()
def suites() -> None:
    """List the suites and the question each answers."""
    from bench import commands

    commands.list_suites()


@app.command()
def build() -> None:
    """Compile the CUDA kernels ahead, and show registers and spills; needs nvcc, no GPU."""
    from bench import commands

    commands.build_kernels()


@app.command()
def run(
    suite: Suites = None,
    systems: Systems = None,
    sizes: Sizes = None,
    batch: Batch = None,
    context: Context = None,
    out: Out = Path("out"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what is finished; measure the rest, skipped cases too.")
    ] = False,
    time_limit: Annotated[float, typer.Option(help="Seconds that one case may take, model and gate included.")] = 600,
    budget: Annotated[float | None, typer.Option(help="Seconds of sampling a case; 1.5 on a CPU, 10 on a GPU.")] = None,
    profile_range: Annotated[
        bool, typer.Option("--profile-range", help="Call cudaProfilerStart/Stop around the steady region.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is a GPU.")] = "auto",
    systems_file: SystemsFile = None,
) -> None:
    """Measure suites; every case becomes a record in OUT/SUITE.jsonl."""
    from bench import commands

    request = commands.Request(
        suites=suite,
        systems=systems,
        sizes=sizes,
        batch=batch,
        context=context,
        device=device,
        systems_file=systems_file,
    )
    commands.run(request, out, resume=resume, time_limit_s=time_limit, budget_s=budget, profile_range=profile_range)


@app.command()
def verify(
    suite: Suites = None,
    systems: Systems = None,
    sizes: Sizes = None,
    batch: Batch = None,
    context: Context = None,
    time_limit: Annotated[float, typer.Option(help="Seconds that one case may take.")] = 600,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is a GPU.")] = "auto",
    systems_file: SystemsFile = None,
) -> None:
    """Gates and fidelity only; exit status 1 when a case misses its gate or fails, or all are skipped."""
    from bench import commands

    request = commands.Request(
        suites=suite,
        systems=systems,
        sizes=sizes,
        batch=batch,
        context=context,
        device=device,
        systems_file=systems_file,
    )
    commands.verify(request, time_limit_s=time_limit)


@app.command()
def table(
    records: Records,
    csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values.")] = False,
    json: Annotated[bool, typer.Option("--json", help="A JSON list of rows.")] = False,
    systems: Systems = None,
) -> None:
    """Print the records as a table."""
    from bench import commands
    from bench.errors import UserError

    if csv and json:
        raise UserError("--csv --json: one format at a time")
    commands.table(records, "csv" if csv else "json" if json else "text", systems)


@app.command()
def report(
    records: Records,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    systems: Systems = None,
) -> None:
    """Draw the records as one self-contained HTML page."""
    from bench import commands

    commands.report(records, output, systems)


def main() -> None:
    """Entry point: a user's mistake is one sentence on stderr and exit status 2."""
    sys.exit(_guarded(lambda: app(standalone_mode=False)))


def _guarded(call: Callable[[], Any]) -> int:
    from bench.errors import UserError
    from harness.record import RecordError

    try:
        return call() or 0
    except (UserError, RecordError) as error:
        return _told(str(error), 2)
    except (typer.Abort, KeyboardInterrupt):
        return _told("interrupted; start again with --resume to go on", 130)
    except Exception as error:
        # Typer brings its own click in newer releases, so its usage errors have no one class to catch.
        if not hasattr(error, "format_message"):
            raise
        return _told(error.format_message(), 2)


def _told(message: str, status: int) -> int:
    print(f"ttt-bench: {' '.join(message.split())}", file=sys.stderr)
    return status
