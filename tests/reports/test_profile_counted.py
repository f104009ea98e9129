"""Does the page show for a kernel what Nsight Compute shows?"""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from small_profiles import COUNTERS, case, profile, run_with, section_of

from harness.schema.profile import Kernel
from reports.profiles.counted import Counted, counted_kernels

# A layer norm on an H100.
NORM = replace(
    COUNTERS,
    time_us=32.448,
    dram_bytes=68_445_952.0,
    l2_bytes=120_031_264.0,
    use={"sm": 51.94, "l2": 40.0, "dram": 62.0, "memory": 62.99, "tensor": 0.0},
    occupancy=88.2,
    stalls={"long_scoreboard": 0.5, "selected": 0.2, "sleeping": 0.004, "wait": 0.296},
    memory={"dram_read": 34_985_472.0, "dram_write": 33_460_480.0, "l1_read": 67_108_864.0, "l1_write": 33_816_640.0},
    l1_hit=17.55,
    occupancy_limit=100.0,
    blocks_per_sm={"blocks": 32, "registers": 16, "shared": 28, "warps": 16},
    grid=4096,
    block=128,
)


def shown(counters=NORM) -> Counted:
    return Counted(Kernel("norm", 1, 32.448, 32, 1048, counters), counters, 1.0, "")


def test_speed_of_light_is_of_compute_and_of_memory() -> None:
    assert shown().speed_of_light == [("Compute", 51.94), ("Memory", 62.99)]
    # A profile of before has the L2 and DRAM alone.
    assert shown(replace(NORM, use={"sm": 5.0, "l2": 40.0, "dram": 62.0})).speed_of_light[1] == ("Memory", 62.0)
    assert shown(replace(NORM, use={})).speed_of_light == []


def test_warp_states_go_from_the_longest_to_one_percent() -> None:
    assert shown().warp_states == [
        ("long scoreboard", 50.0, "data from memory or the L2"),
        ("wait", pytest.approx(29.6), "the fixed latency of instructions"),
        ("selected", 20.0, "issuing"),
    ]


def test_memory_is_told_by_level_and_way() -> None:
    assert shown().memory == [
        ("DRAM", ["35.0", "33.5", "68.4", "2,110", ""]),
        ("L2", ["", "", "120", "3,700", "72.0"]),
        ("L1", ["67.1", "33.8", "101", "3,110", "17.6"]),
    ]
    assert [level for level, _ in shown(replace(NORM, memory={})).memory] == ["DRAM", "L2"]


@pytest.mark.parametrize(
    ("changes", "occupancy"),
    [
        ({}, "88% achieved, 100% theoretical, limited by registers and warps"),
        ({"blocks_per_sm": {"shared": 1, "warps": 2}}, "88% achieved, 100% theoretical, limited by shared memory"),
        ({"blocks_per_sm": {}, "occupancy_limit": None}, "88% achieved"),
    ],
)
def test_occupancy_has_its_limit(changes: dict, occupancy: str) -> None:
    facts = dict(shown(replace(NORM, **changes)).facts)
    assert facts == {
        "Launch": "4,096 blocks of 128 threads",
        "Occupancy": occupancy,
        "Registers": "32 per thread",
        "Shared memory": "1.0 kB per block",
        "Bank conflicts": "2% of wavefronts",
        "Tensor cores": "busy 0% of the time",
        "Counted launches": "2 of 32.4 µs",
    }


def test_kernels_that_were_counted_and_take_a_percent_are_shown(tmp_path: Path) -> None:
    kernels = [Kernel(f"k{number}", 1, 100.0, counters=NORM) for number in range(13)]
    rest = (Kernel("uncounted", 1, 100.0), Kernel("short", 1, 9.0, counters=NORM))
    found = profile(case(), *kernels, *rest)
    assert [each.name for each in counted_kernels(found)] == [f"k{number}" for number in range(12)]
    one = profile(case(), Kernel("norm", 1, 990.0, counters=NORM), *rest)
    html = section_of(run_with(tmp_path, one)).html
    assert html.count('<details class="counted">') == 1
    assert re.search(r'<th scope="row">Compute</th><td>.*width="51.9".*52%</td>', html)
