import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness_helpers import case
from profile_helpers import run_of

from harness.schema.profile import (
    Counters,
    Kernel,
    Profile,
    ProfileError,
    Range,
    RangeKernel,
    Timeline,
    profile_path,
    read_profile,
    write_profile,
)
from harness.schema.run_file import RunError
from harness.schema.work import Work

KERNELS = (
    Kernel("gemm", 4, 60.0, 32, 1024, Counters(2, 15.0, 1e6, 2e6, 3e9, {"sm": 40.0}, 55.0, 10.0, {"barrier": 0.4})),
    Kernel("copy", 2, 20.0),
)
RANGES = (Range(("forward", "layer 0"), (RangeKernel(0, 2, 30.0), RangeKernel(1, 1, 10.0))),)
TIMELINE = Timeline((0, 1, 0), (0, -1, 0), (0, 500, -20), (15000, 10000, 15000), 3)
PROFILE = Profile(
    2,
    100.0,
    80.0,
    12.0,
    KERNELS,
    RANGES,
    {"copy_gbs": 3e3},
    {"products": Work(6e9, 2e6)},
    TIMELINE,
    case=case(),
    tools={"ncu": "2025.3"},
    notes=("a note",),
)


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    write_profile(run.folder, PROFILE)
    assert run.profiles() == {case().key: PROFILE}
    assert (PROFILE.idle_us, PROFILE.unit_ms) == (20.0, 0.05)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"busy_us": 101.0}, "kernels ran for 101 us of a region of 100 us"),
        ({"kernels": [], "ranges": [], "timeline": {}}, "no kernels"),
        ({"kernels": [replace(KERNELS[0], time_us=-1.0)]}, "kernels.0.time_us: "),
        ({"status": "failed"}, "with kernels"),
        ({"status": "failed", "kernels": [], "ranges": [], "timeline": {}}, "without a reason"),
        ({"status": "odd"}, "status: "),
        ({"work": {"products": {"flops": -1, "bytes": 0}}}, "work of -1 FLOPs"),
    ],
)
def test_a_contradictory_profile_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ProfileError, match=why):
        Profile.from_values(json.loads(PROFILE.to_json()) | changes)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text[: len(text) // 2], "is not JSON"),
        (lambda text: "[]", "Input should be an object"),
        (lambda text: text.replace('"schema":1', '"schema":0'), "schema: Input should be 1.*profile again"),
        (lambda text: text.replace("ttt-bench profile", "x"), "tool: Input should be 'ttt-bench profile'"),
        (lambda text: text.replace('"units"', '"surprise":1,"units"'), "surprise"),
        (lambda text: text.replace('"batch":2', '"batch":3'), "belongs to another case"),
    ],
)
def test_a_broken_profile_is_refused(tmp_path: Path, change: Any, why: str) -> None:
    write_profile(tmp_path, PROFILE)
    path = profile_path(tmp_path, case().key)
    path.write_text(change(path.read_text()))
    with pytest.raises(ProfileError, match=why) as error:
        read_profile(path)
    assert "\n" not in str(error.value)


def test_counters_of_an_earlier_version_are_ignored(tmp_path: Path) -> None:
    write_profile(tmp_path, PROFILE)
    path = profile_path(tmp_path, case().key)
    path.write_text(path.read_text().replace('"occupancy"', '"conflicts":0.1,"occupancy"'))
    assert "conflicts" in path.read_text()
    assert read_profile(path) == PROFILE


def test_a_profile_of_a_newer_version_asks_for_that_version(tmp_path: Path) -> None:
    write_profile(tmp_path, PROFILE)
    path = profile_path(tmp_path, case().key)
    path.write_text(path.read_text().replace('"schema":1', '"schema":2,"news":[]'))
    with pytest.raises(ProfileError, match="update ttt-bench") as error:
        read_profile(path)
    assert "delete" not in str(error.value)


def test_a_profile_of_an_unplanned_case_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    write_profile(run.folder, replace(PROFILE, case=case(batch=9)))
    with pytest.raises(RunError, match="belongs to no case of the run"):
        run.profiles()
