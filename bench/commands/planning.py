"""What a command that measures or profiles will do: its jobs, on what machine, into which run."""

import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

from bench.catalogue import catalogue
from bench.catalogue.suites import BUDGETS_S, SUITES, Suite, default_suite, find_group, find_suite, refuse_mistakes
from bench.environments import launches
from bench.errors import UserError
from bench.memory import refuse_beyond_memory, total_memory_bytes
from bench.models.case_model import Checkpoint, offer, read_checkpoint
from bench.models.config import CheckpointError
from bench.plan import Selection, jobs_of, skip_reason, suite_cases, suite_entry, with_keys
from bench.selection import Asked, select
from harness.measure.environment import device_id_of, snapshot
from harness.measure.nvml import visible_gpus
from harness.quality import disturbed
from harness.schema.case import Device
from harness.schema.catalogue import Catalogue
from harness.schema.claims import clear
from harness.schema.policy import Policy
from harness.schema.record import Record
from harness.schema.run import Run
from harness.schema.run_file import MOST_SAMPLES, Job, Planned, Request, RunFile
from harness.workers.attempt import Retry, not_ok, nothing
from harness.workers.pool import gpu_places
from harness.workers.process import Launch, Place
from harness.workers.task import refuse_submitted

ToRetry = Literal["lost", "failed", "marked"]  # what `--retry` says

LONGEST_BUDGET_S = 86_400.0  # of a case
_GPU = re.compile(r"0|[1-9][0-9]*|(GPU|MIG)-.+")  # as CUDA_VISIBLE_DEVICES names one: by its number or its UUID


@dataclass(frozen=True)
class Plan:
    """What a command will do, and on what."""

    device: Device
    here: bool  # whether this machine has the device
    jobs: tuple[Job, ...]
    catalogue: Catalogue
    launches: dict[tuple[str, str], Launch]
    memory_bytes: int | None  # None where the machine that will run it is another one
    repeats: int
    policy: Policy
    machine: dict
    added: str  # which cases the suites do not have, in a sentence; "" where there are none
    min_samples: int | None = None  # what was asked for in place of the suites' own
    budget_s: float | None = None  # the same in place of the device's

    def refuse_elsewhere(self) -> None:
        """UserError where this machine does not have the device."""
        if not self.here:
            raise UserError(
                "--device cuda: no CUDA GPU was found on this machine; `ttt-bench run SUITE --device cuda --dry-run` "
                "plans what another machine is to measure"
            )

    @property
    def not_there(self) -> str:
        """Which interpreters of the systems.toml do not exist, in a sentence; "" where all do."""
        missing: dict[str, list[str]] = {}
        for job in self.jobs:
            program = self.launches[job.pair].command[0]
            if os.sep in program and not os.path.exists(program):
                missing.setdefault(program, []).append("/".join(job.pair))
        said = [f"{program}, which is to run {', '.join(names)}, does not exist" for program, names in missing.items()]
        return f"{'; '.join(said)}: `make baselines` makes the environments" if said else ""

    def skip(self, planned: Planned, earlier: Sequence[Record]) -> str:
        """Why a case need not be tried."""
        return skip_reason(planned, earlier, self.memory_bytes)

    @cached_property
    def keys(self) -> frozenset[str]:
        """Those of the cases that are asked for."""
        return frozenset(planned.case.key for job in self.jobs for planned in job.cases)

    def asked_of(self, jobs: Iterable[Job]) -> list[Job]:
        """What of a run's jobs is asked for: it may have more cases, of earlier calls."""
        return with_keys(jobs, self.keys)

    @property
    def total(self) -> int:
        """How many cases, each repeat counted."""
        return self.repeats * sum(len(job.cases) for job in self.jobs)


