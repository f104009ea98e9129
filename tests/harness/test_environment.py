import hashlib
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from harness_helpers import fake_command, git, new_repository

from harness.measure import environment, nvml
from harness.measure.environment import around, snapshot


class FakeNvml(ModuleType):
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, reasons: int = 0, fail: tuple[str, ...] = (), uuid: str = "12-34") -> None:
        super().__init__("pynvml")
        self.opened: list[Any] = []
        answers = {
            "nvmlInit": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetName": lambda h: "NVIDIA H100",
            "nvmlDeviceGetUUID": lambda h: f"GPU-{uuid}" if uuid else None,
            "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(total=80 << 30),
            "nvmlDeviceGetPowerUsage": lambda h: 123_500,
            "nvmlDeviceGetEnforcedPowerLimit": lambda h: 700_000,
            "nvmlDeviceGetMaxClockInfo": lambda h, kind: {1: 1980}[kind],
            "nvmlDeviceGetEccMode": lambda h: [1, 0],
            "nvmlDeviceGetCudaComputeCapability": lambda h: (9, 0),
            "nvmlDeviceGetClockInfo": lambda h, kind: {1: 1980, 2: 2619}[kind],
            "nvmlDeviceGetTemperature": lambda h, kind: 45,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda h: reasons,
            "nvmlDeviceGetTotalEnergyConsumption": lambda h: 5000,
            "nvmlDeviceGetHandleByIndex": self._open,
            "nvmlDeviceGetHandleByUUID": self._open,
        }
        for name, function in answers.items():
            setattr(self, name, self._unsupported if name in fail else function)

    def _open(self, which: Any) -> str:
        self.opened.append(which)
        return f"handle {which}"

    def _unsupported(self, *arguments: Any) -> None:
        raise RuntimeError("Not Supported")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    def use(module: Any) -> Any:
        monkeypatch.setitem(sys.modules, "pynvml", module)
        nvml._initialised.cache_clear()
        return module

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield use
    nvml._initialised.cache_clear()


def test_snapshot_of_a_gpu(install: Any) -> None:
    install(FakeNvml(reasons=0x04 | 0x01))
    shot = snapshot()
    assert (shot["device"], shot["device_kind"]) == ("NVIDIA H100", "cuda")
    assert shot["gpu"] == {
        "name": "NVIDIA H100",
        "driver": "580.1",
        "memory_bytes": 80 << 30,
        "device_id": hashlib.sha256(b"GPU-12-34").hexdigest()[:8],
        "power_limit_w": 700.0,
        "max_sm_clock_mhz": 1980,
        "ecc": True,
        "compute_capability": "9.0",
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "temperature_c": 45,
        "power_w": 123.5,
        "throttle_reasons": ["sw_power_cap"],
    }


