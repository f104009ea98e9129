"""Are equal environments told once, with the span of what changed by itself?"""

import synthetic_records as synthetic

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
    [machine] = machines([record(gpu=warm), record("ttt-mlp", gpu=cool)])
    assert machine.readings == {"gpu sm clock": "1700 MHz to 1980 MHz", "gpu throttle reasons": "heat"}
    assert (machine.records, machine.systems) == (2, [("mamba", "torch"), ("ttt-mlp", "torch")])


def test_how_busy_others_were_is_a_reading():
    loads = [record(cpu={"cores": 2, "others_share": share, "idle_share": 0.1}) for share in (0.2, 0.8)]
    [machine] = machines(loads)
    assert machine.records == 2
    assert machine.readings["cpu others share"] == "0.2 to 0.8"


def test_the_order_of_names_makes_no_machine():
    software = ({"torch": "2.9", "numpy": "2.3"}, {"numpy": "2.3", "torch": "2.9"})
    gpus = ({"name": "H100", "before": {"power_w": 300}}, {"before": {"power_w": 310}, "name": "H100"})
    first, second = ({"software": each, "gpu": gpu} for each, gpu in zip(software, gpus, strict=True))
    [machine] = machines([record(device="A", **first), record(device="A", **dict(reversed(second.items())))])
    assert (machine.records, machine.apart) == (2, [])


def test_another_version_or_commit_is_another_machine():
    found = machines(
        [
            record(device="A", software={"torch": "2.9"}, dirty=False),
            record(device="A", software={"torch": "2.10"}, dirty=False),
            record(device="A", software={"torch": "2.9"}, dirty=False),
        ]
    )
    assert [machine.records for machine in found] == [2, 1]
    assert [machine.apart for machine in found] == [["torch 2.9"], ["torch 2.10"]]
    assert found[1].facts == {"": {"device": "A", "dirty": "no"}, "software": {"torch": "2.10"}}


def test_what_a_machine_lacks_sets_it_apart_only_where_nothing_else_does():
    software = ({"vllm": "0.22"}, {"mamba-ssm": "2.3"}, {})
    found = machines([record(device="A", software={"torch": "2.9", **each}) for each in software])
    assert [machine.apart for machine in found] == [["vllm 0.22"], ["mamba-ssm 2.3"], ["vllm –", "mamba-ssm –"]]


def test_facts_carry_units_and_lists():
    gpu = {"memory_bytes": 85_520_809_984, "power_limit_w": 700.0, "links": ["a", {"b": 1}]}
    [machine] = machines([record(gpu=gpu)])
    assert machine.facts["gpu"] == {"memory": "85.52 GB", "power limit": "700 W", "links": "a, {'b': 1}"}


def test_records_without_environment_are_left_out():
    assert machines([record()]) == []


def test_synthetic_run_is_one_machine():
    [machine] = machines(synthetic.paper().records)
    assert machine.name == synthetic.H100
    assert "gpu temperature" in machine.readings
