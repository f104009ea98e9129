"""Triton kernels compile for absent GPUs within limits on shared and local memory; generate has few dependent loads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from triton import knobs

from tests.interpreter import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="a machine without a GPU compiles for all")
# Shared memory per block, in KB, by compute capability; Triton compiles for 8.9 as for 8.6.
SHARED_KB = {80: 163, 86: 99, 90: 227, 100: 227, 120: 99}
# Local memory limit in bytes per thread. TTT-MLP's weights take 128 of 255 registers, so it spills other values.
STACK = {"linear": 0, "linear-crowded": 256, "linear-96": 256, "mlp": 1024, "mlp-96": 256, "mlp-gluon": 256}
STACK |= {"linear-packed": 0, "linear-crowded-packed": 256, "linear-96-packed": 256, "mlp-packed": 1024}
STACK |= {"mlp-96-packed": 512, "mlp-gluon-packed": 256}
SCRIPT = Path(__file__).with_name("compile_kernels.py")


def started(folder: Path, *arguments: object) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(SCRIPT.parents[2])
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def printed(worker: subprocess.Popen) -> list[dict]:
    lines = worker.communicate()[0].splitlines()
    assert worker.returncode == 0
    return list(map(json.loads, lines))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    capabilities = list(SHARED_KB)
    workers = [started(tmp_path_factory.mktemp("compiled"), *some) for some in (capabilities[::2], capabilities[1::2])]
    return [each for worker in workers for each in printed(worker)]


@pytest.mark.parametrize("capability", SHARED_KB)
def test_fits(compiled: list[dict], capability: int) -> None:
    kernels = [each for each in compiled if each["capability"] == capability]
    assert {"linear-packed", "mlp-packed", "mlp-96-packed"} <= {each["kernel"] for each in kernels}
    for each in kernels:
        assert each["shared"] <= SHARED_KB[capability] * 1024, each
        assert each["stack"] is None or each["stack"] <= STACK[each["kernel"]], each


def has_nvdisasm() -> bool:
    try:
        return bool(knobs.nvidia.nvdisasm.path)
    except (AttributeError, RuntimeError):
        return False


@pytest.mark.skipif(not has_nvdisasm(), reason="needs Triton's nvdisasm")
def test_generate_waits_for_two_memory_latencies_in_sequence(tmp_path: Path) -> None:
    """Loads of cached rows wait for the position, which masks them; with slots, every load first waits for its slot."""
    kernels = printed(started(tmp_path, "generate"))
    assert len(kernels) == 5
    for each in kernels:
        assert each["latencies"] <= 2 + each["slots"], each
