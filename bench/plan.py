"""From a request to the jobs of a run: every case once, in the job of its system and backend.

Planning imports no system and needs no GPU, so it works on a login node.
"""

import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

from bench.catalogue import catalogue
from bench.catalogue.metrics import OPTION_DEFAULTS
from bench.catalogue.suites import (
    BUDGETS_S,
    SUITES,
    Panel,
    Suite,
    default_suite,
    find_group,
    find_suite,
    refuse_mistakes,
)
from bench.catalogue.systems import ADAPTERS, LAUNCH_BOUND_TOKENS, Adapter
from bench.environments import SYSTEMS_FILE, failed_install, launches, systems_of_file
from bench.errors import UserError
from bench.memory import beyond_memory_of, refuse_beyond_memory, total_memory_bytes
from bench.models.case_model import Checkpoint, checkpoint_missing, offer, read_checkpoint
from bench.models.config import CheckpointError
from bench.request import RunRequest
from bench.selection import Selection, select
from harness.measure.environment import snapshot
from harness.schema.case import Case, Device, Scalar
from harness.schema.catalogue import Catalogue, SuiteEntry
from harness.schema.policy import Policy
from harness.schema.record import Record
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned
from harness.workers.process import Launch
from tk_kernels.build import hidden


@dataclass(frozen=True)
class Plan:
    """What a command will do, and on what. machine: this one, of the device where it has it."""

    request: RunRequest
    device: Device
    machine: dict[str, Any]
    jobs: tuple[Job, ...]
    catalogue: Catalogue
    added: str = ""  # which cases the suites do not have, in a sentence

    @property
    def here(self) -> bool:
        """Whether this machine has the device."""
        return self.machine["device_kind"] == self.device

    def refuse_elsewhere(self) -> None:
        """UserError where this machine does not have the device."""
        if not self.here:
            raise UserError(
                "--device cuda: no CUDA GPU was found on this machine; `ttt-bench run SUITE --device cuda --dry-run` "
                "plans what another machine is to measure"
            )

    @cached_property
    def launches(self) -> dict[tuple[str, str], Launch]:
        """How the workers of all systems start."""
        return launches(device=self.device)

    @cached_property
    def policy(self) -> Policy:
        """When sampling ends. All rounds share the budget, the highest of the suites'."""
        names = {suite.name for suite in self.catalogue.suites}
        own = (suite.budget_s or BUDGETS_S[self.device] for suite in SUITES if suite.name in names)
        budget_s = self.request.budget_s or max(own, default=BUDGETS_S[self.device])
        return Policy(budget_s=budget_s / self.request.rounds)

    @property
    def notes(self) -> list[str]:
        """What a user must know before the cases run, each in a sentence."""
        return [*([self.added] if self.added else []), *self.notes_on_systems]

    @property
    def notes_on_systems(self) -> list[str]:
        """What the current folder's systems.toml says of the systems of the plan, each in a sentence."""
        named = set(systems_of_file())
        own = [each for job in self.jobs if (each := "/".join(job.pair)) in named]
        used = f"{SYSTEMS_FILE} of this folder says how to start {', '.join(own)}" if own else ""
        missing: dict[str, list[str]] = {}
        failed: dict[str, list[str]] = {}
        for job in self.jobs:
            program, label = self.launches[job.pair].command[0], "/".join(job.pair)
            if why := self.failed_install(job.pair):
                failed.setdefault(why, []).append(label)
            elif os.sep in program and not os.path.exists(program):
                missing.setdefault(program, []).append(label)
        said = [f"{program}, which is to run {', '.join(names)}, does not exist" for program, names in missing.items()]
        not_there = f"{'; '.join(said)}: `make baselines` makes the environments" if said else ""
        left_out = [f"no {', '.join(names)}: {why}" for why, names in failed.items()]
        return [each for each in (used, not_there, *left_out) if each]

    def failed_install(self, pair: tuple[str, str]) -> str:
        """Why the environment of a (system, backend) is not there; "" where it is."""
        return failed_install(self.launches[pair])

    def skip(self, planned: Planned, earlier: Sequence[Record]) -> str:
        """Why a case need not be tried."""
        if why := self.failed_install((planned.case.system, planned.case.backend)):
            return why
        return skip_reason(planned, earlier, total_memory_bytes(self.machine) if self.here else None)

    @cached_property
    def keys(self) -> frozenset[str]:
        """Those of the cases that are asked for."""
        return frozenset(planned.case.key for job in self.jobs for planned in job.cases)

    def asked_of(self, jobs: Iterable[Job]) -> list[Job]:
        """What of a run's jobs is asked for: it may have more cases, of earlier calls."""
        return with_keys(jobs, self.keys)

    @property
    def total(self) -> int:
        """How many cases."""
        return sum(len(job.cases) for job in self.jobs)


