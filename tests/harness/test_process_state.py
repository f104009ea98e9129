"""After a case that changed settings of its process, the next case gets a new process with the defaults."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_systems import Fake
from harness_helpers import QUICK, case, measured, statuses, systems

from harness.measure import measured_case
from harness.measure.measured_case import CaseRun
from harness.measure.process_state import process_settings
from harness.measure.system import Workload
from harness.schema.case import Case

torch = pytest.importorskip("torch")

# Functions that read the settings that a case can change.
READERS = (
    (os, "readlink"),
    (os, "sched_getaffinity"),
    (torch, "get_default_dtype"),
    (torch, "get_num_threads"),
    (torch, "is_grad_enabled"),
    (torch, "is_inference_mode_enabled"),
    (torch, "are_deterministic_algorithms_enabled"),
    (torch, "get_float32_matmul_precision"),
    (torch, "get_default_device"),
)


class Leaking(Fake):
    def __init__(self, leak: Callable[[], object]) -> None:
        self.leak = leak

    def build(self, case: Case) -> Workload:
        workload = super().build(case)
        workload.capture = self.leak
        return workload


@pytest.mark.parametrize(("module", "reader"), READERS, ids=[name for _, name in READERS])
def test_a_changed_setting_is_noticed(monkeypatch: pytest.MonkeyPatch, module: object, reader: str) -> None:
    before = process_settings()
    assert process_settings() == before
    monkeypatch.setattr(module, reader, lambda *_: "another")
    assert process_settings() != before


@pytest.mark.parametrize(("do", "healthy"), [("work", False), ("engine", True)])  # an engine sets up its process itself
def test_a_case_that_changes_a_setting_ends_its_process(
    monkeypatch: pytest.MonkeyPatch, do: str, healthy: bool
) -> None:
    run = CaseRun(case(do), QUICK)
    leak = lambda: monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)  # noqa: E731
    assert run.record(Leaking(leak)).status == "ok"
    assert run.healthy is healthy


def test_settings_of_a_torch_that_the_case_imports_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = iter([{"folder": "a"}, {"folder": "a", "num_threads": 1}])
    monkeypatch.setattr(measured_case, "process_settings", lambda: next(settings))
    run = CaseRun(case(), QUICK)
    run.record(Fake())
    assert run.healthy


def test_a_removed_working_directory_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert process_settings()["folder"] == f"{tmp_path / 'gone'} (deleted)"


def test_the_next_case_of_a_worker_finds_the_same_settings(tmp_path: Path) -> None:
    records = measured(tmp_path / "out", [case(batch=1), case(batch=2)], systems("fake_systems:ChangesSettings"))
    assert statuses(records) == ["ok", "ok"]
    assert records[0].settings["found"] == records[1].settings["found"]
    assert records[0].settings["process"] != records[1].settings["process"]
