"""A case's changes to its process are undone before the next case, or the process ends."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_systems import Fake
from harness_helpers import QUICK, case

from harness.measure.measured_case import CaseRun
from harness.measure.process_state import ProcessState
from harness.measure.system import Workload
from harness.schema.case import Case

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    state = ProcessState()
    yield
    state.restore()


def settings() -> dict[str, object]:
    return {
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "affinity": os.sched_getaffinity(0),
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "device": torch.get_default_device(),
        "modes": torch._C._len_torch_function_stack(),
        "benchmark": torch.backends.cudnn.benchmark,
    }


LEAKS: dict[str, Callable[[], object]] = {
    "folder": lambda: os.chdir("/"),
    "environment": lambda: os.environ.update(LEAKED="1", PATH="/nowhere"),
    "less environment": lambda: os.environ.pop("PATH", None),
    "affinity": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "grad": lambda: torch.set_grad_enabled(False),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "precision": lambda: torch.set_float32_matmul_precision("medium"),
    "device": lambda: torch.set_default_device("meta"),
    "benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
}


class Leaking(Fake):
    """A system that calls `leak`, which changes its process, while it is built and while it runs."""

    def __init__(self, leak: Callable[[], object]) -> None:
        self.leak = leak

    def build(self, case: Case) -> Workload:
        self.leak()
        workload = super().build(case)
        workload.capture = self.leak
        return workload


@pytest.mark.parametrize("leak", LEAKS)
def test_settings_are_restored_after_a_case(leak: str) -> None:
    before = settings()
    run = CaseRun(case(), QUICK)
    assert run.record(Leaking(LEAKS[leak])).status == "ok"
    assert settings() == before
    assert run.healthy


@pytest.mark.parametrize("do", ["raise", "miss", "skip"])
def test_settings_are_restored_after_any_status(do: str) -> None:
    before = settings()
    CaseRun(case(do), QUICK).record(Leaking(LEAKS["dtype"]))
    assert settings() == before


def test_a_setting_that_cannot_be_restored_ends_the_process() -> None:
    entered: list[Any] = []

    def enter() -> None:
        entered.append(torch.inference_mode())
        entered[-1].__enter__()

    run = CaseRun(case(), QUICK)
    try:
        assert run.record(Leaking(enter)).status == "ok"
        assert not run.healthy
    finally:
        while entered:
            entered.pop().__exit__(None, None, None)


def test_settings_of_an_engine_stay() -> None:
    before = torch.get_default_dtype()
    CaseRun(case("engine"), QUICK).record(Leaking(LEAKS["dtype"]))
    assert torch.get_default_dtype() == torch.float64 != before


def test_a_removed_working_directory_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    state = ProcessState()
    os.chdir("/")
    (tmp_path / "gone").rmdir()
    state.restore()
    assert os.getcwd() == "/"
