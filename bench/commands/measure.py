"""`ttt-bench run` and `ttt-bench verify`: plan, say what will happen, run the jobs, sum up."""

import math
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import estimate
from bench.catalogue import catalogue
from bench.catalogue.suites import BUDGETS_S, SUITES, Suite, default_suite, find_group, find_suite
from bench.catalogue.systems import ADAPTERS
from bench.environments import launches
from bench.errors import CANNOT_IMPORT, UserError
from bench.memory import refuse_beyond_memory, total_memory_bytes
from bench.models.case_model import Checkpoint, offer, read_checkpoint
from bench.models.config import CheckpointError
from bench.plan import Selection, jobs_of, skip_reason, suite_cases, suite_entry
from bench.selection import Asked, select
from bench.terminal import print_rows
from harness.catalogue import Catalogue
from harness.claims import clear
from harness.environment import snapshot
from harness.machine_load import warning
from harness.nvml import visible_gpus
from harness.pool import gpu_places, run_pool
from harness.process import Launch, Limits
from harness.progress import Progress
from harness.reason import counted
from harness.record import Record
from harness.run import Job, Planned, Request, Run, RunFile
from harness.runner import Retry, run_jobs, session
from harness.task import refuse_submitted
from harness.timer import Policy

SYSTEMS_FILE = "systems.toml"  # as `make baselines` writes it


@dataclass(frozen=True)
class Plan:
    """What they will do, and on what."""

    device: str
    here: bool  # whether this machine has the device
    jobs: tuple[Job, ...]
    catalogue: Catalogue
    launches: dict[tuple[str, str], Launch]
    memory_bytes: int | None  # None where the machine that will run it is another one
    repeats: int
    policy: Policy
    machine: dict
    added: str  # which cases the suites do not have, in a sentence; "" where there are none

    def skip(self, planned: Planned, earlier: Sequence[Record]) -> str:
        """Why a case need not be tried."""
        return skip_reason(planned, earlier, self.memory_bytes)

    @property
    def total(self) -> int:
        """How many cases, each repeat counted."""
        return self.repeats * sum(len(job.cases) for job in self.jobs)


def plan(asked: Asked) -> Plan:
    """The jobs of the request, or UserError with the mistake in one sentence."""
    if asked.budget_s is not None and not math.isfinite(asked.budget_s):
        raise UserError(f"--budget {asked.budget_s}: must be a number of seconds")
    machine = snapshot()
    device, here = _device(asked.device, machine["device_kind"])
    if here and device != machine["device_kind"]:
        machine = snapshot(device)  # a run on the CPU of a machine with a GPU is one of its CPU
    checkpoint = open_checkpoint(asked.checkpoint)
    names, systems, budget_s = _suites(asked, device, checkpoint)
    selection = select(replace(asked, systems=systems), device, checkpoint)
    suites = [find_suite(name) for name in names]
    for suite in suites:
        _refuse_without_gpu(suite, device)
    cases = [(suite, suite_cases(suite, selection, device)) for suite in suites]
    for suite, planned in cases:
        if not planned and len(suites) == 1:
            raise UserError(f"suite {suite.name}: none of its cases is left by --systems {systems}")
    if not any(planned for _, planned in cases):
        raise UserError(f"none of the suites' cases is left by --systems {systems}")
    everything = [each for _, planned in cases for each in planned]
    if asked.min_samples is not None:
        everything = [replace(each, min_samples=asked.min_samples) for each in everything]
    if selection.narrows_axes and here:
        refuse_beyond_memory((each.case for each in everything), machine)
    return Plan(
        device,
        here,
        jobs_of(everything),
        catalogue(tuple(suite_entry(suite, planned) for suite, planned in cases if planned)),
        launches(asked.systems_file),
        total_memory_bytes(machine) if here else None,
        asked.repeats,
        # The samples of a case are spread over its repeats, and so is the time for them.
        Policy(budget_s=budget_s / asked.repeats, settle_max_s=2 * budget_s),  # who asks for a glance waits no longer
        machine,
        _added(cases, selection, device),
    )


