import re
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_systems import Fake, OutOfMemoryError
from harness_helpers import QUICK, case

from harness.measure.correctness import Check, Checks
from harness.measure.inspection import NO_ROOM, NOT_COMPARED
from harness.measure.measured_case import NO_REFERENCE, CaseRun
from harness.measure.process_state import is_out_of_memory
from harness.measure.system import Input, Workload

torch = pytest.importorskip("torch")


class Counting(Fake):
    def __init__(self, **changes: Any) -> None:
        self.events: list[str] = []
        self.changes = changes

    def build(self, case: Any) -> Workload:
        self.events.append("build")
        workload = super().build(case)
        check, run = workload.check, workload.run
        workload.check = self._noting("check", check) if check else None
        workload.run = self._noting("run", run)
        for name, value in self.changes.items():
            setattr(workload, name, value)
        return workload

    def _noting(self, name: str, call: Callable[[], Any]) -> Callable[[], Any]:
        def noted() -> Any:
            self.events.append(name)
            return call()

        return noted


def test_the_first_check_precedes_all_runs() -> None:
    system = Counting()
    record = CaseRun(case(), QUICK).record(system)
    assert record.status == "ok"
    assert system.events[:3] == ["build", "check", "run"]
    assert system.events.count("check") == 1


def test_the_last_workload_is_freed_before_the_next_is_built() -> None:
    alive, found = weakref.WeakSet[Any](), list[int]()

    class RefersToItself(Fake):
        def build(self, case: Any) -> Workload:
            def run() -> None:
                assert run

            found.append(len(alive))
            alive.add(run)
            return replace(super().build(case), run=run)

    assert [CaseRun(case(), QUICK).record(RefersToItself()).status for _ in range(2)] == ["ok", "ok"]
    assert found == [0, 0]


@pytest.mark.parametrize("do", ["miss", "nan"])
def test_a_failed_first_check_has_no_timing(do: str) -> None:
    system = Counting()
    record = CaseRun(case(do), QUICK).record(system)
    assert (record.status, record.samples_ms, record.peak_memory_bytes) == ("incorrect", [], None)
    assert not record.check["passed"]
    assert record.reason.startswith("error is ")
    assert "run" not in system.events


def test_verify_without_a_reference_is_skipped() -> None:
    noted = Counting(check=lambda: Checks([], "too large"))
    for system, of, note in ((Fake(), case("unchecked"), ""), (noted, case(), "; too large")):
        record = CaseRun(of, QUICK, "verify").record(system)
        assert (record.status, record.reason) == ("skipped", NO_REFERENCE + note)


def test_an_invalid_result_is_named() -> None:
    with pytest.raises(ValueError, match=r"results are invalid: tokens: Input should be a valid integer, not 1\.5"):
        CaseRun(case(), QUICK).record(Counting(tokens=1.5))


def test_engine_samples_have_seven_digits() -> None:
    record = CaseRun(case("engine", timing="graph"), QUICK).record(Fake())
    assert (record.samples_ms, record.stop) == ([1.234568, 2.469136, 3.703704], "budget")


def test_a_record_has_the_time_of_each_stage() -> None:
    record = CaseRun(case(), QUICK).record(Fake())
    assert list(record.stages_s) == ["build", "check", "warm_up", "sample"]
    assert sum(record.samples_ms) / 1e3 <= record.stages_s["sample"] <= sum(record.stages_s.values()) <= record.wall_s
    missed = CaseRun(case("miss"), QUICK).record(Fake())
    assert list(missed.stages_s) == ["build", "check"]


@pytest.mark.parametrize("change", [{"timing": "graph"}, {"l2": "cold"}])
def test_a_cpu_has_neither_graphs_nor_a_cold_l2(change: dict) -> None:
    record = CaseRun(case(**change), QUICK).record(Fake())
    assert record.status == "skipped"
    assert "needs a CUDA device" in record.reason


@pytest.mark.parametrize(
    ("do", "status", "reason"),
    [
        ("raise", "failed", "RuntimeError: first line of kernel.cu (fake_systems.py, line N)"),
        ("leave", "failed", "SystemExit: the library gave up (fake_systems.py, line N)"),
        ("oom-inside", "oom", "RuntimeError: the engine could not start"),
    ],
)
def test_an_exception_becomes_the_reason_and_keeps_earlier_fields(do: str, status: str, reason: str) -> None:
    run = CaseRun(case(do), QUICK)
    record = run.record(Fake())
    assert (record.metrics["parameters"], record.check is not None) == (7, True)
    assert record.environment["software"]["pytest"] == pytest.__version__
    assert (record.status, re.sub(r"line \d+", "line N", record.reason), run.healthy) == (status, reason, False)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("x"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("cuBLAS: CUBLAS_STATUS_ALLOC_FAILED when calling x"), True),
        (RuntimeError("shared memory"), False),
        (ValueError("CUDA out of memory"), False),
    ],
)
def test_is_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
    wrapped = RuntimeError("engine")
    wrapped.__cause__ = error
    assert is_out_of_memory(wrapped) is expected


