"""On a GPU, profiles of small cases are complete and agree with latencies and lower bounds."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.profiling.tools import ncu, nsys
from harness.schema.profile import Profile
from harness.schema.run import Run
from harness.schema.work import HEAD, PRODUCTS, SCAN, TTT
from reports.profiles.parts import IDLE, parts
from reports.profiles.peaks import with_common_peaks
from reports.profiles.words import TOLERANCE, recorded
from tk_kernels.ttt_linear import ops

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
]
KINDS = {
    # One sequence stays below the power cap, where times are stable.
    "layer": ("kernel-forward", "--systems", "ttt-linear/thunderkittens", "--batch", "1", "--context", "8192"),
    "prompt": ("quick", "--systems", "ttt-linear/torch", "--phase", "forward", "--batch", "2", "--context", "64"),
    "steps": ("quick", "--systems", "transformer/torch", "--phase", "generate", "--batch", "2", "--context", "64"),
}


def ttt_bench(*arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *map(str, arguments), "--device", "cuda"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=800)


@pytest.fixture(scope="module", params=list(KINDS))
def profiled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Run, list[Profile]]:
    if request.param == "layer" and ops.available():
        pytest.skip(ops.available())
    out = tmp_path_factory.mktemp(request.param) / "run"
    measured = ttt_bench("run", *KINDS[request.param], "--out", out)
    assert measured.returncode == 0, measured.stderr
    done = ttt_bench("profile", *KINDS[request.param], "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    run = Run.open(out)
    return request.param, run, list(run.profiles().values())


def test_the_content_of_a_profile(profiled: tuple[str, Run, list[Profile]]) -> None:
    kind, _, found = profiled
    assert found
    for profile in found:
        assert profile.status == "ok", profile.reason
        assert set(profile.tools) & {"torch.profiler", "nsys"}
        assert min(profile.peaks.values()) > 0  # type: ignore[type-var, operator]
        assert profile.timeline.kernel
        assert not any(kernel.name.startswith("aten::") for kernel in profile.kernels)
        names = {part.name for part in parts(profile)} - {IDLE}
        assert (names == {TTT}) if kind == "layer" else ({PRODUCTS, HEAD} <= names)
        if kind != "layer":
            assert (SCAN if kind == "steps" else TTT) in names
            assert max(profile.timeline.range) > 0  # its launches are those of the call under ranges


def test_lower_bounds_lie_below_the_times(profiled: tuple[str, Run, list[Profile]]) -> None:
    for profile in with_common_peaks(profiled[2]):
        for part in parts(profile):
            assert part.lower_bound_us is None or part.lower_bound_us <= 1.05 * part.time_us, part


def test_kernels_and_idle_time_are_the_latency_of_a_case_that_keeps_the_gpu_busy(
    profiled: tuple[str, Run, list[Profile]],
) -> None:
    kind, run, found = profiled
    if kind != "layer":
        pytest.skip("a tiny model waits for the host, which a profiler slows")
    latencies = recorded(run.records())
    warm = [profile for profile in found if profile.case.l2 == "warm"]
    assert warm
    for profile in warm:
        assert profile.unit_ms == pytest.approx(latencies[profile.case.key].ms, rel=TOLERANCE)


@pytest.mark.skipif(shutil.which(ncu.PROGRAM) is None, reason="no ncu on the path")
def test_ncu_counts_most_of_the_time_or_notes_the_reason(profiled: tuple[str, Run, list[Profile]]) -> None:
    kind, _, found = profiled
    for profile in found:
        counted = [kernel for kernel in profile.kernels if kernel.counters]
        if not counted:
            assert "NVreg_RestrictProfilingToAdminUsers" in " ".join(profile.notes), profile.notes
            continue
        missed = 1 - sum(kernel.time_us for kernel in counted) / sum(kernel.time_us for kernel in profile.kernels)
        noted = f"counted no launch of kernels that take {missed:.0%} of the time" in " ".join(profile.notes)
        assert noted == (missed > 0.05), (missed, profile.notes)
        if kind != "prompt":  # a mini-batch of the reference in PyTorch has more launches than are counted
            assert missed < 0.2, profile.notes
        longest = max(counted, key=lambda kernel: kernel.time_us).counters
        assert longest.dram_bytes is not None
        assert longest.occupancy


@pytest.mark.skipif(shutil.which(nsys.PROGRAM) is None, reason="no nsys on the path")
def test_times_come_from_nsys(profiled: tuple[str, Run, list[Profile]]) -> None:
    assert all("nsys" in profile.tools for profile in profiled[2])
