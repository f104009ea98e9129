"""Does the report see which models of a comparison are unlike the others?"""

import pytest

from harness.case import Case
from harness.catalogue import Catalogue
from harness.record import Record
from reports.fairness import fairness, unchecked
from reports.page.html import render


def record(system, parameters=1_000_000, status="ok", size="1.3b", metrics=None, head=1.0, **settings):
    told = {"weights_dtype": "bfloat16", "kept_between_samples": "nothing", "token_ids": "new"} | settings
    timed = {"samples_ms": [1.0], "throttled": [False]} if status == "ok" else {"reason": "why"}
    gate = {"passed": True, "checks": [{"name": "head_rows_per_prompt", "value": head, "limit": 1, "passed": True}]}
    numbers = {"parameters": parameters, "vocabulary": 32000} | (metrics or {})
    case = Case(system, "torch", size, "forward", 1, 8)
    return Record(case, status, gate=gate, metrics=numbers, settings=told, **timed)


def unlike(*records):
    return {model.system: model.unlike for model in fairness(records, Catalogue())}


def test_models_alike_are_one_row_each():
    models = fairness([record("a"), record("a"), record("b", 1_070_000)], Catalogue())
    assert [(model.system, model.parameters, model.unlike) for model in models] == [
        ("a", 1_000_000, ""),
        ("b", 1_070_000, ""),
    ]
    assert models[0].head_rows_per_prompt == 1


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (record("b", 1_090_000), "parameters more than 8% off those of a (torch)"),
        (record("b", weights_dtype="float32"), "weights of different types"),
        (record("b", metrics={"vocabulary": 50277}), "different vocabularies"),
        (record("b", head=8.0), "the head runs on more than the last token"),
        (record("b", kept_between_samples="a prefix cache"), "keeps a prefix cache between samples"),
    ],
)
def test_what_sets_a_model_apart_is_said(other, said):
    assert unlike(record("a"), other)["b"] == said


def test_a_model_that_does_not_say_its_size_is_named():
    silent = record("b")
    del silent.metrics["parameters"]
    assert unlike(record("a"), silent)["b"] == "not checked: its parameters are not recorded"
    assert unlike(record("a"), silent)["a"] == ""
    models = fairness([record("a"), silent], Catalogue())
    assert unchecked(models, Catalogue()) == ["Not checked for equal terms, as its parameters are not recorded: b."]
    assert "Not checked for equal terms" in render([record("a"), silent], Catalogue())
    assert "Not checked for equal terms" not in render([record("a"), record("b")], Catalogue())


def test_sizes_are_compared_among_themselves():
    assert unlike(record("a"), record("b", 50_000, size="tiny")) == {"a": "", "b": ""}


def test_cases_without_a_timing_and_layers_are_in_no_comparison():
    layer = Record(Case("ttt-linear", "torch", "1.3b", "forward", 1, 8), "ok", samples_ms=[1.0], throttled=[False])
    assert fairness([record("a", status="oom"), layer], Catalogue()) == []


def test_the_page_has_a_row_for_each_model():
    page = render([record("a"), record("b", 1_090_000, token_ids="<new>")], Catalogue())
    section = page[page.index('id="fairness"') : page.index('id="machines"')]
    assert section.count("<tr>") == 3
    assert "1,090,000" in section
    assert "parameters more than 8% off those of a (torch)" in section
    assert "&lt;new&gt;" in section


def test_a_page_of_layers_alone_has_no_such_table():
    layer = Record(Case("ttt-linear", "torch", "1.3b", "forward", 1, 8), "ok", samples_ms=[1.0], throttled=[False])
    assert 'id="fairness"' not in render([layer], Catalogue())