def plan(asked: Asked) -> Plan:
    """The jobs of the request, or UserError with the mistake in one sentence."""
    refuse_mistakes(SUITES)
    if asked.budget_s is not None and not asked.budget_s <= LONGEST_BUDGET_S:
        raise UserError(f"--budget {asked.budget_s:g}: must be a number of seconds, at most {LONGEST_BUDGET_S:g}")
    if asked.min_samples is not None and asked.min_samples > MOST_SAMPLES:
        raise UserError(f"--min-samples {asked.min_samples}: must be at most {MOST_SAMPLES}")
    machine = snapshot()
    device, here = _device(asked.device, machine["device_kind"])
    if here and device != machine["device_kind"]:
        machine = snapshot(device)  # a run on the CPU of a machine with a GPU is one of its CPU
    checkpoint, selection, cases = _cases_asked(asked, device)
    budget_s = asked.budget_s or BUDGETS_S[device]
    for suite, _ in cases:
        _refuse_without_gpu(suite, device, asked.suites or (suite.name,))
    if not any(planned for _, planned in cases):
        whose = f"suite {cases[0][0].name}: none of its" if len(cases) == 1 else "none of the suites'"
        folder = checkpoint.folder.name if checkpoint else None
        given = {"--systems": asked.systems, "--phase": asked.phase, "--checkpoint": folder}
        by = " ".join(f"{option} {value}" for option, value in given.items() if value is not None)
        raise UserError(f"{whose} cases is left by {by}")
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
        launches(asked.systems_file, device),
        total_memory_bytes(machine) if here else None,
        asked.repeats,
        # The samples of a case are spread over its repeats, and so is the time for them.
        Policy(
            budget_s=budget_s / asked.repeats,
            patience=max(suite.patience for suite, _ in cases),
            settle_max_s=2 * budget_s,  # a short budget shortens warm-up, too
        ),
        machine,
        _added(cases, selection, device, of_checkpoint=checkpoint is not None),
        asked.min_samples,
        asked.budget_s,
    )


def keys_asked(asked: Asked, device: str) -> frozenset[str]:
    """The keys of the cases that a request asks for on a device; UserError where it cannot be planned here."""
    _, _, cases = _cases_asked(asked, device)
    return frozenset(each.case.key for _, planned in cases for each in planned)


def _cases_asked(asked: Asked, device: str) -> tuple[Checkpoint | None, Selection, list[tuple[Suite, list[Planned]]]]:
    """The checkpoint and the selection of a request, and its suites, each with its cases on a device."""
    checkpoint = open_checkpoint(asked.checkpoint)
    suites = _suites(asked, device, checkpoint)
    by_systems = {each: select(replace(asked, systems=each), device, checkpoint) for each in {*suites.values()}}
    cases = []
    for name, systems in suites.items():
        suite = find_suite(name)
        cases.append((suite, suite_cases(suite, by_systems[systems], device)))
    return checkpoint, select(asked, device, checkpoint), cases


def open_run(work: Plan, out: Path, *, resume: bool, arguments: Sequence[str]) -> Run:
    """The new run in `out`, or the one there with what is asked for added; RunError where another has it."""
    request = request_of(arguments, work)
    if not goes_on(work, out, resume):
        if resume:
            print(f"ttt-bench: {out}: no run yet; it begins now", file=sys.stderr)
        file = RunFile("measure", work.device, work.jobs, work.catalogue, work.policy, work.repeats, (request,))
        return Run.create(out, file)
    return extended(work, out, request)


def extended(work: Plan, out: Path, request: Request) -> Run:
    """The run in `out` with what is asked for added; RunError where another has it."""
    with Run.open(out).held():
        current = Run.open(out)  # as it is now that nobody else adds to it
        clear(out)
        current.extend(work.jobs, work.catalogue, request)
    if said := by_another(current):
        print(f"ttt-bench: {said}", file=sys.stderr)
    return current


def by_another(run: Run) -> str:
    """One sentence where the last request of a run is of another commit, tree or GPU than the one before it."""
    if len(run.file.requests) < 2:
        return ""
    before, now = run.file.requests[-2:]
    commits = [
        request.commit and f"{request.commit[:10]}{'-dirty' if request.dirty else ''}" for request in (before, now)
    ]
    gpus = [device_id_of(request.machine) for request in (before, now)]
    pairs = [(kind, *pair) for kind, pair in (("commit", commits), ("GPU", gpus)) if all(pair) and len(set(pair)) > 1]
    others = " and ".join(f"{kind} {old} by {kind} {new}" for kind, old, new in pairs)
    return f"goes on with a run of {others}" if others else ""


def goes_on(work: Plan, out: Path, resume: bool) -> bool:
    """Whether the work is added to the run in `out`; RunError or UserError where the folder does not do for it."""
    refuse_submitted(out)
    if not (Run.exists(out) and resume):
        Run.refuse_held(out)
        return False
    _refuse_another_kind(Run.open(out), work)
    return True


