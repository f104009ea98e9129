"""After the vLLM plug-in's warm-up, steps launch no new variant of a Triton kernel and load no new library."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton.experimental.gluon")
SCRIPT = Path(__file__).with_name("step_variants.py")
ALWAYS = {"_copy_slots", "_few_rows_summed", "_rms_norm", "_swiglu"}
MAMBA = ALWAYS | {"_norm_gate", "_query_key", "_residual_convolution"}


@pytest.mark.parametrize(
    ("learner", "backbone", "launched"),
    [
        ("linear", "mamba", MAMBA | {"_forward", "ttt_linear/forward_sm90"}),
        ("linear", "transformer", ALWAYS | {"_forward", "ttt_linear/forward_sm90"}),
        ("mlp", "mamba", MAMBA | {"forward", "ttt_mlp/forward_sm90"}),
        ("mlp", "transformer", ALWAYS | {"forward", "ttt_mlp/forward_sm90"}),
    ],
)
def test_steps_of_all_sizes_launch_variants_of_the_warm_up(learner, backbone, launched):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(SCRIPT.parents[2])
    command = [sys.executable, str(SCRIPT), learner, backbone]
    found = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert set(found["launched"]) == launched
    assert found["cold"] == []
