"""The Triton forward kernels compile for GPUs that this machine lacks and fit their shared memory and registers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreter import INTERPRETED

# Shared memory per block, in KB, by compute capability; Triton compiles for 8.9 as for 8.6.
SHARED_KB = {80: 163, 86: 99, 90: 227, 100: 227, 120: 99}
# Local memory limit in bytes per thread. TTT-MLP's weights take 128 of 255 registers, so it spills other values.
STACK = {"linear": 0, "linear-crowded": 256, "linear-96": 256, "mlp": 1024, "mlp-96": 256, "mlp-gluon": 256}
STACK |= {"linear-packed": 0, "linear-crowded-packed": 256, "linear-96-packed": 256, "mlp-packed": 1024}
STACK |= {"mlp-96-packed": 512, "mlp-gluon-packed": 256}
SCRIPT = Path(__file__).with_name("compile_forward.py")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(SCRIPT.parents[2])
    capabilities = list(SHARED_KB)
    workers = []
    for some in (capabilities[::2], capabilities[1::2]):
        command = [sys.executable, str(SCRIPT), *map(str, some)]
        folder = tmp_path_factory.mktemp("compiled")
        workers.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True))
    found: dict[int, list[dict]] = {capability: [] for capability in capabilities}
    for worker in workers:
        for line in worker.communicate()[0].splitlines():
            each = json.loads(line)
            found[each["capability"]].append(each)
        assert worker.returncode == 0
    return found


@pytest.mark.skipif(not INTERPRETED, reason="a machine without a GPU compiles for all")
@pytest.mark.parametrize("capability", SHARED_KB)
def test_fits(compiled: dict[int, list[dict]], capability: int) -> None:
    kernels = compiled[capability]
    assert {"linear-packed", "mlp-packed", "mlp-96-packed"} <= {each["kernel"] for each in kernels}
    for each in kernels:
        assert each["shared"] <= SHARED_KB[capability] * 1024, each
        assert each["stack"] is None or each["stack"] <= STACK[each["kernel"]], each
