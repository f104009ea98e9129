"""Facts with a single value appear once on a page, other facts per machine or backend, settings per backend."""

from dataclasses import replace

import synthetic_records as synthetic

from harness.schema.case import Case
from harness.schema.record import Record
from reports.machines import machines
from reports.page.html import render

CASE = Case("mamba", "torch", "125m", "generate", 1, 0)


def record(settings=None, **environment):
    return Record(CASE, "skipped", "not here", settings=settings or {}, environment=environment)


def test_common_facts_stand_once_and_a_machine_names_only_what_differs():
    found = machines(
        [
            record(gpu={"name": "H100", "device_id": unit}, software={"torch": torch, "numpy": "2.3"})
            for unit, torch in (("a", "2.9"), ("b", "2.10"), ("a", "2.10"))
        ]
    )
    assert found.common == {"gpu": {"name": "H100"}, "software": {"numpy": "2.3"}}
    assert found.hardware == [({"device id": "a"}, 2), ({"device id": "b"}, 1)]
    assert found.backends == {("mamba", "torch"): {"torch": "2.9 or 2.10"}}
    assert found.versions == {"torch": "2.9 · 2.10"}


def test_a_reading_makes_no_machine():
    hot, cool = ({"name": "H100", "before": {"sm_clock_mhz": clock}} for clock in (1700, 1980))
    found = machines([record(gpu=hot, cpu={"others_share": 0.2}), record(gpu=cool, cpu={"others_share": 0.8})])
    assert found.hardware == [({}, 2)]
    assert found.common == {"gpu": {"name": "H100"}}


def test_a_package_that_some_records_lack_is_common_to_those_that_have_it():
    found = machines([record(software={"torch": "2.9", **each}) for each in ({"vllm": "0.22"}, {})])
    assert found.common["software"] == {"torch": "2.9", "vllm": "0.22"}
    assert found.backends == {}


def test_facts_carry_units_and_lists():
    gpu = {"memory_bytes": 85_520_809_984, "power_limit_w": 700.0, "links": ["a", {"b": 1}]}
    found = machines([record(gpu=gpu)])
    assert found.common["gpu"] == {"memory": "85.52 GB", "power limit": "700 W", "links": "a, {'b': 1}"}
    assert found.versions == {"Power limit": "700 W"}


def test_records_without_environment_are_left_out():
    assert machines([record()]).hardware == []


def test_a_backend_has_its_settings_once_and_many_values_are_counted():
    records = [record({"split": str(at), "largest_graph": ("512", "8192")[at % 2], "checked": "64"}) for at in range(4)]
    found = machines([*records, record()])
    assert found.backends == {("mamba", "torch"): {"split": "4 case-dependent values", "largest graph": "512 or 8192"}}


def test_a_page_has_the_settings():
    made = synthetic.of_suite("fig15-forward", synthetic.ok(CASE, 3.0, settings={"attention": "<b>fast</b>"}))
    assert "attention <b>&lt;b&gt;fast&lt;/b&gt;</b>" in render(made.records, made.catalogue)[0]
    bare = synthetic.of_suite("fig15-forward", synthetic.ok(CASE, 3.0))
    assert "Settings of each backend" not in render(bare.records, bare.catalogue)[0]


def test_a_page_of_one_machine_has_no_table_of_machines():
    cases = CASE, replace(CASE, batch=2)
    for units, is_there in (("ab", True), ("aa", False)):
        environments = [synthetic.environment(device_id=unit) for unit in units]
        records = [synthetic.ok(case, 3.0, environment=each) for case, each in zip(cases, environments, strict=True)]
        made = synthetic.of_suite("fig15-forward", *records)
        assert ("Machines (scrolls)" in render(made.records, made.catalogue)[0]) == is_there
