"""Measure flash-linear-attention's TTT-Linear layer, whose function is not the paper's.

In the package, the learning rate scales the query's row instead of the key's column, the output is o + LN(o), and q
is scaled.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from bench.models.case_model import ttt_config_of
from bench.systems.needs import cannot_find, import_or_skip, no_gpu
from bench.systems.on_device import device
from bench.systems.triton_tuning import chosen_anew, keep_choices, prepare
from bench.systems.ttt.layer import (
    LAYER_CHECK_TOKENS,
    LAYER_CHECKED_TOKENS,
    Results,
    check_results,
    layer_inputs,
    layer_work,
    layer_workload,
)
from harness.measure.correctness import Checks
from harness.measure.cuda_clock import CudaEventClock
from harness.measure.system import Input, Skip, Workload
from harness.measure.timer import Clock, measure
from harness.schema.case import Case
from harness.schema.policy import Policy
from harness.schema.reason import of_exception

PER_TOKEN = ("q", "k", "v", "eta")
# The package's two forms: states first and outputs after them, or both in one kernel.
PACKAGE_FORMS = ("chunk_ttt_linear", "fused_chunk_ttt_linear")
TRIAL = Policy(budget_s=0.2)
MINI_BATCHES = (16, 32, 64)  # sizes that the package's Triton kernels and the registers allow


class FlaTTTLinear:
    """Adapter of ttt-linear/fla: the layer's forward, checked against fla's PyTorch version."""

    packages: tuple[str, ...] = ("flash-linear-attention", "triton")

    def unavailable(self) -> str:
        keep_choices()
        return no_gpu() or cannot_find("fla")

    def build(self, case: Case) -> Workload:
        mini_batch = int(case.option("mini_batch", 16))
        self._refuse(case, mini_batch)
        import_or_skip("fla.ops.ttt")
        config = ttt_config_of(case)
        inputs = package_inputs(layer_inputs(config, case.batch, case.context, getattr(torch, case.dtype)))
        form, trials = _fastest(inputs, mini_batch)

        def run(inputs: dict[str, Any]) -> Results:
            return _named(form(**inputs, chunk_size=mini_batch, output_final_state=True))

        def exact(rows: list[int], tokens: int) -> Results:
            return _exact(sequences_of(inputs, rows, tokens), mini_batch)

        def check() -> Checks:
            tokens = max(LAYER_CHECK_TOKENS, mini_batch)
            return check_results(run(sequences_of(inputs, [0], tokens)), exact([0], tokens), case.dtype)

        rates = Input(inputs["eta"], "uniform", config.base_lr / config.head_dim, 0, 1)
        refilled = {name: Input(inputs[name], "normal", 1.0, 0, 1) for name in "qkv"} | {"eta": rates}
        settings = {
            "function": "flash-linear-attention's, not the paper's",
            "form": form.__name__,
            "form_trials": trials,
            "tuned": "on this case",
        }
        work = layer_work(config, case)
        return layer_workload(case, lambda: run(inputs), refilled, exact, check, work, settings, LAYER_CHECKED_TOKENS)

    def _refuse(self, case: Case, mini_batch: int) -> None:
        if case.phase != "forward" or case.option("part", ""):
            raise Skip("flash-linear-attention runs only the forward of the whole TTT-Linear layer")
        if case.option("form", "dual") != "dual" or mini_batch not in MINI_BATCHES:
            raise Skip(f"flash-linear-attention runs only the dual form with mini-batches of {MINI_BATCHES}")


def package_inputs(inputs: dict[str, Any]) -> dict[str, Any]:
    """Convert the arguments of a reference's `forward` to fla's names, shapes and dtypes."""
    state = inputs["state"]
    return {
        "q": inputs["q"],
        "k": inputs["k"],
        "v": inputs["v"],
        "w": inputs["ln_weight"],
        "b": inputs["ln_bias"],
        "eta": inputs["lr"][..., None].to(inputs["k"].dtype),
        "initial_state": state.W.clone(),
        "initial_state_bias": state.b[:, :, None].clone(),
    }


def _fastest(inputs: dict[str, Any], mini_batch: int) -> tuple[Callable[..., Any], str]:
    """Tune and time PACKAGE_FORMS on `inputs`; return the fastest and a text with all times."""
    from fla.ops import ttt

    took: dict[Callable[..., Any], float] = {}
    words, failures = [], []
    with chosen_anew():  # once: a second context would discard the first form's choice
        for name in PACKAGE_FORMS:
            form = getattr(ttt, name)

            def run(form: Callable[..., Any] = form) -> Any:
                return form(**inputs, chunk_size=mini_batch, output_final_state=True)

            try:
                prepare(run)
                clock = CudaEventClock() if device() == "cuda" else Clock()
                took[form] = median(measure(run, clock, TRIAL).samples_ms)
                words.append(f"{name} {took[form]:.4g} ms")
            except Exception as error:
                words.append(f"{name} cannot run it ({of_exception(error)})")
                failures.append(error)
    if not took:
        raise failures[0]
    return min(took, key=lambda form: took[form]), "; ".join(words)


def sequences_of(inputs: dict[str, Any], rows: list[int], tokens: int) -> dict[str, Any]:
    """Return the arguments `inputs` for the first `tokens` tokens of the sequences `rows`."""
    piece = {name: value[rows] if name not in ("w", "b") else value for name, value in inputs.items()}
    return piece | {name: inputs[name][rows, :tokens] for name in PER_TOKEN}


def _exact(piece: dict[str, Any], mini_batch: int) -> Results:
    """Run fla's float32 PyTorch version on copies, because it scales q in place."""
    from fla.ops.ttt.naive import chunk_ttt_linear_ref

    exact = {name: value.float().clone() for name, value in piece.items()}
    named = _named(chunk_ttt_linear_ref(**exact, mini_batch_size=mini_batch, output_final_state=True))
    return {name: named[name] for name in ("output", "W")}


def _named(results: Sequence[torch.Tensor]) -> Results:
    return dict(zip(("output", "W", "b"), results, strict=True))
