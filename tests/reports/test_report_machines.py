"""Are equal environments shown once, with the range of readings?"""

from harness.schema.case import Case
from harness.schema.record import Record
from reports.machines import machines


def record(system="mamba", **environment):
    case = Case(system, "torch", "125m", "generate", 1, 0)
    return Record(case, "skipped", "not here", environment=environment)


def test_readings_span_all_records_of_a_machine():
    hot = {"sm_clock_mhz": 1700, "throttle_reasons": ["heat"]}
    warm = {"before": {"sm_clock_mhz": 1980, "throttle_reasons": []}, "after": hot}
    cool = {"before": {"sm_clock_mhz": 1800, "throttle_reasons": []}, "after": {"sm_clock_mhz": None}}
    [machine] = machines(
        [record(gpu=warm, cpu={"others_share": 0.2}), record("ttt-mlp", gpu=cool, cpu={"others_share": 0.8})]
    ).hardware
    others = {"cpu others share": "0.2 to 0.8"}
    assert machine.readings == others | {"gpu sm clock": "1700 MHz to 1980 MHz", "gpu throttle reasons": "heat"}
    assert (machine.records, machine.systems) == (2, [("mamba", "torch"), ("ttt-mlp", "torch")])


def test_common_facts_stand_once_and_a_machine_names_only_what_differs():
    found = machines(
        [
            record(gpu={"name": "H100", "device_id": unit}, software={"torch": torch, "numpy": "2.3"})
            for unit, torch in (("a", "2.9"), ("b", "2.10"), ("a", "2.10"))
        ]
    )
    assert found.common == {"gpu": {"name": "H100"}, "software": {"numpy": "2.3"}}
    assert [(machine.facts, machine.records) for machine in found.hardware] == [
        ({"device id": "a"}, 2),
        ({"device id": "b"}, 1),
    ]
    assert [(machine.facts, machine.records) for machine in found.software] == [
        ({"torch": "2.9"}, 1),
        ({"torch": "2.10"}, 2),
    ]
    assert found.versions == {"torch": "2.9 · 2.10"}


def test_a_random_name_makes_no_machine():
    named = [
        record(variables={"VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME": f"vllm_mm_{at}", "OMP_NUM_THREADS": "2"})
        for at in "ab"
    ]
    found = machines(named)
    assert [machine.records for machine in found.hardware] == [2]
    assert found.common == {"variables": {"OMP NUM THREADS": "2"}}


def test_a_package_that_some_records_lack_is_common_to_those_that_have_it():
    found = machines([record(software={"torch": "2.9", **each}) for each in ({"vllm": "0.22"}, {})])
    assert found.common["software"] == {"torch": "2.9", "vllm": "0.22"}
    assert len(found.software) == 1


def test_facts_carry_units_and_lists():
    gpu = {"memory_bytes": 85_520_809_984, "power_limit_w": 700.0, "links": ["a", {"b": 1}]}
    found = machines([record(gpu=gpu)])
    assert found.common["gpu"] == {"memory": "85.52 GB", "power limit": "700 W", "links": "a, {'b': 1}"}
    assert found.versions == {"Power limit": "700 W"}


def test_records_without_environment_are_left_out():
    assert machines([record()]).hardware == []
