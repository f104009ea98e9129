"""Parts of the check of a timed call: fresh inputs, compared outputs, the roofline bound."""

import time
from dataclasses import replace

import pytest
from fake_clock import FakeClock
from harness_helpers import case

from harness.measure import inspection
from harness.measure.inspection import CallChecker, _rows, claim_checks, fill, lower_bound_check, shape_checks
from harness.measure.system import Input, Workload

torch = pytest.importorskip("torch")


def test_inputs_are_random() -> None:
    def drawn() -> list[int]:
        ids = torch.zeros(64, dtype=torch.long)
        CallChecker(case(), Workload(run=print, inputs={"ids": Input(ids, "tokens", 1000)})).before_sample()
        return ids.tolist()

    assert drawn() != drawn()


def test_the_bound_is_the_longer_of_bytes_and_flops() -> None:
    for flops, size in ((1e12, 1.0), (1.0, 1e10)):
        known: dict[str, float | None] = {"flops": flops, "bytes": size, "product_tflops": 1.0, "copy_gbs": 10.0}  # 1 s
        workload = Workload(run=print, metrics=known)
        assert [bool(lower_bound_check(case(), workload, [9e3, ms])) for ms in (490.0, 510.0)] == [True, False]


def test_a_short_interval_of_an_engine_may_follow_a_long_one() -> None:
    known: dict[str, float | None] = {"flops": 1e12, "product_tflops": 1.0}  # 1 s
    engine = Workload(run=print, metrics=known, engine_samples=lambda: iter(()))
    generate = replace(case(), phase="generate")
    assert not lower_bound_check(generate, engine, [1700.0, 300.0, 1010.0])
    assert lower_bound_check(generate, engine, [1700.0, 300.0, 490.0])
    assert lower_bound_check(case(), engine, [1700.0, 300.0, 1010.0])  # other samples are whole batches


@pytest.mark.parametrize("flops", [float("inf"), float("nan"), None])
def test_unknown_flops_leave_the_bound_of_bytes(flops: float | None) -> None:
    known = {"flops": flops, "bytes": 1e10, "product_tflops": 1.0, "copy_gbs": 10.0}
    assert not lower_bound_check(case(), Workload(run=print, metrics=known), [510.0])
    (check,) = lower_bound_check(case(), Workload(run=print, metrics=known), [490.0])
    assert check.name == "lower_bound_over_shortest_sample"


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_compared_elements_spread_over_every_sequence(monkeypatch: pytest.MonkeyPatch, axis: int) -> None:
    monkeypatch.setattr(inspection, "_COMPARED_ELEMENTS", 100)
    x = torch.zeros(8, 3, 1000).movedim(0, axis)
    for part in (slice(100), slice(400, 600), slice(-100, None)):
        y = x.clone()
        y.movedim(axis, 0)[5, :, part] = 1
        changed = (_rows(x, axis) != _rows(y, axis)).any(1).tolist()
        assert changed == [False] * 5 + [True, False, False]
        assert _rows(x, axis).numel() <= 200


@pytest.mark.parametrize(("tokens", "kept"), [(1, 0), (9, 4), (128, 64), (1000, 64)])
def test_early_tokens_exclude_the_last_64_or_half(tokens: int, kept: int) -> None:
    x, other = torch.zeros(2, tokens), torch.zeros(2)
    fill(Input(x, "normal", 1.0, 0, 1), 1, early_only=True)
    fill(Input(other, "normal", 1.0, 0), 1, early_only=True)
    assert (x == 0).sum(1).tolist() == [kept, kept]
    assert other.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("phase", "units", "shapes", "failed"),
    [
        ("forward", 1, [(2, 5)], []),
        ("forward", 16, [(16, 2)], ["units_off_the_case"]),
        ("request", 16, [(16, 2)], ["units_off_the_case"]),
        ("generate", 16, [(2, 5)], ["outputs_without_the_units"]),
        ("generate", 16, [(1, 2)] * 15, ["outputs_without_the_units"]),
        ("generate", 16, [(16, 5)], ["outputs_without_the_units"]),
        ("generate", 16, [(2, 16)], ["outputs_without_the_units"]),
        ("generate", 16, [(16, 2), (2, 5)], ["outputs_without_the_units"]),
        ("generate", 16, [(2, 5), (16, 2)], []),
        ("generate", 16, [(2, 5)] * 16, []),
    ],
)
def test_units_fit_phase_and_outputs(phase: str, units: int, shapes: list[tuple[int, ...]], failed: list[str]) -> None:
    of = case(phase=phase, batch=2, context=1)
    workload = Workload(run=print, units=units, tokens=2 * (1 + of.new_tokens) if phase == "request" else 2)
    outputs = tuple(torch.zeros(shape) for shape in shapes)
    assert [each.name for each in (*claim_checks(of, workload), *shape_checks(of, workload, outputs))] == failed


def test_work_after_the_call_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "wait_for", lambda device: time.sleep(0.01))
    [late] = CallChecker(case(), Workload(run=print, device="cuda"))._late()
    assert (late.name, late.passed) == ("seconds_of_work_after_the_call", False)


@pytest.mark.parametrize(("again_ms", "failed"), [(7.0, 0), (0.5, 1)])
def test_a_machine_that_became_busy_is_no_cache(again_ms: float, failed: int) -> None:
    x = torch.zeros(1)
    checker = CallChecker(case(batch=1), Workload(run=print, inputs={"x": Input(x, "normal")}))
    checker._check_cached(FakeClock([6.0, again_ms] * 12), 1.0)  # samples with new and with repeated inputs
    assert len(checker.failed_checks) == failed
