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
from harness.workers.machine_load import CpuSeconds, is_loaded, load_between


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


@pytest.mark.parametrize(
    ("end", "load"),
    [
        ((14.0, 6.0, 4.0), {"others_share": 0.0, "idle_share": 0.6}),
        ((20.0, 0.0, 4.0), {"others_share": 0.6, "idle_share": 0.0}),
        (
            (14.0, 6.0, 5.0),
            {"others_share": 0.0, "idle_share": 0.6},
        ),  # ticks may make the own ones exceed the busy ones
        ((10.0, 0.0, 0.0), {}),
    ],
)
def test_load_is_a_share_of_the_time(end: CpuSeconds, load: dict[str, float]) -> None:
    assert load_between((10.0, 0.0, 0.0), end) == pytest.approx(load)  # (busy, idle, own) seconds


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
            times = machine_load.cpu_seconds(child.pid)
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
    busy, idle, _ = machine_load.cpu_seconds(os.getpid())
    assert (busy * tick, idle * tick) == (100, 500)
