import sys
from types import ModuleType, SimpleNamespace

import pytest

from harness.measure import nvml
from harness.measure.environment import output_of, recorded_variables, snapshot

UUIDS = {"slot 0": "GPU-1111-aa", "slot 1": "GPU-1122-bb", "part": "MIG-3333-cc"}


@pytest.mark.parametrize(
    "name", ["GIT_DIR", "GIT_INDEX_FILE", "SQUEUE_STATES", "SBATCH_TIMELIMIT", "SCANCEL_STATE", "SINFO_FORMAT"]
)
def test_a_started_program_gets_no_defaults_of_git_and_slurm(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "x")
    script = f"import os; print(os.environ.get({name!r}), os.environ['CUDA_DEVICE_ORDER'])"
    assert output_of([sys.executable, "-c", script]) == ("None PCI_BUS_ID\n", "")


def test_a_record_names_the_variables_that_change_speed_and_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "ATEN_CPU_CAPABILITY": "default", "LD_PRELOAD": "/opt/lib/a.so", "OMP_NUM_THREADS": "3", "VLLM_API_KEY": "k",
        "CUDA_LAUNCH_BLOCKING": "1", "CUDA_HOME": "/usr", "CUDA_VISIBLE_DEVICES": "GPU-1", "EDITOR": "vi",
        "TTT_BENCH_ARCH": "portable", "TTT_BENCH_TUNING": "/home/own.toml",
        "TORCH_LOGS": "a" * 200, "VLLM_X": "b" * 201,
        "NVIDIA_REQUIRE_CUDA": "cuda>=13.0", "NCCL_VERSION": "2.28", "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME": "vllm_mm_x",
    }  # fmt: skip
    assert recorded_variables(variables) == {
        "ATEN_CPU_CAPABILITY": "default", "CUDA_LAUNCH_BLOCKING": "1", "LD_PRELOAD": "...", "OMP_NUM_THREADS": "3",
        "TTT_BENCH_ARCH": "portable", "TTT_BENCH_TUNING": "...", "TORCH_LOGS": "a" * 200, "VLLM_X": "b" * 199 + "…",
    }  # fmt: skip
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert snapshot("cpu")["variables"]["ONEDNN_MAX_CPU_ISA"] == "AVX2"


class Nvml(ModuleType):
    """A fake NVML of two GPUs, the second with a MIG device; only a complete UUID opens a device, as in NVML."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.nvmlInit = lambda: None
        self.nvmlDeviceGetCount = lambda: 2
        self.nvmlDeviceGetHandleByIndex = lambda index: f"slot {index}"
        self.nvmlDeviceGetHandleByUUID = {uuid: name for name, uuid in UUIDS.items()}.__getitem__
        self.nvmlDeviceGetUUID = UUIDS.__getitem__


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("GPU-1111", "slot 0"), ("GPU-112", "slot 1"), ("GPU-11", None), ("GPU-9", None), ("MIG-3333-cc", "part"),
        ("MIG-33", None),
    ],
)  # fmt: skip
def test_a_gpu_is_found_by_the_start_of_its_uuid(visible: str, expected: str | None) -> None:
    assert nvml._handle(Nvml(), visible) == expected


@pytest.mark.parametrize(("uuid", "expected"), [("3333-cc", "part"), ("1122-bb", "slot 1"), ("GPU-1111-aa", "slot 0")])
def test_torchs_device_is_a_gpu_or_a_part_of_one(monkeypatch: pytest.MonkeyPatch, uuid: str, expected: str) -> None:
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 0,
        get_device_properties=lambda _: SimpleNamespace(uuid=uuid),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert nvml._handle(Nvml(), None) == expected
