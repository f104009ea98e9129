"""Triton kernels compile for absent GPUs within limits on shared and local memory; generate has few dependent loads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from triton import __version__ as triton_version
from triton import knobs

from tests.interpreter import INTERPRETED
from tests.tk_kernels.compile_kernels import SHARED_KB

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="runs on machines without a GPU")
# The portable kernels, except TTT-MLP's forward and `FEW_ROWS`, which take 192 KB of shared memory.
KERNELS = {"norms_and_gates._norm_gate", "norms_and_gates._rms_norm", "norms_and_gates._swiglu"}
KERNELS |= {"short_convolution._query_key", "short_convolution._residual_convolution"}
KERNELS = {f"edges.{name}" for name in KERNELS} | {"ttt_linear.forward._forward", "ttt_mlp.forward_wide.forward"}
KERNELS |= {"ttt_linear.generate._dual", "ttt_linear.generate._primal", "ttt_mlp.generate_wide.dual"}
KERNELS |= {"ttt_mlp.generate._dual", "ttt_mlp.generate._primal"}
FEW_ROWS = {"edges.few_rows._few_rows_product", "edges.few_rows._few_rows_summed"}
# Local memory limits in bytes per thread, else 0. TTT-MLP's weights take 128 of 255 registers, so it spills others.
# They are Triton 3.7's; 3.8 takes up to three times as much.
STACK = {("125m", "ttt_linear.forward._forward", 2): 256, ("760m", "ttt_linear.forward._forward", 8): 32}
STACK |= {("125m", "ttt_mlp.forward._forward", 8): 704, ("125m", "ttt_mlp.forward_gluon.forward", 8): 256}
STACK |= {("760m", "ttt_mlp.forward_wide.forward", 8): 320, ("125m", "ttt_mlp.generate._primal", 8): 32}
STACK |= {("125m-64", "ttt_linear.forward._forward", 8): 896, ("125m-64", "ttt_mlp.forward_wide.forward", 8): 896}
STACK |= {("125m-64", "ttt_linear.generate._dual", 1): 96, ("760m-64", "ttt_mlp.forward_wide.forward", 8): 1152}
STACK |= {("760m-64", "ttt_mlp.generate_wide.dual", 8): 224, ("125m", "ttt_mlp.generate._dual", 8): 640}
STACK = {key: size * (3 if triton_version.startswith("3.8.") else 1) for key, size in STACK.items()}
SCRIPT = Path(__file__).with_name("compile_kernels.py")


def started(folder: Path, *arguments: object) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(SCRIPT.parents[2]), "TTT_BENCH_ARCH": "portable"}
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def printed(worker: subprocess.Popen) -> list[dict]:
    lines = worker.communicate()[0].splitlines()
    assert worker.returncode == 0
    return list(map(json.loads, lines))


@pytest.mark.parametrize("capability", SHARED_KB)
def test_all_portable_kernels_compile_and_fit(tmp_path: Path, capability: int) -> None:
    # One process per capability: Triton keeps the first one's kernels.
    kernels, shared_kb = printed(started(tmp_path, capability)), SHARED_KB[capability]
    assert {each["capability"] for each in kernels} == {capability}
    forward = "ttt_mlp.forward_gluon.forward" if shared_kb > 134 else "ttt_mlp.forward._forward"
    expected = KERNELS | {forward} | (FEW_ROWS if shared_kb >= 192 else set())
    assert {each["kernel"] for each in kernels} == expected
    for each in kernels:
        assert each["shared"] <= shared_kb * 1024, each
        most = STACK.get((each["size"], each["kernel"], each["warps"]), 0)
        assert each["stack"] is None or each["stack"] <= most, each


def has_nvdisasm() -> bool:
    try:
        return bool(knobs.nvidia.nvdisasm.path)
    except (AttributeError, RuntimeError):
        return False


@pytest.mark.skipif(not has_nvdisasm(), reason="needs Triton's nvdisasm")
def test_generate_waits_for_two_memory_latencies_in_sequence(tmp_path: Path) -> None:
    """Cached rows are loaded after the position, which masks these loads. With slots, they wait for the slot, too."""
    kernels = printed(started(tmp_path, "generate"))
    assert len(kernels) == 5
    for each in kernels:
        assert each["latencies"] <= 2 + each["slots"], each
