"""Expand suites into cases, and group the cases into jobs."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from bench.catalogue import OPTION_DEFAULTS
from bench.catalogue.suites import Panel, Suite
from bench.catalogue.systems import ADAPTERS, LAUNCH_BOUND_TOKENS, Adapter
from bench.errors import UserError, unknown
from bench.models.case_model import Checkpoint
from bench.request import RunRequest
from harness.schema.case import Case, Scalar
from harness.schema.run_file import Job, Planned, jobs_of


def suite_cases(suite: Suite, request: RunRequest, device: str, checkpoint: Checkpoint | None = None) -> list[Planned]:
    """Return the suite's requested cases; within a panel, contexts and batches ascend.

    device: "cpu" or "cuda".
    checkpoint: only its system runs, with its size and options; panels of single layers are left out.
    On a GPU, the backend `torch` runs only if a panel or `request.systems` names it.
    """
    adapters = adapters_of(request.systems, device, checkpoint)
    fast = [each for each in adapters if not each.slow or device == "cpu" or each.label in request.systems]
    found = (
        Planned(case, suite.min_samples, panel.skip_after_oom)
        for panel in suite.panels
        if panel.phase in (request.phase or (panel.phase,)) and not (checkpoint and panel.scope == "layer")
        for adapter in (adapters if panel.backends else fast)
        if adapter.system in panel.systems and (not panel.backends or adapter.backend in panel.backends)
        if panel.scope in adapter.scopes and panel.phase in adapter.phases
        for case in _panel_cases(panel, adapter, request, device, checkpoint)
    )
    return list({planned.case.key: planned for planned in found}.values())


def adapters_of(names: Sequence[str], device: str, checkpoint: Checkpoint | None = None) -> tuple[Adapter, ...]:
    """Return the adapters that `names` select on a device.

    names: each SYSTEM or SYSTEM/BACKEND. () selects the checkpoint's system or, without one, all adapters for `device`.
    device: "cpu" or "cuda". SYSTEM selects the system's adapters for this device, or all of them if there are none.
    Raises UserError for an unknown name or a system other than the checkpoint's.
    """
    if not names and not checkpoint:
        return tuple(adapter for adapter in ADAPTERS if device in adapter.devices)
    named = names or ((checkpoint.system,) if checkpoint else ())
    found = tuple(dict.fromkeys(adapter for name in named for adapter in _named(name, device)))
    for adapter in found:
        if checkpoint and adapter.system != checkpoint.system:
            raise UserError(
                f"--checkpoint {checkpoint.folder.name}: its config.json describes {checkpoint.system}, "
                f"which {adapter.label} of --systems does not run"
            )
    return found


def _named(name: str, device: str) -> list[Adapter]:
    found = [adapter for adapter in ADAPTERS if name in (adapter.system, adapter.label)]
    if not found:
        systems = dict.fromkeys(adapter.system for adapter in ADAPTERS)
        names = [*(adapter.label for adapter in ADAPTERS), *systems]
        raise unknown(f"--systems {name}", name, names, f"{', '.join(systems)}, each also as SYSTEM/BACKEND")
    return [adapter for adapter in found if name == adapter.label or device in adapter.devices] or found


def _panel_cases(
    panel: Panel, adapter: Adapter, request: RunRequest, device: str, checkpoint: Checkpoint | None
) -> Iterator[Case]:
    dtype = panel.dtype or ("bfloat16" if device == "cuda" else "float32")
    options: dict[str, tuple[Scalar, ...]] = {**panel.options, "scope": (panel.scope,)}
    if checkpoint:
        options |= checkpoint.options
    for size, chosen, state_dtype, context, batch in product(
        (checkpoint.size,) if checkpoint else panel.sizes,
        _combinations(options),
        panel.state_dtypes or (adapter.state_dtype or dtype,),
        sorted(request.context or panel.contexts),
        sorted(request.batch or panel.batches),
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
            options=chosen,
        )


def _combinations(axes: Mapping[str, Sequence[Scalar]]) -> list[tuple[tuple[str, Scalar], ...]]:
    names = sorted(axes)
    pairs = [tuple(zip(names, values, strict=True)) for values in product(*(axes[name] for name in names))]
    return [tuple((name, value) for name, value in each if OPTION_DEFAULTS.get(name) != value) for each in pairs]


def timing_of(adapter: Adapter, panel: Panel, batch: int, context: int, device: str) -> str:
    """Return a case's timing: "engine" (times itself), "graph" (CUDA graph replays) or "eager".

    Serving engines always get "engine". On a CPU, other systems get "eager". On a GPU, the panel's `timing` applies if
    it is set. By default, generate gets "graph". So does a whole model's forward of at most LAUNCH_BOUND_TOKENS tokens
    if `adapter.replays` is set. All other cases get "eager".
    """
    if adapter.engine:
        return "engine"
    if device != "cuda":
        return "eager"
    if panel.timing:
        return panel.timing
    launch_bound = panel.phase == "forward" and panel.scope == "model" and batch * context <= LAUNCH_BOUND_TOKENS
    return "graph" if panel.phase == "generate" or (adapter.replays and launch_bound) else "eager"


def ordered_jobs(cases: Iterable[Planned]) -> tuple[Job, ...]:
    """Return one job per system and backend, in catalogue order, with cases grouped by model."""
    order = {(adapter.system, adapter.backend): rank for rank, adapter in enumerate(ADAPTERS)}
    found = sorted(jobs_of(cases), key=lambda job: order[job.pair])
    return tuple(replace(job, cases=tuple(_by_model(job.cases))) for job in found)


def _by_model(cases: Sequence[Planned]) -> list[Planned]:
    groups: dict[tuple, list[Planned]] = {}
    for each in cases:
        case = each.case
        groups.setdefault((case.size, case.dtype, case.state_dtype, case.options), []).append(each)
    return [each for group in groups.values() for each in group]


def with_keys(jobs: Iterable[Job], keys: Container[str]) -> list[Job]:
    """Keep only cases whose key is in `keys`, and only jobs with such cases."""
    found = [replace(job, cases=tuple(each for each in job.cases if each.case.key in keys)) for job in jobs]
    return [job for job in found if job.cases]
