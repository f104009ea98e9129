"""How fast is flash-linear-attention's TTT-Linear layer? Another function than the paper's: for speed alone.

Its rate scales with the query's row instead of the key's column, its output is o + LN(o), and q is scaled.
"""

from typing import Any

import torch

from bench.models.config import TTTConfig, model_config
from bench.systems.language_model import device
from bench.systems.needs import needs_gpu
from bench.systems.torch_layer import GATE_TOKENS, LIMITS, layer_inputs, layer_metrics
from bench.systems.triton_tuning import keep_choices, prepare
from harness.case import Case
from harness.gate import Check, Verdict, relative_error
from harness.system import Skip, Workload

MINI_BATCHES = (16, 32, 64)  # what its Triton products and its registers allow


class FlaTTTLinear:
    """ttt-linear/fla, the layer's forward alone, held against the package's own PyTorch version."""

    def unavailable(self) -> str:
        """It has Triton kernels only."""
        keep_choices()
        return needs_gpu("fla.ops.ttt")

    def versions(self) -> dict[str, str]:
        """The environment names the package's already."""
        return {}

    def build(self, case: Case) -> Workload:
        """The chunked forward of `batch` sequences of `context` tokens; Skip for what the package has not."""
        from fla.ops.ttt import chunk_ttt_linear

        mini_batch = int(case.option("mini_batch", 16))
        self._refuse(case, mini_batch)
        config = model_config("ttt-linear", case.size, mini_batch=mini_batch)
        assert isinstance(config, TTTConfig)
        inputs = package_inputs(layer_inputs(config, case.batch, case.context, getattr(torch, case.dtype)))

        def run() -> Any:
            return chunk_ttt_linear(**inputs, chunk_size=mini_batch, output_final_state=True)

        prepare(run)
        return Workload(
            run=run,
            tokens=case.batch * case.context,
            device=device(),
            gate=lambda: _gate(inputs, case, mini_batch),
            metrics=layer_metrics(config, case),
            settings={"function": "flash-linear-attention's, not the paper's"},
        )

    def _refuse(self, case: Case, mini_batch: int) -> None:
        if case.phase != "forward" or case.option("part", ""):
            raise Skip("flash-linear-attention has the forward of the whole TTT-Linear layer only")
        if case.option("form", "dual") != "dual" or mini_batch not in MINI_BATCHES:
            raise Skip(f"flash-linear-attention has the dual form with mini-batches of {MINI_BATCHES} only")


def package_inputs(inputs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of our operator under the package's names, in its shapes, and the rate in the tokens' dtype.

    Its products take no rate of another dtype.
    """
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


def _gate(inputs: dict[str, Any], case: Case, mini_batch: int) -> Verdict:
    """The first tokens of one sequence against the package's version in PyTorch, in float32."""
    from fla.ops.ttt import chunk_ttt_linear
    from fla.ops.ttt.naive import chunk_ttt_linear_ref

    tokens = max(GATE_TOKENS, mini_batch)
    piece = {name: value[:1] if name not in ("w", "b") else value for name, value in inputs.items()}
    piece |= {name: piece[name][:, :tokens] for name in ("q", "k", "v", "eta")}
    out, state, _ = chunk_ttt_linear(**piece, chunk_size=mini_batch, output_final_state=True)
    # Its reference scales q in place.
    exact = {name: value.float().clone() for name, value in piece.items()}
    expected, expected_state, _ = chunk_ttt_linear_ref(**exact, mini_batch_size=mini_batch, output_final_state=True)
    limit = LIMITS[case.dtype]
    return Verdict(
        [
            Check.at_most("output_relative_error", relative_error(out, expected), limit),
            Check.at_most("W_relative_error", relative_error(state, expected_state), limit),
        ]
    )
