"""Whether a case can fit on this machine at all: the least that it must hold, against all the memory there is."""

import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from bench.errors import UserError
from bench.kept import ELEMENT_BYTES, kept_bytes, state_element_bytes, window_bytes
from bench.models.case_model import config_of
from bench.models.config import MODELS, TTTConfig, parameter_count
from harness.schema.case import Case
from harness.schema.reason import rounded


def refuse_beyond_memory(cases: Iterable[Case], machine: Mapping[str, Any]) -> None:
    """Raise UserError where the command line asks for a batch and context that no chosen system can hold.

    What fits in one system and not in another is a figure's point: it is tried, and becomes a record.
    """
    total = total_memory_bytes(machine)
    least: dict[tuple[str, int, int], int] = {}
    for case in cases:
        shape = (case.phase, case.batch, case.context)
        least[shape] = min(least.get(shape, least_bytes(case)), least_bytes(case))
    for (phase, batch, context), needed in least.items():
        if total is not None and needed > total:
            raise UserError(f"{phase} with --batch {batch} --context {context}: {_shortage(needed, total)}")


def beyond_memory_of(case: Case, total: int) -> str:
    """Why a case need not be tried on a machine of `total` bytes; "" for what may fit.

    What it must hold is known, but for an engine, which runs as many sequences at once as fit; and a worker that runs
    out of memory costs its start.
    """
    needed = least_bytes(case)
    if case.system in MODELS and case.option("scope", "model") == "model" and case.timing != "engine":
        form = "primal" if case.backend.endswith("primal") else "dual"
        needed += (case.batch - 1) * kept_bytes(config_of(case), case, form)
    return _shortage(needed, total) if needed > total else ""


def _shortage(needed: int, total: int) -> str:
    return f"needs at least {_said_bytes(needed)} and this machine has {_said_bytes(total)}"


def _said_bytes(count: int) -> str:
    return f"{rounded(count / 1e12)} TB" if count > 1e12 else f"{rounded(count / 1e9)} GB"


def sequences_that_fit(config: TTTConfig, state_bytes: float, dtype: str, total: int) -> int:
    """How many sequences a model can generate for at once: of `total` bytes, those that its weights leave.

    state_bytes: what one layer's operator keeps of one sequence; the inputs of its convolutions come on top.
    """
    left = total - parameter_count(config) * ELEMENT_BYTES[dtype]
    return max(0, int(left // (config.layers * state_bytes + window_bytes(config, ELEMENT_BYTES[dtype]))))


def total_memory_bytes(machine: Mapping[str, Any]) -> int | None:
    """The GPU's memory in an environment snapshot, None where it does not tell, or without a GPU the machine's."""
    gpu = machine.get("gpu")
    return gpu["memory_bytes"] if gpu else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def least_bytes(case: Case) -> int:
    """Token ids (8 bytes each), weights, and one sequence's past, as an engine may run few of them at once.

    Of a layer: all that goes in and comes out.
    """
    ids = 8 * case.batch * (case.context if case.phase != "generate" else 1)
    if case.system not in MODELS:  # others size themselves
        return ids
    config = config_of(case)
    if case.option("scope", "model") == "layer":
        return _layer_bytes(config, case)
    weights = parameter_count(config) * ELEMENT_BYTES[case.dtype]
    return ids + weights + kept_bytes(config, case)


def _layer_bytes(config: Any, case: Case) -> int:
    """generate: the state of every sequence. forward: besides q, k, v, out and lr, and the state before and after."""
    cost = import_module(f"tk_kernels.ttt_{config.learner}.cost")
    shape = (config.heads, config.head_dim)
    state = cost.state_bytes(case.batch, *shape, state_element_bytes(case))
    if case.phase == "generate":
        return state
    rates = ELEMENT_BYTES["float32"] * case.batch * case.context * config.heads
    return 2 * state + rates + cost.token_bytes(case.batch, case.context, *shape, ELEMENT_BYTES[case.dtype])