def request_of(arguments: Sequence[str], work: Plan) -> Request:
    """This call of the program, as a run keeps it."""
    machine = work.machine
    constant = {name: machine.get(name) for name in ("device", "device_kind", "gpu", "cpu", "software")}
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return Request(at, tuple(_published(arguments)), machine["commit"], machine["dirty"], constant)


def retry_of(run: Run, to_retry: ToRetry) -> Retry:
    """Which cases of a run are tried again; of "marked" those that a page marks as disturbed."""
    if to_retry != "marked":
        return not_ok if to_retry == "failed" else nothing
    keys = disturbed(run.records())
    return lambda record: record.case.key in keys


def to_continue(arguments: Sequence[str], out: Path, retry: str = "") -> str:
    """The command that goes on with the run in `out` which these arguments of the program began.

    retry: its `--retry`, in place of theirs.

    Of paths it has what the arguments have: those of a run.json are without their folders (`_published`).
    """
    anew = ("--out", "--retry") if retry else ("--out",)
    kept = [word for word, option, _ in _options_of(arguments) if option not in (*anew, "--resume")]
    return shlex.join(["ttt-bench", *kept, "--resume", "--out", str(out), *(["--retry", retry] if retry else [])])


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


def _device(asked: str, found: Device) -> tuple[Device, bool]:
    """The device to measure, and whether it is here."""
    known: dict[str, Device] = {"auto": found, "cpu": "cpu", "cuda": "cuda"}
    if asked not in known:
        raise UserError(f"--device {asked}: must be auto, cpu or cuda")
    return known[asked], known[asked] == "cpu" or found == "cuda"


def _suites(asked: Asked, device: str, checkpoint: Checkpoint | None) -> dict[str, str | None]:
    """The suites that the names stand for, each with its systems: those asked for, or else of the group that has it.

    None for all, also where a suite is named beside its group.
    """
    found: dict[str, str | None] = {}
    for word in asked.suites or (default_suite(device),):
        group, systems = find_group(word), asked.systems
        if group and group.systems and systems is None:
            systems = ",".join(
                label for label in group.systems if not checkpoint or label.startswith(f"{checkpoint.system}/")
            )
        for name in group.suites if group else (word,):
            found[name] = systems if found.get(name, systems) is not None else None
    return found


def _added(
    cases: Sequence[tuple[Suite, Sequence[Planned]]], selection: Selection, device: str, *, of_checkpoint: bool
) -> str:
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
    options = ["--checkpoint"] if of_checkpoint else [option for option, values in given.items() if values]
    changed = f"{' and '.join(options)} {'change' if len(options) > 1 else 'changes'} {', '.join(words)}"
    return f"{changed}: a run of the plain suite does not have them"


def _refuse_without_gpu(suite: Suite, device: str, typed: Sequence[str]) -> None:
    if suite.device == "cuda" and device != "cuda":
        anywhere = ", ".join(s.name for s in SUITES if not s.device)
        raise UserError(
            f"suite {suite.name}: needs a CUDA GPU and there is none to use; what runs without one is {anywhere}, "
            f"and `ttt-bench run {' '.join(typed)} --device cuda --dry-run` plans it"
        )


def _refuse_another_kind(current: Run, work: Plan) -> None:
    if current.mode != "measure":
        raise UserError(f"{current.folder}: is a run of mode {current.mode!r}, not 'measure'; name another folder")
    refuse_another_device(current, work)
    if current.file.repeats != work.repeats:
        raise UserError(
            f"{current.folder}: has {current.file.repeats} repeats a case, not {work.repeats}; "
            f"name another folder or say --repeats {current.file.repeats}"
        )
    policy = current.file.policy
    if work.budget_s is not None and not math.isclose(policy.budget_s, work.policy.budget_s, rel_tol=1e-4):
        each_s, asked_s = (each.budget_s * work.repeats for each in (policy, work.policy))
        raise UserError(
            f"{current.folder}: samples each case for {each_s:g} s, not {asked_s:g}; "
            f"name another folder or say --budget {each_s:g}"
        )
    known = {planned.case.key: planned.min_samples for job in current.jobs for planned in job.cases}
    for planned in (planned for job in work.jobs for planned in job.cases):
        least = known.get(planned.case.key, planned.min_samples)
        if work.min_samples is not None and least != planned.min_samples:
            raise UserError(
                f"{current.folder}: takes {least} samples of {planned.case.label} at the least, "
                f"not {planned.min_samples}; name another folder or leave out --min-samples"
            )


