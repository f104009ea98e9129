"""A case that changes settings of its process ends that process, so that the next case begins with the defaults."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_systems import Fake
from harness_helpers import QUICK, case, measured, statuses, systems

from harness.measure.measured_case import CaseRun
from harness.measure.process_state import is_unchanged, process_settings
from harness.measure.system import Workload
from harness.schema.case import Case

torch = pytest.importorskip("torch")
INFERENCE = torch.inference_mode()

# Each setting that a case can change, how, and how to undo the change.
LEAKS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "folder": (lambda: os.chdir("/"), lambda: os.chdir(HOME)),
    "affinity": (
        lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
        lambda: os.sched_setaffinity(0, CORES),
    ),
    "dtype": (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
    "threads": (lambda: torch.set_num_threads(THREADS + 1), lambda: torch.set_num_threads(THREADS)),
    "grad": (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)),
    "inference": (INFERENCE.__enter__, lambda: INFERENCE.__exit__(None, None, None)),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
    "precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_float32_matmul_precision("highest"),
    ),
    "device": (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None)),
    "benchmark": (
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
        lambda: setattr(torch.backends.cudnn, "benchmark", False),
    ),
}
HOME, CORES, THREADS = os.getcwd(), os.sched_getaffinity(0), torch.get_num_threads()


class Leaking(Fake):
    def __init__(self, leak: Callable[[], object]) -> None:
        self.leak = leak

    def build(self, case: Case) -> Workload:
        workload = super().build(case)
        workload.capture = self.leak
        return workload


@pytest.fixture
def leak(request: pytest.FixtureRequest) -> Iterator[Callable[[], object]]:
    change, undo = LEAKS[request.param]
    yield change
    undo()


@pytest.mark.parametrize("leak", LEAKS, indirect=True)
def test_a_case_that_changes_a_setting_ends_its_process(leak: Callable[[], object]) -> None:
    if len(CORES) < 2 and leak is LEAKS["affinity"][0]:
        pytest.skip("needs two cores")
    run = CaseRun(case(), QUICK)
    assert run.record(Leaking(leak)).status == "ok"
    assert not run.healthy


@pytest.mark.parametrize("leak", ["dtype"], indirect=True)
def test_an_engine_sets_up_its_process_itself(leak: Callable[[], object]) -> None:
    run = CaseRun(case("engine"), QUICK)
    run.record(Leaking(leak))
    assert run.healthy


def test_settings_of_a_torch_that_the_case_imports_are_not_compared() -> None:
    before = {name: value for name, value in process_settings().items() if name in ("folder", "affinity")}
    assert is_unchanged(before)
    assert not is_unchanged(before | {"folder": "/elsewhere"})


def test_a_removed_working_directory_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert is_unchanged(process_settings())


def test_the_next_case_of_a_worker_finds_the_same_settings(tmp_path: Path) -> None:
    records = measured(tmp_path / "out", [case(batch=1), case(batch=2)], systems("fake_systems:Wanders"))
    assert statuses(records) == ["ok", "ok"]
    assert records[0].settings["found"] == records[1].settings["found"]
    assert records[0].settings["process"] != records[1].settings["process"]
