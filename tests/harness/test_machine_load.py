"""The share of CPU time that other processes took during a case."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness_helpers import wait_for

from harness.workers import machine_load
from harness.workers.machine_load import LoadMeter, is_loaded


def environment(others: Any, idle: Any) -> dict[str, Any]:
    return {"cpu": {"others_share": others, "idle_share": idle}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (environment(0.5, 0.0), True),
        (environment(0.11, 0.09), True),
        (environment(0.5, 0.5), False),  # others work, on cores that nobody needs
        (environment(0.05, 0.0), False),  # the cores are busy with the case itself
        ({"cpu": None}, False),
        ({}, False),
    ],
)
def test_is_loaded(found: dict[str, Any], expected: bool) -> None:
    assert is_loaded(found) is expected


def readings(monkeypatch: pytest.MonkeyPatch, *times: tuple[float, float, float]) -> LoadMeter:
    answers = iter(times)
    monkeypatch.setattr(machine_load, "_cpu_seconds", lambda pid: next(answers))
    return LoadMeter(1)


@pytest.mark.parametrize(
    ("after", "others", "idle"),
    [((14.0, 6.0, 4.0), 0.0, 0.6), ((20.0, 0.0, 4.0), 0.6, 0.0), ((14.0, 6.0, 5.0), 0.0, 0.6)],
)
def test_shares_of_the_time_since_it_was_made(
    monkeypatch: pytest.MonkeyPatch, after: tuple[float, float, float], others: float, idle: float
) -> None:
    """(busy, idle, own) seconds; ticks may make the own ones exceed the busy ones."""
    start = (10.0, 0.0, 0.0)
    meter = readings(monkeypatch, start, after)
    assert meter.reading() == pytest.approx({"others_share": others, "idle_share": idle})


def test_a_clock_tick_without_load_has_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    assert readings(monkeypatch, (1.0, 1.0, 0.0), (1.0, 1.0, 0.0)).reading() == {}


def test_own_time_is_that_of_a_process_and_its_descendants_dead_or_alive() -> None:
    script = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.15: pass"])
print(flush=True)
subprocess.run([sys.executable, "-c", "while True: pass"])
"""
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    try:
        child.stdout.readline()

        def own() -> float:
            times = machine_load._cpu_seconds(child.pid)
            return times[2]

        ended = own()
        assert ended >= 0.1
        assert wait_for(lambda: own() - ended >= 0.1)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def test_a_core_that_waits_for_a_disk_is_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    core, tick = min(os.sched_getaffinity(0)), os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text(f"cpu 9 9 9 9 9 9 9 9 9 9\ncpu{core} 100 0 0 200 300 0 0 0 50 0\n")
    monkeypatch.setattr(machine_load, "_STAT", str(tmp_path / "stat"))
    busy, idle, _ = machine_load._cpu_seconds(os.getpid())
    assert (busy * tick, idle * tick) == (100, 500)
