"""What the check of a timed call rests on: inputs nobody foresees, glimpses of all of a tensor, the right floor."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from harness_helpers import case

from harness.measure import inspection
from harness.measure.inspection import Inspector, _equal, _glimpse, floor_check
from harness.measure.system import Input, Workload

torch = pytest.importorskip("torch")


def test_inputs_cannot_be_foreseen() -> None:
    def drawn() -> list[int]:
        ids = torch.zeros(64, dtype=torch.long)
        Inspector(case(), Workload(run=print, inputs={"ids": Input(ids, "tokens", 1000)})).before_sample()
        return ids.tolist()

    assert drawn() != drawn()


def test_the_floor_is_the_longer_of_bytes_and_flops() -> None:
    for flops, size in ((1e12, 1.0), (1.0, 1e10)):
        known: dict[str, float | None] = {"flops": flops, "bytes": size, "product_tflops": 1.0, "copy_gbs": 10.0}  # 1 s
        workload = Workload(run=print, metrics=known)
        assert [bool(floor_check(workload, [9e3, ms])) for ms in (490.0, 510.0)] == [True, False]


@pytest.mark.parametrize("flops", [float("inf"), float("nan"), None])
def test_what_is_no_number_is_no_floor(flops: float | None) -> None:
    known = {"flops": flops, "bytes": 1e10, "product_tflops": 1.0, "copy_gbs": 10.0}
    assert not floor_check(Workload(run=print, metrics=known), [510.0])
    assert floor_check(Workload(run=print, metrics=known), [490.0])


@pytest.mark.parametrize("shape", [lambda x: x, lambda x: x.view(50, 100).T], ids=["contiguous", "strided"])
def test_a_glimpse_sees_all_of_a_large_tensor(shape: Callable[[Any], Any]) -> None:
    x = torch.zeros(5000)
    for part in (slice(1000), slice(2000, 3000), slice(4000, None)):
        y = x.clone()
        y[part] = 1
        assert not _equal(_glimpse(shape(x), 100), _glimpse(shape(y), 100))
        assert _glimpse(shape(y), 100).numel() <= 200


def test_work_after_the_call_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "wait_for", lambda device: time.sleep(0.01))
    [late] = Inspector(case(), Workload(run=print, device="cuda"))._late()
    assert (late.name, late.passed) == ("seconds_of_work_after_the_call", False)


def test_what_a_call_takes_is_that_of_all_its_units() -> None:
    inspector = Inspector(case(), Workload(run=print, device="cuda", units=8))
    assert inspector._typical_ms([2.0] * 3) == 16.0
