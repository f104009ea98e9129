"""The report's fairness table has a row per model, with properties such as the number of parameters and the dtype."""

from dataclasses import replace

from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.record import Record
from reports.fairness import fairness
from reports.page.html import render


def record(system, parameters=1_000_000, status="ok", size="1.3b", metrics=None, head=1.0, **settings):
    properties = {"weights_dtype": "bfloat16", "kept_between_samples": "nothing", "token_ids": "new"} | settings
    timed = {"samples_ms": [1.0], "throttled": [False]} if status == "ok" else {"reason": "why"}
    check = {"passed": True, "checks": [{"name": "head_rows_per_prompt", "value": head, "limit": 1, "passed": True}]}
    numbers = {"parameters": parameters, "vocabulary": 32000} | (metrics or {})
    case = Case(system, "torch", size, "forward", 1, 8)
    return Record(case, status, check=check, metrics=numbers, settings=properties, **timed)


def test_equal_models_are_one_row():
    models = fairness([record("a"), record("a"), record("b", 1_070_000)])
    assert [(model.system, model.parameters) for model in models] == [("a", 1_000_000), ("b", 1_070_000)]
    assert models[0].head_rows_per_prompt == 1


def test_options_that_change_the_model_are_listed():
    other = record("a", 1_010_000)
    other = replace(other, case=replace(other.case, options=(("backbone", "transformer"), ("compare", "float64"))))
    models = fairness([record("a"), other, replace(record("a"), case=other.case)])
    assert [(model.parameters, model.options) for model in models] == [
        (1_000_000, ()),
        (1_010_000, (("backbone", "transformer"),)),
        (1_000_000, (("backbone", "transformer"),)),
    ]
    assert models[1].words(Catalogue()) == "1.3b, backbone transformer"


def test_models_of_one_dtype_are_listed_together():
    exact = record("a", weights_dtype="float32")
    exact = replace(exact, case=replace(exact.case, dtype="float32"))
    models = fairness([record("a"), exact, record("b")])
    assert [(model.system, model.dtype) for model in models] == [
        ("a", "bfloat16"),
        ("b", "bfloat16"),
        ("a", "float32"),
    ]


def test_cases_without_a_timing_and_layers_are_in_no_comparison():
    layer = Record(Case("ttt-linear", "torch", "1.3b", "forward", 1, 8), "ok", samples_ms=[1.0], throttled=[False])
    assert fairness([record("a", status="oom"), layer]) == []


def test_the_page_has_a_row_for_each_model():
    page = render([record("a"), record("b", 1_090_000, token_ids="<new>")], Catalogue())[0]
    section = page[page.index('id="fairness"') : page.index('id="machines"')]
    assert section.count("<tr>") == 3
    assert "1,090,000" in section
    assert "&lt;new&gt;" in section
    layer = Record(Case("ttt-linear", "torch", "1.3b", "forward", 1, 8), "ok", samples_ms=[1.0], throttled=[False])
    assert 'id="fairness"' not in render([layer], Catalogue())[0]