def test_throttling_is_queried_at_intervals(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(FakeNvml(reasons=0x04))
    gpu = nvml.open_gpu()
    answers = iter([["sw_power_cap"], []])
    monkeypatch.setattr(gpu, "throttle_reasons", lambda: next(answers))
    now = 100.0
    monkeypatch.setattr(nvml.time, "monotonic", lambda: now)
    found = []
    for now in (100.0, 100.01, 100.0 + nvml.QUERY_EVERY_S):  # noqa: B007
        found.append(gpu.throttled())
    assert found == [True, True, False]
    assert gpu.seen_reasons == {"sw_power_cap"}


def test_the_highest_throttled_temperature_is_kept_until_reset(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading at the end would be too low: the GPU cools while a profiler writes its trace."""
    fake = install(FakeNvml(reasons=0x20))
    gpu = nvml.open_gpu()
    for now, celsius in ((100.0, 78), (101.0, 79), (102.0, 77)):
        monkeypatch.setattr(nvml.time, "monotonic", lambda now=now: now)
        fake.nvmlDeviceGetTemperature = lambda h, kind, celsius=celsius: celsius
        assert gpu.throttled()
    assert gpu.peak_celsius == 79
    gpu.reset()
    assert gpu.peak_celsius is None


def test_a_cpu_system_on_a_gpu_machine_reports_the_cpu(install: Any) -> None:
    install(FakeNvml())
    shot = snapshot("cpu")
    assert shot["device_kind"] == "cpu"
    assert shot["device"] == shot["cpu"]["model"]
    assert shot["gpu"] is None


@pytest.mark.parametrize("module", [None, FakeNvml(fail=("nvmlInit",)), FakeNvml(fail=("nvmlDeviceGetHandleByIndex",))])
def test_a_snapshot_without_a_gpu_describes_the_cpu(install: Any, module: Any) -> None:
    install(module)  # None makes the import fail
    shot = snapshot()
    assert shot["gpu"] is None
    assert shot["device_kind"] == "cpu"
    assert shot["device"]


def test_unsupported_readings_are_none(install: Any) -> None:
    names = ("PowerUsage", "CurrentClocksEventReasons", "MemoryInfo")
    install(FakeNvml(fail=tuple(f"nvmlDeviceGet{name}" for name in names)))
    gpu = snapshot()["gpu"]
    assert (gpu["power_w"], gpu["memory_bytes"], gpu["throttle_reasons"]) == (None, None, [])
    assert gpu["sm_clock_mhz"] == 1980


@pytest.mark.parametrize(
    ("bits", "throttled"),
    [(0, False), (0x103, False), (0x04, True), (0x08, True), (0x20, True), (0x41, True), (0x80, True)],
)
def test_idle_and_clock_settings_are_not_throttling(install: Any, bits: int, throttled: bool) -> None:
    install(FakeNvml(reasons=bits))
    gpu = nvml.open_gpu()
    assert gpu.throttled() is throttled
    assert gpu.energy_j() == 5.0


@pytest.mark.parametrize(
    ("visible", "opened"), [(None, [0]), ("3,1", [3]), ("GPU-ab", ["GPU-ab"]), ("MIG-x,0", ["MIG-x"]), ("", [])]
)
def test_the_visible_gpu_is_opened(
    install: Any, monkeypatch: pytest.MonkeyPatch, visible: str | None, opened: list
) -> None:
    fake = install(FakeNvml())
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert (nvml.open_gpu() is not None) == bool(opened)
    assert fake.opened == opened


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("echo out; echo err >&2", ("out\n", "")),
        ("echo out; echo err >&2; exit 3", ("", "err\nout")),
        ("exit 3", ("", "sh exited with status 3")),
        ("sleep 60", ("", "sh did not exit within 0.5 s")),
    ],
)
def test_a_program_gives_its_output_or_a_reason(script: str, answer: tuple[str, str]) -> None:
    assert environment.output_of(["sh", "-c", script], 0.5 if "sleep" in script else 60) == answer
    assert environment.output_of(["no-such-program"]) == ("", "no-such-program is not installed on this machine")


def test_around_keeps_both_readings(install: Any) -> None:
    install(FakeNvml())
    before = snapshot()
    install(FakeNvml(reasons=0x40))
    pair = around(before, snapshot())
    assert pair["gpu"]["name"] == "NVIDIA H100"
    assert pair["gpu"]["device_id"]
    assert "device_id" not in pair["gpu"]["before"]
    assert pair["gpu"]["before"]["throttle_reasons"] == []
    assert pair["gpu"]["after"]["throttle_reasons"] == ["hw_thermal_slowdown"]
    assert "power_w" not in pair["gpu"]
    assert set(pair["cpu"]) - {"threads"} == {"model", "cores", "before", "after"}
    assert set(pair["cpu"]["after"]) == {"load_1m"}


def test_a_local_version_is_as_locked() -> None:
    versions = {"torch": "2.14.0+cu130", "triton": "3.8.0", "einops": "0.8"}
    assert environment.against_lock(versions, {"torch": "2.14.0", "triton": "3.8.0", "vllm": "0.33.0"}) == "as locked"
    differing = "torch 2.14.0+cu130 (lock: 2.14.1)"
    assert environment.against_lock(versions, {"torch": "2.14.1", "triton": "3.8.0"}) == differing


def test_a_snapshot_names_no_user_host_or_folder() -> None:
    import getpass
    import platform

    values = json.dumps(snapshot("cpu")).replace("\\/", "/")
    assert str(Path.home()) not in values
    assert str(Path.cwd()) not in values
    for name in (platform.node(), getpass.getuser()):
        assert not re.search(rf"\b{re.escape(name)}\b", values)


@pytest.fixture
def package_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.delenv("TTT_BENCH_COMMIT", raising=False)
    environment.commit_and_dirty.cache_clear()
    yield tmp_path
    environment.commit_and_dirty.cache_clear()


def test_commit_of_a_checkout(package_in: Path) -> None:
    head = new_repository(package_in)
    assert environment.commit_and_dirty() == (head, False)
    environment.commit_and_dirty.cache_clear()
    record = package_in / "reports/results/run/records/a.jsonl"
    record.parent.mkdir(parents=True)
    record.write_text("one\n")
    (package_in / "notes").write_text("")
    git(package_in, "add", "--all")
    git(package_in, "commit", "-q", "-m", "a run")
    record.write_text("one\ntwo\n")  # the run goes on
    for name, differs in (("page.html", False), ("site", False), ("bench/new kernel.cu", True)):
        path = package_in / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
        environment.commit_and_dirty.cache_clear()
        assert environment.commit_and_dirty()[1] is differs, name
    path.unlink()
    (package_in / "notes").write_text("x")  # a tracked file
    environment.commit_and_dirty.cache_clear()
    assert environment.commit_and_dirty()[1] is True


def test_git_explains_a_missing_commit(package_in: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert environment.git_error() == ""
    (package_in / ".git").mkdir()
    fake_command(tmp_path, "git", "echo 'fatal: detected dubious ownership\n\n\tcall git' >&2\nexit 128")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert environment.git_error() == "fatal: detected dubious ownership call git"
    assert environment.commit_and_dirty() == ("", None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ("", None)),
        ("abc", ("", None)),  # set by a user, not by a run
        ('["abc", true]', ("abc", True)),
        ('["abc", null]', ("abc", None)),
    ],
)
def test_commit_without_a_checkout(
    package_in: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, expected: tuple
) -> None:
    if value is not None:
        monkeypatch.setenv("TTT_BENCH_COMMIT", value)
    assert environment.commit_and_dirty() == expected
