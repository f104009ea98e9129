"""The readers parse profilers' reports of an H100, pruned to one layer."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from harness.profiling.tools import kineto, ncu, nsys
from harness.profiling.tools.trace import found_in
from tests.harness.make_profile_fixtures import FIXTURES, LAUNCHES


def test_the_counters_of_an_h100_are_read() -> None:
    found = ncu.read((FIXTURES / "h100.ncu.csv").read_text())
    assert 1 <= sum(each.launches for each in found.values()) <= LAUNCHES
    counted = max(found.values(), key=lambda each: each.time_us)
    assert counted.dram_bytes
    assert counted.operations
    assert set(counted.use) == {"sm", "l2", "dram", "tensor"}
    assert counted.occupancy
    assert sum(counted.stalls.values()) == pytest.approx(1.0)


def test_the_export_of_an_h100_is_read(tmp_path: Path) -> None:
    export = tmp_path / "h100.sqlite"
    with closing(sqlite3.connect(export)) as database:
        database.executescript((FIXTURES / "h100.nsys.sql").read_text())
    timed, ranged = nsys.read(export)
    assert len(timed) == len(ranged) == LAUNCHES // 2
    assert {each.path for each in ranged} == {("prefill", "layer 0"), ("prefill", "layer 0", "operator")}
    assert {each.path for each in timed} == {("timed", "layer 23"), ("timed",)}
    assert all(each.registers for each in ranged)


def test_the_trace_of_an_h100_is_read() -> None:
    launched = kineto.launched(kineto.events_of((FIXTURES / "h100.trace.json").read_bytes()), "cuda")
    region = found_in(launched, launched)
    assert 1 <= len(launched) <= LAUNCHES
    assert 0 < region["busy_us"] <= region["region_us"]
