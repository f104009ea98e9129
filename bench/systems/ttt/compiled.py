"""Run a TTT layer's PyTorch dual form by torch.compile, in pieces of few mini-batches."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch

from bench.models.case_model import ttt_config_of
from bench.models.config import TTTConfig
from bench.systems.ttt.layer import check_forward, forward_workload, inputs_of, layer_inputs
from harness.measure.correctness import Checks
from harness.measure.system import Skip, Workload
from harness.schema.case import Case

TOGETHER = 4  # mini-batches per piece


class CompiledLayer:
    """Adapter of the backend torch-compile: a layer's forward over whole mini-batches.

    The compiler unrolls only TOGETHER mini-batches: with 32, TTT-Linear is slower than without the compiler.
    """

    packages: tuple[str, ...] = ("triton",)

    def unavailable(self) -> str:
        # each case reports a missing compiler itself
        return ""

    def build(self, case: Case) -> Workload:
        config = ttt_config_of(case)
        _refuse(case, config)
        reference = import_module(f"tk_kernels.ttt_{config.learner}.reference")
        inputs = layer_inputs(config, case.batch, case.context, getattr(torch, case.dtype))
        piece = min(TOGETHER * config.mini_batch, case.context)
        forward = compiled_forward(reference, piece)
        check, settings = partial(_check, forward, reference, inputs, piece), {"compiled_together": f"{piece} tokens"}
        return forward_workload(case, reference, inputs, forward, check, settings)


def compiled_forward(reference: Any, piece: int) -> Callable[..., Any]:
    """Return `reference.forward` in the dual form, compiled for pieces of `piece` tokens."""
    torch.compiler.reset()  # shapes of earlier cases count towards the recompilation limit
    states = torch.compile(reference.states, dynamic=False, fullgraph=True)
    outputs = torch.compile(reference.outputs, dynamic=False, fullgraph=True)

    @torch.no_grad()
    def forward(
        *, q: Any, k: Any, v: Any, lr: Any, token_scale: Any, ln_weight: Any, ln_bias: Any, state: Any
    ) -> tuple[Any, Any]:
        outer = (token_scale, ln_weight, ln_bias)
        out = torch.empty_like(q)
        for low in range(0, q.shape[1], piece):
            q_piece, k_piece, v_piece, lr_piece = (x[:, low : low + piece] for x in (q, k, v, lr))
            trace, state = states(k_piece, v_piece, lr_piece, *outer, state, start=0)
            out[:, low : low + piece] = outputs(q_piece, k_piece, lr_piece, *outer, trace)
        return out, state

    return forward


def _refuse(case: Case, config: TTTConfig) -> None:
    if case.phase != "forward" or case.option("part", "") or case.option("form", "dual") != "dual":
        raise Skip("torch-compile runs only the forward of a whole layer in the dual form")
    if case.context % config.mini_batch:
        raise Skip(f"torch-compile runs only whole mini-batches of {config.mini_batch} tokens")


def _check(forward: Callable[..., Any], reference: Any, inputs: dict[str, Any], piece: int) -> Checks:
    """Check the first sequence's first piece; one sequence alone would be compiled anew."""
    first = slice(0, 1)
    every = inputs_of(inputs, slice(None), piece)

    def run(**_: Any) -> tuple[Any, Any]:
        out, state = forward(**every)
        return out[first], type(state)(*(tensor[first] for tensor in state))

    return check_forward(run, reference, "primal", inputs_of(inputs, first, piece))
