"""What does each command of `ttt-bench` do? Kept apart from the command line so that its help starts at once."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.environments import launches
from bench.errors import UserError
from bench.memory import layer_beyond_memory, refuse_beyond_memory, total_memory_bytes
from bench.selection import select, words
from bench.suites import SUITES, Suite, beyond_memory, cases, default_suites, find_suite
from bench.systems import SYSTEMS
from harness.case import Case
from harness.environment import snapshot
from harness.progress import Progress
from harness.record import Record
from harness.runner import Launch, probe, run_cases
from harness.timer import Policy


@dataclass(frozen=True)
class Request:
    """What `run` and `verify` are asked to do, in the words of the command line."""

    suites: list[str] | None
    systems: str | None
    sizes: str | None
    batch: str | None
    context: str | None
    device: str
    systems_file: Path | None


@dataclass(frozen=True)
class Plan:
    """What they will do: the cases of each suite and how to start each system."""

    device: str
    cases: dict[str, list[Case]]
    launches: dict[tuple[str, str], Launch]
    memory_bytes: int

    def skip(self, case: Case, earlier: Sequence[Record]) -> str:
        """Why a case need not be tried."""
        return layer_beyond_memory(case, self.memory_bytes) or beyond_memory(case, earlier)


def plan(request: Request) -> Plan:
    """Every case of the request, or UserError with the mistake in one sentence."""
    machine = snapshot()
    device = _device(request.device, machine["device_kind"])
    selection = select(request.systems, request.sizes, request.batch, request.context, device)
    chosen = [find_suite(name) for name in dict.fromkeys(request.suites or default_suites(device))]
    for suite in chosen:
        _refuse_without_gpu(suite, device)
    found = {suite.name: cases(suite, selection, device) for suite in chosen}
    for name, suite_cases in found.items():
        if not suite_cases:
            raise UserError(f"suite {name}: none of its cases is left by --systems {request.systems}")
        if selection.narrows_axes:
            refuse_beyond_memory(suite_cases, machine)
    return Plan(device, found, launches(request.systems_file), total_memory_bytes(machine))


def _device(asked: str, found: str) -> str:
    if asked not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device {asked}: must be auto, cpu or cuda")
    if asked == "cuda" and found != "cuda":
        raise UserError("--device cuda: no CUDA GPU was found on this machine")
    return found if asked == "auto" else asked


def _refuse_without_gpu(suite: Suite, device: str) -> None:
    if suite.device == "cuda" and device != "cuda":
        anywhere = ", ".join(s.name for s in SUITES if not s.device)
        raise UserError(f"suite {suite.name}: needs a CUDA GPU and there is none to use; without one, run {anywhere}")


def run(
    request: Request, out: Path, *, resume: bool, time_limit_s: float, budget_s: float | None, profile_range: bool
) -> None:
    """Measure; one record file a suite under `out`."""
    _require_positive("--time-limit", time_limit_s)
    _require_positive("--budget", budget_s)
    work = plan(request)
    policy = Policy(budget_s=budget_s or (10.0 if work.device == "cuda" else 1.5))
    records: list[Record] = []
    for name, suite_cases in work.cases.items():
        with Progress(name, len(suite_cases)) as progress:
            records += run_cases(
                suite_cases,
                work.launches,
                out / f"{name}.jsonl",
                resume=resume,
                time_limit_s=time_limit_s,
                policy=policy,
                on_event=progress,
                skip=work.skip,
                profile_range=profile_range,
            )
    print(_summary(records))


def verify(request: Request, *, time_limit_s: float) -> None:
    """Run the gates alone; exit status 1 when one is missed, a case fails, or every case is skipped."""
    import tempfile

    _require_positive("--time-limit", time_limit_s)
    work = plan(request)
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, suite_cases in work.cases.items():
            with Progress(name, len(suite_cases)) as progress:
                records += run_cases(
                    suite_cases,
                    work.launches,
                    Path(folder) / f"{name}.jsonl",
                    resume=False,
                    time_limit_s=time_limit_s,
                    policy=Policy(),
                    on_event=progress,
                    skip=work.skip,
                    verify_only=True,
                )
    _print_verdicts(records)
    if any(record.status not in ("ok", "skipped") for record in records):
        sys.exit(1)
    if not any(record.status == "ok" for record in records):
        sys.exit("ttt-bench: nothing was verified: every case was skipped, each for the reason in its row")


def list_systems(systems_file: Path | None) -> None:
    """Ask the worker of every system whether it can run here."""
    rows = []
    starts = launches(systems_file)
    for spec in SYSTEMS:
        found = probe(starts[spec.system, spec.backend])
        versions = {"torch": found.environment.get("software", {}).get("torch", ""), **found.versions}
        told = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        here = "yes" if found.available else "no"
        rows.append((spec.label, here, told if found.available else f"{found.reason} (install: {spec.install})"))
    _print_rows(("system", "runs here", "versions or reason"), rows)


def list_suites() -> None:
    """Every suite with its question and the device it needs."""
    rows = [(suite.name, suite.device or "any", suite.question) for suite in SUITES]
    _print_rows(("suite", "device", "question"), rows)


def build_kernels() -> None:
    """Compile every CUDA kernel that the cache lacks; ThunderKittens is cloned where no checkout is named."""
    from tk_kernels import build

    try:
        if build.find_nvcc() and build.find_thunderkittens() is None:
            build.fetch_thunderkittens()
        modules = build.build_all()
    except build.BuildError as error:
        raise UserError(str(error)) from None
    rows = []
    for module in modules:
        source = "nvcc" if module.compiled else "cache"
        for kernel in module.resources:
            spilled = kernel.spill_store_bytes + kernel.spill_load_bytes
            rows.append((module.name, kernel.name, str(kernel.registers), str(spilled), source))
    _print_rows(("module", "kernel", "registers", "spilled bytes", "from"), rows)


def table(records: list[Path], fmt: str, systems: str | None) -> None:
    """Print records as text, CSV or JSON."""
    from reports import write_table

    write_table(records, fmt, systems=words(systems, str))


def report(records: list[Path], output: Path, systems: str | None) -> None:
    """Write the HTML page of records."""
    from reports import write_report

    try:
        write_report(records, output, systems=words(systems, str))
    except OSError as error:
        raise UserError(f"{output}: cannot be written: {error.strerror}") from None
    print(f"wrote {output}")


def _require_positive(option: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise UserError(f"{option} {value:g}: must be more than 0 seconds")


def _summary(records: Sequence[Record]) -> str:
    """`34 ok, 2 skipped`, the most frequent first."""
    counts = Counter(record.status for record in records)
    return ", ".join(f"{count} {status}" for status, count in counts.most_common())


def _print_verdicts(records: Sequence[Record]) -> None:
    rows = []
    for record in records:
        case, gate = record.case, record.gate or {"checks": []}
        checks = ", ".join(
            f"{check['name']} {_distance(check['value'])} (limit {_distance(check['limit'])})"
            for check in gate["checks"]
        )
        shape = (case.size, case.phase, str(case.batch), str(case.context))
        rows.append((case.system_backend, *shape, record.status, checks or record.reason))
    _print_rows(("system", "size", "phase", "batch", "context", "status", "checks"), rows)


def _distance(value: float | None) -> str:
    """Two digits of a check's number; a record writes one that is not finite as None."""
    return "not finite" if value is None else f"{value:.2g}"


def _print_rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table, its cells as they are: what a reason has in brackets is no markup."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        grid.add_row(*row)
    Console(highlight=False, markup=False).print(grid)
