"""The generate kernel of TTT-MLP waits for memory twice before its arithmetic, in every compiled variant."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton.experimental.gluon")
from triton import knobs

from tests.interpreter import INTERPRETED

SCRIPT = Path(__file__).with_name("compile_generate.py")


def has_nvdisasm() -> bool:
    try:
        return bool(knobs.nvidia.nvdisasm.path)
    except (AttributeError, RuntimeError):
        return False


@pytest.mark.skipif(not INTERPRETED, reason="a machine without a GPU compiles for all")
@pytest.mark.skipif(not has_nvdisasm(), reason="needs Triton's nvdisasm")
def test_two_memory_latencies_in_sequence(tmp_path: Path) -> None:
    """The position masks the cached rows, so they wait for it. Slots add one latency: every address needs them."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(SCRIPT.parents[2])
    command = [sys.executable, str(SCRIPT)]
    answer = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    kernels = [json.loads(line) for line in answer.stdout.splitlines()]
    assert len(kernels) == 5
    for each in kernels:
        assert each["latencies"] <= 2 + each["slots"], each