def refuse_another_device(current: Run, work: Plan) -> None:
    """UserError where a run is of another kind of device, or was asked for on a machine with another GPU or CPU.

    The machine does not count where it only submits what others run.
    """
    if current.jobs and work.device != current.file.device:
        words = f"is a run of {current.file.device} cases, and these are of {work.device}"
        raise UserError(f"{current.folder}: {words}; name another --out")
    before = current.file.requests[-1].machine if current.file.requests else {}
    here = {before.get("device_kind"), work.machine["device_kind"], work.device}
    if len(here) == 1 and before.get("device") != work.machine["device"]:
        raise UserError(
            f"{current.folder}: is of {before.get('device')}, and this machine has {work.machine['device']}; "
            "name another folder"
        )


def _published(arguments: Sequence[str]) -> list[str]:
    """The arguments without what says who ran them and where, as a run is published.

    Of a checkpoint's path its folder's name is kept, of a path to an absolute place what is below the current folder,
    else its name, and of a Slurm account or the nodes' names that there were some.
    """
    return [
        word[:at] + _SAID.get(option, _place)(word[at:]) if word[at:] else word
        for word, option, at in _options_of(arguments)
    ]


def _options_of(arguments: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """(word, the option that it names or is the value of, where in it the value begins) of each word.

    FOLDER after --out or -o, --out=FOLDER and -oFOLDER are of --out.
    """
    for before, word in zip(("", *arguments), arguments, strict=False):
        name, equals, _ = word.partition("=")
        if before == "-o" or before in _VALUED:
            yield word, "--out" if before == "-o" else before, 0
        elif word.startswith("-o"):
            yield word, "--out", 2
        elif word.startswith("-"):
            yield word, name, len(name + equals)
        else:
            yield word, "", 0


def _place(path: str) -> str:
    """A path as it was given, and an absolute one from the current folder, or where it is not below that its name."""
    place = Path(path)
    if not place.is_absolute():
        return path
    here = Path.cwd()
    return str(place.relative_to(here)) if place.is_relative_to(here) else place.name or path


_SAID: Mapping[str, Callable[[str], str]] = {
    "--checkpoint": lambda path: Path(path).resolve().name,
    "--slurm": lambda options: re.sub(
        r"\b(account|comment|exclude|mail-user|nodefile|nodelist|reservation|wckey)=[^,]*", r"\1=...", options
    ),
}
_VALUED = {*_SAID, "--out", "--systems-file", "--retry"}  # whose value may be the next word, of those looked for


def places_asked(gpus: str | None, device: str) -> list[Place]:
    """The places of `--gpus`, a GPU each; none where it is not given."""
    return gpu_places(gpus_asked(gpus, device, here=True))


def gpus_asked(asked: str | None, device: str, *, here: bool) -> list[str]:
    """The GPUs of `--gpus all` or `--gpus 0,2`, as CUDA_VISIBLE_DEVICES names them; none where it is not given.

    here: whether this machine must have them, which it need not to plan for another one; `all` are those it has.
    """
    if asked is None:
        return []
    there = visible_gpus()
    wanted = there if asked == "all" else [name.strip() for name in asked.split(",")]
    for name in wanted:
        if not _GPU.fullmatch(name):
            raise UserError(f"--gpus {asked}: {name!r} is no GPU; say all, or nvidia-smi's numbers, such as 0,1")
        if wanted.count(name) > 1:
            raise UserError(f"--gpus {asked}: names GPU {name} twice")
    if here and not there:
        raise UserError(f"--gpus {asked}: no CUDA GPU was found on this machine; leave --gpus out to use the CPU")
    if device != "cuda":
        raise UserError(f"--gpus {asked}: this run is on the CPU; say --device cuda")
    for name in wanted:
        if here and name not in there:
            raise UserError(f"--gpus {asked}: there is no GPU {name!r} to use; there are {', '.join(there)}")
    return wanted
