"""From what was asked for to the jobs of a run: every case once, in the job of its system and backend.

Planning imports no system and asks no GPU, so it works on a login node.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf

from bench.catalogue.metrics import OPTION_DEFAULTS
from bench.catalogue.suites import TTT, Panel, Suite
from bench.catalogue.systems import ADAPTERS, LAUNCH_BOUND_TOKENS, Adapter
from bench.memory import beyond_memory_of
from bench.models.case_model import checkpoint_missing
from harness.schema.case import Case, Scalar
from harness.schema.catalogue import SuiteEntry
from harness.schema.record import Record
from harness.schema.run_file import Job, Planned


@dataclass(frozen=True)
class Selection:
    """What the command line asks for; an empty axis leaves the suite's own.

    Of a checkpoint whole models run: what a layer of a suite works on is drawn at random.
    """

    adapters: tuple[Adapter, ...]
    sizes: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    options: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)  # of the TTT systems
    phases: tuple[str, ...] = ()

    @property
    def narrows_axes(self) -> bool:
        """Whether a size of the work comes from the user and not from the suite."""
        return bool(self.sizes or self.batches or self.contexts)

    def options_of(self, panel: Panel, adapter: Adapter) -> dict[str, tuple[Scalar, ...]]:
        """The options of a panel's cases, each with its values; mini-batch, backbone and checkpoint are TTT's alone."""
        own: dict[str, tuple[Scalar, ...]] = {**panel.options, "scope": (panel.scope,)}
        return {**own, **self.options} if adapter.system in TTT else own


def suite_cases(suite: Suite, selection: Selection, device: str) -> list[Planned]:
    """Every case of the suite under the selection, smaller ones first within a system, without repetition."""
    found = (
        Planned(case, suite.min_samples, panel.grows)
        for panel in suite.panels
        for adapter in selection.adapters
        if panel.phase in (selection.phases or (panel.phase,)) and _is_in(adapter, panel)
        if not (panel.scope == "layer" and "checkpoint" in selection.options)
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


def suite_entry(suite: Suite, planned: Sequence[Planned]) -> SuiteEntry:
    """A suite as its run carries it."""
    return SuiteEntry(suite.name, suite.question, suite.figures, tuple(each.case.key for each in planned))


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
        selection.sizes or panel.sizes,
        _combinations(selection.options_of(panel, adapter)),
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
