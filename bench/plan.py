"""Plan a run: turn a request into jobs. Planning imports no system and needs no GPU."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from bench.cases import adapters_of, ordered_jobs, suite_cases, with_keys
from bench.catalogue import CATALOGUE
from bench.catalogue.suites import BUDGETS_S, DEFAULT_SUITES, GROUPS, SUITES, Suite, find_suite
from bench.environments import launch_notes, no_interpreter, worker_launches
from bench.errors import UserError
from bench.memory import skip_reason, total_memory_bytes
from bench.models.case_model import Checkpoint, register_checkpoint
from bench.request import LISTS, RunRequest, option_of, split_list
from harness.measure.environment import snapshot
from harness.measure.nvml import open_gpu, visible_gpus
from harness.schema.case import Device
from harness.schema.catalogue import Catalogue, SuiteEntry
from harness.schema.policy import Policy
from harness.schema.record import Record
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned
from harness.workers import slurm
from harness.workers.process import Launch
from tk_kernels.build import PORTABLE, hidden


@dataclass(frozen=True)
class Plan:
    """The jobs that a request selects, and the device to run them on.

    device: the device to measure. machine: a snapshot of this machine, which need not have that device.
    """

    request: RunRequest
    device: Device
    machine: dict[str, Any]
    jobs: tuple[Job, ...]
    catalogue: Catalogue

    @property
    def has_device(self) -> bool:
        return self.machine["device_kind"] == self.device

    def require_device(self) -> None:
        """Raise UserError if this machine lacks the device to measure."""
        if not self.has_device:
            raise UserError(
                "--device cuda: no CUDA GPU was found on this machine; `ttt-bench run SUITE --device cuda --dry-run` "
                "plans a run for another machine"
            )

    @cached_property
    def worker_launches(self) -> dict[tuple[str, str], Launch]:
        return worker_launches(device=self.device)

    @cached_property
    def policy(self) -> Policy:
        """The rule that ends the sampling of a case; the rounds of `ab` share the time budget."""
        names = {suite.name for suite in self.catalogue.suites}
        own = (suite.budget_s or BUDGETS_S[self.device] for suite in SUITES if suite.name in names)
        budget_s = self.request.budget_s or max(own, default=BUDGETS_S[self.device])
        return Policy(budget_s=budget_s / self.request.rounds)

    @property
    def notes(self) -> list[str]:
        """Notes on workers that systems.toml configures, that a .venv-NAME runs, or that lack an interpreter."""
        planned = {"/".join(job.pair): self.worker_launches[job.pair] for job in self.jobs}
        found = ((label, no_interpreter(launch), launch.command[0]) for label, launch in planned.items())
        return [*launch_notes(planned), *(f"no {label}: {why} ({program})" for label, why, program in found if why)]

    def skip(self, planned: Planned, earlier: Sequence[Record]) -> str:
        """Return why to skip a case, or "" to run it. earlier: the records of its job so far."""
        launch = self.worker_launches[planned.case.system, planned.case.backend]
        memory_bytes = total_memory_bytes(self.machine) if self.has_device else None
        return no_interpreter(launch) or skip_reason(planned, earlier, memory_bytes)

    @cached_property
    def keys(self) -> frozenset[str]:
        return frozenset(planned.case.key for job in self.jobs for planned in job.cases)

    def gpus(self, *, must_exist: bool = True) -> list[str]:
        """Return the GPUs of --gpus, as entries of CUDA_VISIBLE_DEVICES; [] without the option.

        must_exist: whether this machine must have them. Raises UserError for a missing GPU or a run on the CPU.
        """
        if (option := self.request.gpus) is None:
            return []
        if self.device != "cuda":
            raise UserError(f"--gpus {option}: this run is on the CPU; add --device cuda")
        there = visible_gpus()
        wanted = there if option == "all" else list(split_list("--gpus", option))
        for name in wanted:
            if must_exist and name not in there:
                raise UserError(f"--gpus {option}: GPU {name!r} was not found; this machine has {', '.join(there)}")
        return wanted


def plan(request: RunRequest, before: Run | None = None) -> Plan:
    """Turn a request into jobs; register its checkpoint, if any. UserError for a wrong request.

    before: the run that the request continues. Without suites, the request selects among this run's cases.
    """
    refuse_unknown_architecture()
    if request.budget_s and request.budget_s / request.rounds >= request.time_limit_s:
        raise UserError(f"--budget {request.budget_s:g}: must end before --time-limit {request.time_limit_s:g}")
    machine = snapshot(visible=request.gpus if open_gpu(request.gpus) else None)  # the first GPU of --gpus
    default = before.file.device if before else machine["device_kind"]
    if request.slurm is not None and slurm.parsed(request.slurm).gpu:
        default = "cuda"
    device: Device = default if request.device == "auto" else request.device
    if device == "cpu" and machine["device_kind"] != device:
        machine = snapshot(device)
    checkpoint = register_checkpoint(request.checkpoint) if request.checkpoint else None
    adapters_of(request.systems, device, checkpoint)  # reports a wrong name before a missing GPU
    if before and not request.suites:
        known, jobs = worker_launches(), _selected(before, request)
        if lost := ", ".join("/".join(job.pair) for job in jobs if job.pair not in known):
            raise UserError(f"{before.folder}: this version lacks {lost}; name the systems to continue with --systems")
        return Plan(request, device, machine, jobs, before.catalogue)
    cases: list[tuple[Suite, list[Planned]]] = []
    for name, systems in _suites(request, device, checkpoint, machine).items():
        suite = find_suite(name)
        if suite.device == "cuda" and device != "cuda":
            anywhere = ", ".join(each.name for each in SUITES if not each.device)
            raise UserError(
                f"suite {name}: needs a CUDA GPU, and this run is on the CPU; without a GPU run {anywhere}, "
                f"or plan with `ttt-bench run {' '.join(request.suites or (name,))} --device cuda --dry-run`"
            )
        own = request.model_copy(update={"systems": systems})
        cases.append((suite, suite_cases(suite, own, device, checkpoint)))
    everything = [each for _, planned in cases for each in planned]
    if not everything:
        raise UserError(f"{' '.join(request.arguments())}: no case matches; drop an option or name another suite")
    entries = tuple(suite_entry(suite, planned, machine) for suite, planned in cases if planned)
    return Plan(request, device, machine, ordered_jobs(everything), replace(CATALOGUE, suites=entries))


def _selected(before: Run, request: RunRequest) -> tuple[Job, ...]:
    """Return the run's jobs with the cases that the request's lists select; UserError if a value selects none."""
    left = [planned.case for job in before.jobs for planned in job.cases]
    for name in filter(partial(getattr, request), LISTS):
        wanted = set(getattr(request, name))
        values = {each: {each.system, each.system_backend, getattr(each, name, None)} for each in left}
        if other := wanted.difference(*values.values()):
            raise UserError(f"{option_of(name)} {min(other)}: {before.folder} has no such case; name a suite to add it")
        left = [each for each in left if wanted & values[each]]
    return tuple(with_keys(before.jobs, {each.key for each in left}))


def refuse_unknown_architecture() -> None:
    """Raise UserError if TTT_BENCH_ARCH has an unknown value, which would hide the Hopper kernels."""
    if os.environ.get("TTT_BENCH_ARCH", "") not in ("", PORTABLE):
        raise UserError(hidden())


def runnable(labels: Sequence[str], machine: Mapping[str, Any]) -> tuple[str, ...]:
    """Replace /thunderkittens with /triton on non-Hopper GPUs, or if TTT_BENCH_ARCH is set."""
    capability = (machine["gpu"] or {}).get("compute_capability")
    if not hidden() and capability in (None, "9.0"):
        return tuple(labels)
    return tuple(label.replace("/thunderkittens", "/triton") for label in labels)


def _suites(
    request: RunRequest, device: str, checkpoint: Checkpoint | None, machine: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    wanted = request.systems or ((checkpoint.system,) if checkpoint else ())
    found: dict[str, tuple[str, ...]] = {}
    for word in request.suites or (DEFAULT_SUITES[device],):
        group = GROUPS.get(word)
        own = runnable(group.systems, machine) if group else ()
        # In a group, a system without a backend means the group's backends of it, if there are any.
        systems = tuple(
            label for name in wanted for label in [each for each in own if each.startswith(f"{name}/")] or [name]
        )
        systems = systems or own  # () for all
        for name in group.suites if group else (word,):
            earlier = found.get(name, systems)
            found[name] = tuple(dict.fromkeys(earlier + systems)) if earlier and systems else ()
    return found


def suite_entry(suite: Suite, planned: Sequence[Planned], machine: Mapping[str, Any]) -> SuiteEntry:
    """Return a suite's entry in run.json, with its figures' backends replaced by `runnable`."""
    figures = tuple(replace(figure, primary=runnable(figure.primary, machine)) for figure in suite.figures)
    return SuiteEntry(suite.name, suite.question, figures, tuple(each.case.key for each in planned))
