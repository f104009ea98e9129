"""Energy is computed from the mean power between refreshes of NVML's counter, which occur ten times per second."""

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from harness.measure.nvml import EnergyMeter


def metered(begin: float, seconds: float) -> EnergyMeter:
    """Return a meter that was read every 10 ms for `seconds`, from time `begin`. Its counter adds 50 J every 100 ms."""
    meter = EnergyMeter(None)
    with meter:
        for step in range(round(100 * seconds)):
            now = begin + step / 100
            meter.add(now, 500 * (int(10 * now + 1e-9) / 10))
    return meter


@pytest.mark.parametrize("begin", [3.0, 3.033, 3.05, 3.09])
@pytest.mark.parametrize("seconds", [1.0, 1.04, 1.37, 20.0])
def test_energy_is_independent_of_the_refresh_phase(begin: float, seconds: float) -> None:
    found = metered(begin, seconds).per_token(100, 0.9 * seconds)["energy_j_per_token"]
    assert found == pytest.approx(500 * 0.9 * seconds / 100, rel=0.02)  # energy of the samples alone


def test_a_block_with_few_refreshes_has_no_energy() -> None:
    assert metered(3.05, 0.5).per_token(100, 0.5) == {}
    assert metered(3.05, 1.0).per_token(0, 1.0) == {}
    assert metered(3.05, 0.05).per_token(100, 0.05) == {}


def test_samples_must_fill_the_block() -> None:
    assert metered(3.05, 2.0).per_token(100, 1.85) != {}
    assert metered(3.05, 2.0).per_token(100, 1.7) == {}


def test_a_refresh_after_a_late_read_has_no_time() -> None:
    late = metered(3.0, 1.2)
    late.add(4.5, 500 * 4.3)
    assert late.per_token(100, 1.4)["energy_j_per_token"] == pytest.approx(7, rel=0.02)
    for step in range(451, 520):
        late.add(step / 100, 500 * (int(step / 10 + 1e-9) / 10))
    assert late.per_token(100, 2.0)["energy_j_per_token"] == pytest.approx(10, rel=0.02)


@pytest.mark.parametrize("gpu", [None, SimpleNamespace(energy_j=lambda: None)])
def test_without_a_counter_there_is_no_energy(gpu: Any) -> None:
    with EnergyMeter(gpu) as meter:
        pass
    assert meter.per_token(10, 0.05) == {}


def test_a_thread_reads_during_the_block() -> None:
    reads = [100.0, 100.0, 130.0]
    all_read, found = Event(), list[tuple[float, float]]()

    def energy_j() -> float:
        (all_read.set() if len(reads) == 1 else None)
        return reads.pop(0) if len(reads) > 1 else reads[0]

    meter = EnergyMeter(SimpleNamespace(energy_j=energy_j))  # type: ignore[arg-type]
    meter.add = lambda now, joules: found.append((now, joules))  # type: ignore[method-assign]
    with meter:
        assert all_read.wait(60)
    assert [joules for _, joules in found[:3]] == [100.0, 100.0, 130.0]
    assert found == sorted(found)
    assert not meter._thread.is_alive()