def run(
    asked: Asked,
    out: Path,
    *,
    resume: bool,
    retry: Retry,
    limits: Limits,
    arguments: Sequence[str],
    gpus: str | None = None,
) -> None:
    """Measure into the run folder `out`; exit status 1 where nothing came of it.

    gpus: as of `--gpus`, to run a job on each at a time.
    """
    work = plan(asked)
    if not work.here:
        raise UserError("--device cuda: no CUDA GPU was found on this machine; --dry-run plans without one")
    places = gpu_places(_gpus(gpus, work.device)) if gpus is not None else []
    current = open_run(work, out, resume=resume, arguments=arguments)
    asked_for = {job.pair for job in work.jobs}
    jobs = [job for job in current.jobs if job.pair in asked_for]
    try:
        for said in filter(None, (work.added, warning("cases that they disturb will be marked"))):
            print(f"ttt-bench: {said}", file=sys.stderr)
        with Progress(str(out), work.total) as progress:
            options: dict[str, Any] = {"limits": limits, "retry": retry, "on_event": progress, "skip": work.skip}
            if places:
                jobs = estimate.longest_first(jobs, work.repeats, estimate.past_durations(work.machine, out))
                with session(current, work.launches, jobs=jobs, **options) as held:
                    records = run_pool(held, places)
            else:
                records = run_jobs(current, work.launches, jobs=jobs, **options)
    except KeyboardInterrupt:
        print(f"ttt-bench: interrupted; start again with --resume --out {out} to continue", file=sys.stderr)
        sys.exit(130)
    print(summary(records))
    for said in missing_packages(records, unused_systems_file(asked)):
        print(f"ttt-bench: {said}", file=sys.stderr)
    if records and not any(record.status == "ok" for record in records):
        sys.exit(1)


def open_run(work: Plan, out: Path, *, resume: bool, arguments: Sequence[str]) -> Run:
    """The new run in `out`, or the one there with what is asked for added; RunError where another has it."""
    request = request_of(arguments, work)
    if not _goes_on(work, out, resume):
        file = RunFile("measure", work.jobs, work.catalogue, work.policy.to_dict(), work.repeats, (request,))
        return Run.create(out, file)
    with Run.open(out).held():
        current = Run.open(out)  # as it is now that nobody else adds to it
        clear(out)
        current.extend(work.jobs, work.catalogue, work.policy.to_dict(), request)
    return current


def _goes_on(work: Plan, out: Path, resume: bool) -> bool:
    """Whether the work is added to the run in `out`; RunError or UserError where the folder does not do for it."""
    refuse_submitted(out)
    if not (Run.exists(out) and resume):
        Run.refuse_held(out)
        return False
    _refuse_another_kind(Run.open(out), work.repeats)
    return True


def dry_run(asked: Asked, out: Path, gpus: str | None = None, *, resume: bool = False) -> None:
    """Print the cases and jobs of a run, what is too large, and how long it will take; gpus: as of `--gpus`."""
    work = plan(asked)
    _goes_on(work, out, resume)
    if work.added:
        print(f"ttt-bench: {work.added}", file=sys.stderr)
    past = estimate.past_durations(work.machine if work.here else None, out)
    rows = []
    times = [estimate.job_time(job, work.repeats, past) for job in work.jobs]
    for job, time in zip(work.jobs, times, strict=True):
        phases = ", ".join(dict.fromkeys(planned.case.phase for planned in job.cases))
        too_large = sum(bool(work.skip(planned, [])) for planned in job.cases)
        note = f"{too_large} larger than this machine's memory" if too_large else ""
        rows.append((job.name, str(len(job.cases)), phases, estimate.in_words(time.seconds or None), note))
    print_rows(("job", "cases", "phases", "time", "too large"), rows)
    for job in work.jobs:
        for planned in job.cases:
            print(f"{planned.case.key}  {planned.case.label}")
    guessed, untimed = (
        work.repeats * sum(counts) for counts in zip(*((x.guessed, x.untimed) for x in times), strict=True)
    )
    places = _planned_gpus(gpus)
    words = []
    if guessed + untimed < work.total:
        words.append(estimate.in_words(estimate.side_by_side([time.seconds for time in times], places)))
        words[0] += f" ({guessed} of the cases guessed from others of their job)" if guessed else ""
    words += [f"{counted(untimed, 'case')} that no earlier run has timed"] if untimed else []
    on = f" on {places} GPUs" if places > 1 else ""
    print(f"{counted(work.total, 'case')} in {counted(len(work.jobs), 'job')}{on}: {', and '.join(words)}")
    print("ttt-bench: `ttt-bench systems` says, where the run will be, which systems can run", file=sys.stderr)