def plan(request: RunRequest, of_run: Run | None = None) -> Plan:
    """The jobs of the request, or UserError with the mistake in one sentence.

    of_run: a run that goes on: a request that names no cases asks for all of its own.
    """
    refuse_mistakes(SUITES)
    machine = snapshot()
    wanted = of_run.file.device if of_run and request.device == "auto" else request.device
    device: Device = machine["device_kind"] if wanted == "auto" else wanted  # type: ignore[assignment]
    if device == "cpu" and machine["device_kind"] != device:
        machine = snapshot(device)  # a run on the CPU of a machine with a GPU is one of its CPU
    checkpoint = open_checkpoint(request.checkpoint)
    if of_run and request.is_bare:
        for job in of_run.jobs:
            if job.pair not in launches():
                raise UserError(
                    f"{of_run.folder}: was made by a version that had {'/'.join(job.pair)}, which cannot be resumed; "
                    "say by --systems what is to go on"
                )
        return Plan(request, device, machine, of_run.jobs, of_run.catalogue)
    selection = select(request, device, checkpoint)
    cases = []
    for name, systems in _suites(request, device, checkpoint, machine).items():
        own = select(request.model_copy(update={"systems": systems}), device, checkpoint)
        cases.append((suite := find_suite(name), suite_cases(suite, own, device)))
    for suite, _ in cases:
        _refuse_without_gpu(suite, device, request.suites or (suite.name,))
    everything = [each for _, planned in cases for each in planned]
    if not everything:
        _refuse_nothing(request, [suite for suite, _ in cases])
    work = Plan(
        request,
        device,
        machine,
        jobs_of(everything),
        catalogue(tuple(suite_entry(suite, planned, machine) for suite, planned in cases if planned)),
        _added(cases, selection, device),
    )
    if (selection.batches or selection.contexts) and work.here:
        refuse_beyond_memory((each.case for each in everything), machine)
    return work


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


def runnable(labels: Sequence[str], machine: Mapping[str, Any]) -> tuple[str, ...]:
    """Headline systems with the forward kernels that the machine's GPU runs: Triton's where those for Hopper cannot."""
    capability = (machine["gpu"] or {}).get("compute_capability")
    if not hidden() and capability in (None, "9.0"):
        return tuple(labels)
    return tuple(label.replace("/thunderkittens", "/triton") for label in labels)