def test_workload_refuses() -> None:
    with pytest.raises(ValueError, match="device 'tpu'"):
        Workload(run=print, device="tpu")
    with pytest.raises(ValueError, match="units 0"):
        Workload(run=print, units=0)


@pytest.mark.gpu
def test_a_cuda_workload_is_measured_with_its_memory() -> None:
    x = torch.randn(1 << 24, device="cuda")

    system = Counting(check=None, run=lambda: x.mul(1.0), device="cuda")
    for timing in ("eager", "graph"):
        for l2 in ("warm", "cold"):
            record = CaseRun(case(timing=timing, l2=l2), QUICK).record(system)
            assert record.status == "ok", record.reason
            assert record.peak_memory_bytes is not None
            assert record.peak_memory_bytes >= 2 * x.nbytes
            assert record.environment["gpu"]["after"]["sm_clock_mhz"] > 0
            assert len(record.throttled) == len(record.samples_ms)


def test_the_first_check_may_add_metrics() -> None:
    metrics = {"parameters": 7.0}

    def check() -> Checks:
        metrics["total_variation_mean"] = 0.1
        return Checks([Check.at_most("error", 0.0, 1.0)])

    record = CaseRun(case(), QUICK).record(Counting(check=check, metrics=metrics))
    assert record.status == "ok", record.reason
    assert record.metrics["total_variation_mean"] == 0.1


@pytest.mark.parametrize(
    ("tokens", "status"), [(2 * (8 + 128), "ok"), (2 * (8 + 4), "incorrect"), (10**6, "incorrect")]
)
def test_tokens_of_a_request_are_prompt_and_new_tokens(tokens: int, status: str) -> None:
    system = Counting(check=None, run=lambda: None, tokens=tokens)
    requested = replace(case(), phase="request", batch=2, context=8)
    assert CaseRun(requested, QUICK).record(system).status == status
    few = replace(requested, options=(("steps", 4),))
    assert (CaseRun(few, QUICK).record(system).status == "ok") is (tokens == 2 * (8 + 4))


def test_both_checks_of_a_case_are_recorded_together() -> None:

    def with_timed_error(error: float) -> Counting:
        checks = Checks([Check.at_most("timed_error", error, 1.0)])
        return Counting(run=torch.ones(2).clone, timed_check=lambda rng: lambda outputs, calls: checks)

    both = CaseRun(case(), QUICK).record(with_timed_error(0.0))
    assert both.status == "ok", both.reason
    assert [check["name"] for check in both.check["checks"]] == ["error", "outputs_not_finite", "timed_error"]
    missed = CaseRun(case(), QUICK).record(with_timed_error(2.0))
    assert (missed.status, missed.samples_ms) == ("incorrect", [])
    assert missed.reason == "timed_error is 2, limit 1"
    early = Counting(timed_check=lambda rng: Checks([Check.at_most("timed_error", 0.0, 1.0)]))  # of another call
    assert "timed_check(rng) must return a function" in CaseRun(case(), QUICK).record(early).reason


@pytest.mark.parametrize(("tokens", "status"), [(1, "ok"), (1 << 20, "incorrect")])
def test_outputs_need_not_change_for_equal_inputs(tokens: int, status: str) -> None:
    inputs = {"ids": Input(torch.zeros(2, dtype=torch.long), "tokens", tokens, batch_axis=0)}
    record = CaseRun(case(), QUICK).record(Counting(check=None, run=torch.ones(2, 8).clone, inputs=inputs))
    assert record.status == status, record.reason
    assert ("outputs_unchanged_by_new_inputs" in record.reason) == (status == "incorrect")


def test_an_engine_without_a_check_is_noted() -> None:
    record = CaseRun(case("engine"), QUICK).record(Fake())
    assert record.check["unchecked"] == "the engine's outputs were not compared with a reference"


@pytest.mark.parametrize(("note", "recorded"), [(NO_ROOM, NO_ROOM), ("", NOT_COMPARED)])
def test_notes_of_a_check_are_recorded(note: str, recorded: str) -> None:
    system = Counting(run=torch.ones(2).clone, timed_check=lambda rng: lambda outputs, calls: Checks([], note))
    record = CaseRun(case(), QUICK).record(system)
    assert recorded in record.check["unchecked"]