def _planned_gpus(asked: str | None) -> int:
    """How many GPUs `--gpus` names, which need not be here; those of `all` are this machine's."""
    if asked is None:
        return 1
    return max(1, len(visible_gpus() if asked == "all" else asked.split(",")))


def verify(asked: Asked, *, limits: Limits) -> None:
    """Check without timing; exit status 1 when a case differs from its reference or fails, or all are skipped."""
    work = plan(asked)
    if not work.here:
        raise UserError("--device cuda: no CUDA GPU was found on this machine")
    with tempfile.TemporaryDirectory() as folder:
        file = RunFile("verify", work.jobs, work.catalogue, work.policy.to_dict())
        current = Run.create(Path(folder) / "run", file)
        with Progress("verify", work.total) as progress:
            records = run_jobs(current, work.launches, limits=limits, on_event=progress, skip=work.skip)
    _print_verdicts(records)
    if any(record.status not in ("ok", "skipped") for record in records):
        sys.exit(1)
    if not any(record.status == "ok" for record in records):
        sys.exit("ttt-bench: nothing was verified: every case was skipped, each for the reason in its line")


def summary(records: Sequence[Record]) -> str:
    """`34 ok, 2 skipped`, the most frequent first."""
    counts = Counter(record.status for record in records)
    return ", ".join(f"{count} {status}" for status, count in counts.most_common())


def missing_packages(records: Sequence[Record], unused_file: str = "") -> list[str]:
    """How to have each system that was skipped because a package of it cannot be imported.

    unused_file: a file that names other environments and was not asked for.
    """
    skipped = [record for record in records if record.status == "skipped" and CANNOT_IMPORT in record.reason]
    lacking = {f"{record.case.system}/{record.case.backend}" for record in skipped}
    instead = f"; or, if it is installed, add --systems-file {unused_file}" if unused_file else ""
    wanted = [each for each in ADAPTERS if each.label in lacking]
    return [f"{each.label} was skipped; to install it: {each.install}{instead}" for each in wanted]


def unused_systems_file(asked: Asked) -> str:
    """The file of `make baselines`, where it lies here and is not used: files of a folder are used only if named."""
    return SYSTEMS_FILE if asked.systems_file is None and Path(SYSTEMS_FILE).exists() else ""


def _device(asked: str, found: str) -> tuple[str, bool]:
    """The device to measure, and whether it is here."""
    if asked not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device {asked}: must be auto, cpu or cuda")
    device = found if asked == "auto" else asked
    return device, device == "cpu" or found == "cuda"


def _gpus(asked: str, device: str) -> list[str]:
    """The GPUs of `--gpus all` or `--gpus 0,2`, as CUDA_VISIBLE_DEVICES names them."""
    if device != "cuda":
        raise UserError(f"--gpus {asked}: this run is on the CPU; say --device cuda")
    there = visible_gpus()
    wanted = there if asked == "all" else [name.strip() for name in asked.split(",")]
    for name in wanted:
        if name not in there:
            raise UserError(f"--gpus {asked}: there is no GPU {name!r} to use; there are {', '.join(there) or 'none'}")
        if wanted.count(name) > 1:
            raise UserError(f"--gpus {asked}: names GPU {name} twice")
    return wanted


def open_checkpoint(folder: Path | None) -> Checkpoint | None:
    """The checkpoint of `--checkpoint`, where workers find it; UserError for what is none."""
    if folder is None:
        return None
    try:
        checkpoint = read_checkpoint(folder)
    except (CheckpointError, OSError) as error:
        raise UserError(f"--checkpoint {error}") from None
    offer(checkpoint)
    return checkpoint


def _suites(asked: Asked, device: str, checkpoint: Checkpoint | None) -> tuple[tuple[str, ...], str | None, float]:
    """The suites and the systems that the names stand for, and the seconds of sampling a case."""
    words = asked.suites or (default_suite(device),)
    found = [(word, find_group(word)) for word in words]
    groups = [group for _, group in found if group]
    names = [name for word, group in found for name in (group.suites if group else (word,))]
    only = groups[0] if len(words) == len(groups) == 1 else None
    systems = asked.systems
    if only and only.systems and systems is None:
        whole = [label for label in only.systems if not checkpoint or label.startswith(f"{checkpoint.system}/")]
        systems = ",".join(whole)
    budget_s = asked.budget_s or (only.budget_s if only else None) or BUDGETS_S[device]
    return tuple(dict.fromkeys(names)), systems, budget_s