def _suites(
    request: RunRequest, device: str, checkpoint: Checkpoint | None, machine: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    """The suites that the names stand for, each with its systems: those asked for, or else of the group that has it.

    Empty for all, also where a suite is named beside its group.
    """
    found: dict[str, tuple[str, ...]] = {}
    for word in request.suites or (default_suite(device),):
        group, systems = find_group(word), request.systems
        if group and not systems:
            own = f"{checkpoint.system}/" if checkpoint else ""
            systems = tuple(label for label in runnable(group.systems, machine) if label.startswith(own))
        for name in group.suites if group else (word,):
            found[name] = systems if found.get(name, systems) else ()
    return found


def _added(cases: Sequence[tuple[Suite, Sequence[Planned]]], selection: Selection, device: str) -> str:
    """One sentence where batches or contexts of the command line make cases that a suite does not have."""
    whole = replace(selection, batches=(), contexts=(), checkpoint=None)
    words = []
    for suite, planned in cases:
        own = {each.case.key for each in suite_cases(suite, whole, device)}
        count = sum(each.case.key not in own for each in planned)
        words += [f"{count} of {len(planned)} cases of {suite.name}"] if count else []
    if not words:
        return ""
    given = {"--batch": selection.batches, "--context": selection.contexts}
    options = ["--checkpoint"] if selection.checkpoint else [option for option, values in given.items() if values]
    changed = f"{' and '.join(options)} {'change' if len(options) > 1 else 'changes'} {', '.join(words)}"
    return f"{changed}: a run of the plain suite does not have them"


def _refuse_nothing(request: RunRequest, suites: Sequence[Suite]) -> None:
    whose = f"suite {suites[0].name}: none of its" if len(suites) == 1 else "none of the suites'"
    given = {
        "--systems": ",".join(request.systems),
        "--phase": ",".join(request.phase),
        "--checkpoint": request.checkpoint.name if request.checkpoint else "",
    }
    by = " ".join(f"{option} {value}" for option, value in given.items() if value)
    raise UserError(f"{whose} cases is left by {by}")


def _refuse_without_gpu(suite: Suite, device: str, typed: Sequence[str]) -> None:
    if suite.device == "cuda" and device != "cuda":
        anywhere = ", ".join(s.name for s in SUITES if not s.device)
        raise UserError(
            f"suite {suite.name}: needs a CUDA GPU and there is none to use; what runs without one is {anywhere}, "
            f"and `ttt-bench run {' '.join(typed)} --device cuda --dry-run` plans it"
        )


def suite_cases(suite: Suite, selection: Selection, device: str) -> list[Planned]:
    """Every case of the suite under the selection, smaller ones first within a system, without repetition."""
    found = (
        Planned(case, suite.min_samples, panel.grows)
        for panel in suite.panels
        for adapter in selection.adapters
        if panel.phase in (selection.phases or (panel.phase,)) and _is_in(adapter, panel)
        if not (panel.scope == "layer" and selection.checkpoint)
        for case in _panel_cases(panel, adapter, selection, device)
    )
    return list({planned.case.key: planned for planned in found}.values())


def jobs_of(planned: Iterable[Planned]) -> tuple[Job, ...]:
    """The jobs of cases, headline systems first; a case that several suites need is planned once."""
    merged: dict[str, Planned] = {}
    for each in planned:
        merged[each.case.key] = merged.get(each.case.key, each).merged(each)
    groups: dict[tuple[str, str], list[Planned]] = {}
    for each in merged.values():
        groups.setdefault((each.case.system, each.case.backend), []).append(each)
    order = {(adapter.system, adapter.backend): place for place, adapter in enumerate(ADAPTERS)}
    return tuple(
        Job(*pair, tuple(_engine_order(groups[pair]))) for pair in sorted(groups, key=lambda pair: order.get(pair, inf))
    )


def with_keys(jobs: Iterable[Job], keys: Container[str]) -> list[Job]:
    """The jobs with those of their cases that have one of these keys; jobs that have none are left out."""
    found = [replace(job, cases=tuple(each for each in job.cases if each.case.key in keys)) for job in jobs]
    return [job for job in found if job.cases]


def suite_entry(suite: Suite, planned: Sequence[Planned], machine: Mapping[str, Any]) -> SuiteEntry:
    """A suite as a run on this machine carries it."""
    figures = tuple(replace(figure, primary=runnable(figure.primary, machine)) for figure in suite.figures)
    return SuiteEntry(suite.name, suite.question, figures, tuple(each.case.key for each in planned))


def timing_of(adapter: Adapter, panel: Panel, batch: int, context: int, device: str) -> str:
    """How a case is timed: by the engine; in a graph where its launches would take longer than its work; or eagerly."""
    if adapter.engine:
        return "engine"
    if device != "cuda":
        return "eager"
    if panel.timing:
        return panel.timing
    launch_bound = panel.phase == "forward" and panel.scope == "model" and batch * context <= LAUNCH_BOUND_TOKENS
    return "graph" if panel.phase == "generate" or (adapter.replays and launch_bound) else "eager"


def beyond_memory(planned: Planned, earlier: Iterable[Record]) -> str:
    """Why a case that grows until memory ends need not be tried: the smaller one that did not fit, or took too long."""
    if not planned.grows:
        return ""
    for record in earlier:
        axis = _smaller_axis(record.case, planned.case)
        if not axis:
            continue
        size = f"{axis} {getattr(record.case, axis)}"
        if record.status in ("oom", "timeout"):
            return f"{size} {'did not fit' if record.status == 'oom' else 'took longer than a case may'}"
        at_once = record.metrics.get("sequences_at_once") or record.case.batch
        if axis == "batch" and at_once < record.case.batch:
            return f"of {size} only {at_once} sequences fitted at once, and were measured"
    return ""


def _smaller_axis(smaller: Case, case: Case) -> str:
    """The axis, batch or context, in which alone one case is smaller than another; "" where they differ otherwise.

    A larger one may be timed in another way, and is the same work.
    """
    for axis in ("batch", "context"):
        if getattr(smaller, axis) < getattr(case, axis):
            others = (name for name in Case.__dataclass_fields__ if name not in (axis, "timing"))
            return axis if all(getattr(smaller, name) == getattr(case, name) for name in others) else ""
    return ""


def skip_reason(planned: Planned, earlier: Sequence[Record], memory_bytes: int | None) -> str:
    """Why a case need not be tried on a device of so much memory, if that is known; "" where it must.

    A model that grows until memory ends is, as the first: that it did not fit is what its figure shows.
    """
    if missing := checkpoint_missing(planned.case):
        return missing
    skipped = any(each.status == "skipped" and _smaller_axis(each.case, planned.case) for each in earlier)
    shows_end = planned.grows and planned.case.option("scope", "model") == "model" and not skipped
    too_large = beyond_memory_of(planned.case, memory_bytes) if memory_bytes and not shows_end else ""
    return beyond_memory(planned, earlier) or too_large


def _is_in(adapter: Adapter, panel: Panel) -> bool:
    named = adapter.system in panel.systems and (not panel.backends or adapter.backend in panel.backends)
    return named and panel.scope in adapter.scopes and panel.phase in adapter.phases


def _panel_cases(panel: Panel, adapter: Adapter, selection: Selection, device: str) -> Iterator[Case]:
    dtype = panel.dtype or ("bfloat16" if device == "cuda" else "float32")
    # Settings that start an engine anew vary slowest.
    for size, options, state_dtype, context, batch in product(
        selection.sizes_of(panel),
        _combinations(selection.options_of(panel)),
        panel.state_dtypes or (adapter.state_dtype or dtype,),
        sorted(selection.contexts or panel.contexts),
        sorted(selection.batches or panel.batches),
    ):
        yield Case(
            system=adapter.system,
            backend=adapter.backend,
            size=size,
            phase=panel.phase,
            batch=batch,
            context=context,
            dtype=dtype,
            state_dtype=state_dtype,
            timing=timing_of(adapter, panel, batch, context, device),
            l2=panel.l2,
            options=options,
        )


def _combinations(axes: Mapping[str, Sequence[Scalar]]) -> list[tuple[tuple[str, Scalar], ...]]:
    """Every combination of options, those at their default left out."""
    names = sorted(axes)
    pairs = [tuple(zip(names, values, strict=True)) for values in product(*(axes[name] for name in names))]
    return [tuple((name, value) for name, value in each if OPTION_DEFAULTS.get(name) != value) for each in pairs]


def _engine_order(cases: list[Planned]) -> list[Planned]:
    """Cases of one model together and, of an engine, those of one phase: each change of either costs a start."""
    engine = any(each.case.timing == "engine" for each in cases)
    groups: dict[tuple, list[Planned]] = {}
    for each in cases:
        case = each.case
        phase = case.phase if engine else ""
        groups.setdefault((case.size, case.dtype, case.state_dtype, case.options, phase), []).append(each)
    return [each for group in groups.values() for each in group]
