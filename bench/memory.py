"""Reasons to skip a case: memory, a failed smaller case, no checkpoint, an ignored option."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.models.case_model import checkpoint_missing, config_of
from bench.models.config import MODELS, parameter_count
from bench.state_size import state_bytes
from harness.schema.case import Case
from harness.schema.reason import format_number
from harness.schema.record import Record
from harness.schema.run_file import Planned
from tk_kernels.cost import ELEMENT_BYTES


def skip_reason(planned: Planned, earlier: Sequence[Record], memory_bytes: int | None) -> str:
    """Return why the scheduler skips a case, or "" to run it.

    earlier: the job's records so far. memory_bytes: the device's memory; None if unknown.
    A case is skipped if its checkpoint is not registered, or if it sets positions=staggered without effect.
    A case is also skipped if its weights and states exceed `memory_bytes`. With `planned.skip_after_oom`, the smallest
    such case still runs, to show where memory ends; larger cases are skipped (`smaller_too_large`).
    """
    if why := checkpoint_missing(planned.case) or staggered_ignored(planned.case):
        return why
    skipped = any(each.status == "skipped" and _smaller_axis(each.case, planned.case) for each in earlier)
    shows_end = planned.skip_after_oom and not skipped
    too_large = larger_than_memory(planned.case, memory_bytes) if memory_bytes and not shows_end else ""
    return smaller_too_large(planned, earlier) or too_large


def staggered_ignored(case: Case) -> str:
    """Return why a case that sets positions=staggered ignores it; "" for all other cases."""
    steps = case.phase == "generate" and case.timing != "engine" and case.option("scope", "model") == "model"
    if case.option("positions") != "staggered" or (steps and case.system in ("ttt-linear", "ttt-mlp")):
        return ""
    return f"{case.system_backend} ignores positions=staggered; generate steps of whole TTT models outside vLLM do not"


def smaller_too_large(planned: Planned, earlier: Iterable[Record]) -> str:
    """Return a message if `planned.skip_after_oom` and a smaller case was too large, else "".

    Too large: it ran out of memory or time, or is a smaller batch whose sequences did not all fit in the KV cache.
    """
    if not planned.skip_after_oom:
        return ""
    for record in earlier:
        axis = _smaller_axis(record.case, planned.case)
        if not axis:
            continue
        size = f"{axis} {getattr(record.case, axis)}"
        if record.status in ("oom", "timeout"):
            return f"{size} {'did not fit' if record.status == 'oom' else 'exceeded the time limit'}"
        at_once = record.metrics.get("sequences_at_once") or record.case.batch
        if axis == "batch" and at_once < record.case.batch:
            return f"only {at_once} sequences of {size} fit in the KV cache at once"
    return ""


def _smaller_axis(smaller: Case, case: Case) -> str:
    for axis in ("batch", "context"):  # all else must be equal, except `timing`, which depends on them
        size = getattr(case, axis)
        if getattr(smaller, axis) < size and replace(smaller, timing=case.timing, **{axis: size}) == case:
            return axis
    return ""


def larger_than_memory(case: Case, total: int) -> str:
    """Return why a model's weights and states cannot fit into `total` bytes, or "".

    An engine needs memory for only one sequence at a time. Single layers and models not in MODELS give "".
    """
    if case.system not in MODELS or case.option("scope", "model") != "model":
        return ""
    config, form = config_of(case), "primal" if case.backend.endswith("primal") else "dual"
    sequences = 1 if case.timing == "engine" else case.batch
    needed = parameter_count(config) * ELEMENT_BYTES[case.dtype] + sequences * state_bytes(config, case, form)
    if needed <= total:
        return ""
    return f"needs at least {format_number(needed / 1e9)} GB and this machine has {format_number(total / 1e9)} GB"


def total_memory_bytes(machine: Mapping[str, Any]) -> int | None:
    """Return bytes of GPU memory, None if unknown; without a GPU, bytes of this machine's RAM."""
    gpu = machine.get("gpu")
    return gpu["memory_bytes"] if gpu else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
