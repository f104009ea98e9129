"""What a GPU's profilers left, pruned to one layer, is read; and pruning leaves what is read and nothing else."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from profile_helpers import ncu_table, nsys_database
from trace_events import GPU_TRACE

from harness.profiling.tools import kineto, ncu, nsys
from harness.profiling.tools.trace import found_in
from tests.harness.make_profile_fixtures import FIXTURES, LAUNCHES, prune_database, pruned_table, pruned_trace


def fixture(name: str) -> Path:
    path = FIXTURES / name
    if not path.exists():
        pytest.skip(f"{name} is not made yet: python -m tests.harness.make_profile_fixtures on an H100")
    return path


def test_a_pruned_table_is_read_as_the_whole() -> None:
    whole = ncu_table("_dual", "gemm", launches=4)
    pruned = pruned_table(whole)
    assert ncu.read(pruned) == ncu.read(whole)
    assert "host" not in pruned
    assert len(pruned_table(ncu_table("_dual", launches=50)).splitlines()) == 2 + LAUNCHES


def test_a_pruned_database_is_read_as_the_whole(tmp_path: Path) -> None:
    whole = nsys_database(tmp_path / "whole.sqlite")
    with sqlite3.connect(whole) as database:
        database.execute("INSERT INTO StringIds VALUES (99, '/home/somebody/secret')")
        database.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        database.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'a-host')")
        database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY")
    prune_database(whole, tmp_path / "pruned.sqlite")
    assert nsys.read(tmp_path / "pruned.sqlite") == nsys.read(whole)
    content = (tmp_path / "pruned.sqlite").read_bytes()
    assert b"secret" not in content
    assert b"a-host" not in content


def test_a_pruned_trace_is_read_as_the_whole() -> None:
    trace = [event for event in GPU_TRACE if event.get("cat") != "gpu_memcpy"]
    named = [*trace, {"ph": "M", "name": "process_name", "args": {"name": "/home/somebody"}}]
    pruned = pruned_trace(json.dumps({"traceEvents": named}).encode())
    assert kineto.launched(kineto.events_of(pruned.encode()), "cuda") == kineto.launched(trace, "cuda")
    assert "somebody" not in pruned


def test_the_counters_of_an_h100_are_read() -> None:
    found = ncu.read(fixture("h100.ncu.csv").read_text())
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
        database.executescript(fixture("h100.nsys.sql").read_text())
    timed, ranged = nsys.read(export)
    assert len(timed) == len(ranged) == LAUNCHES // 2
    assert {each.path for each in ranged} == {("prefill", "layer 0"), ("prefill", "layer 0", "operator")}
    assert {each.path for each in timed} == {("timed", "layer 23"), ("timed",)}
    assert all(each.registers for each in ranged)


def test_the_trace_of_an_h100_is_read() -> None:
    launched = kineto.launched(kineto.events_of(fixture("h100.trace.json").read_bytes()), "cuda")
    region = found_in(launched, launched)
    assert 1 <= len(launched) <= LAUNCHES
    assert 0 < region["busy_us"] <= region["region_us"]