def _added(cases: Sequence[tuple[Suite, Sequence[Planned]]], selection: Selection, device: str) -> str:
    """One sentence where sizes, batches or contexts of the command line make cases that a suite does not have."""
    whole = replace(selection, sizes=(), batches=(), contexts=(), options={})
    words = []
    for suite, planned in cases:
        own = {each.case.key for each in suite_cases(suite, whole, device)}
        count = sum(each.case.key not in own for each in planned)
        words += [f"{count} of {len(planned)} cases of {suite.name}"] if count else []
    if not words:
        return ""
    given = {"--sizes": selection.sizes, "--batch": selection.batches, "--context": selection.contexts}
    given |= {f"--{name.replace('_', '-')}": values for name, values in selection.options.items()}
    replacing = " and ".join(option for option, values in given.items() if values)
    return f"{', '.join(words)} are not the suite's own: {replacing} in place of the axes of its panels"


def _refuse_without_gpu(suite: Suite, device: str) -> None:
    if suite.device == "cuda" and device != "cuda":
        anywhere = ", ".join(s.name for s in SUITES if not s.device)
        raise UserError(
            f"suite {suite.name}: needs a CUDA GPU and there is none to use; "
            f"--device cuda --dry-run plans it, and without one there are {anywhere} to run"
        )


def _refuse_another_kind(current: Run, repeats: int) -> None:
    if current.mode != "measure":
        raise UserError(f"{current.folder}: is a run of mode {current.mode!r}, not 'measure'; name another folder")
    if current.file.repeats != repeats:
        raise UserError(
            f"{current.folder}: has {current.file.repeats} repeats a case, not {repeats}; "
            f"name another folder or say --repeats {current.file.repeats}"
        )


def request_of(arguments: Sequence[str], work: Plan) -> Request:
    """This call of the program, as a run keeps it."""
    machine = work.machine
    constant = {name: machine.get(name) for name in ("device", "device_kind", "gpu", "cpu", "software")}
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return Request(at, tuple(_without_folder(arguments)), machine["commit"], machine["dirty"], constant)


def _without_folder(arguments: Sequence[str]) -> list[str]:
    """The arguments with the name of a checkpoint's folder in place of its path: a run is published."""
    kept = []
    for before, word in zip(("", *arguments), arguments, strict=False):
        option, equals, path = word.partition("=")
        if before == "--checkpoint":
            word = Path(word).resolve().name
        elif option == "--checkpoint" and equals:
            word = f"{option}={Path(path).resolve().name}"
        kept.append(word)
    return kept


def _print_verdicts(records: Sequence[Record]) -> None:
    """A line for each case, and how many came out how."""
    for record in records:
        unchecked = (record.gate or {}).get("unchecked", "")
        words = "; ".join(filter(None, (_checked(record), unchecked)))
        print(f"{record.status:<7} {record.case.label}{': ' + words if words else ''}")
    print(f"{counted(len(records), 'case')}: {summary(records)}" if records else "no cases")


def _checked(record: Record) -> str:
    """How near a case that passed came to its limits; of another, which checks it missed, or why it has none."""
    checks = (record.gate or {}).get("checks", [])
    missed = [check for check in checks if not check["passed"]]
    if missed:
        words = [f"{each['name']} {_distance(each['value'])} (limit {_distance(each['limit'])})" for each in missed]
        return f"{len(missed)} of {counted(len(checks), 'check')} missed: {', '.join(words)}"
    if not checks or record.status != "ok":
        return record.reason
    said = f"{counted(len(checks), 'check')} passed"
    distances = [each for each in checks if each["limit"] and each["limit"] < 1]  # others count, or are for information
    if not distances:
        return said
    worst = max(distances, key=lambda each: each["value"] / each["limit"])
    near = f"{worst['name']} {_distance(worst['value'])} of {_distance(worst['limit'])}"
    return f"{said}, {'the worst ' if len(checks) > 1 else ''}{near}"


def _distance(value: float | None) -> str:
    """Two digits of a check's number; a record writes one that is not finite as None."""
    return "not finite" if value is None else f"{value:.2g}"
