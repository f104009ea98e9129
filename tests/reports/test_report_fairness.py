"""Does the report name the models of a comparison that are unlike the others, and in which property?"""

from dataclasses import replace

import pytest

from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.record import Record
from reports.fairness import fairness, unequal
from reports.page.html import render


def record(system, parameters=1_000_000, status="ok", size="1.3b", metrics=None, head=1.0, **settings):
    told = {"weights_dtype": "bfloat16", "kept_between_samples": "nothing", "token_ids": "new"} | settings
    timed = {"samples_ms": [1.0], "throttled": [False]} if status == "ok" else {"reason": "why"}
    check = {"passed": True, "checks": [{"name": "head_rows_per_prompt", "value": head, "limit": 1, "passed": True}]}
    numbers = {"parameters": parameters, "vocabulary": 32000} | (metrics or {})
    case = Case(system, "torch", size, "forward", 1, 8)
    return Record(case, status, check=check, metrics=numbers, settings=told, **timed)


def unlike(*records):
    return {model.system: ", ".join(model.unlike) for model in fairness(records)}


def test_models_alike_are_one_row_each():
    models = fairness([record("a"), record("a"), record("b", 1_070_000)])
    assert [(model.system, model.parameters, model.unlike) for model in models] == [
        ("a", 1_000_000, ()),
        ("b", 1_070_000, ()),
    ]
    assert models[0].head_rows_per_prompt == 1


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (record("b", 1_090_000), "parameters more than 8% off the median"),
        (record("b", weights_dtype="float32"), "weights of another type"),
        (record("b", metrics={"vocabulary": 50277}), "another vocabulary"),
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
    models = fairness([record("a"), silent])
    assert unequal(models, Catalogue()) == ["Not checked for equal terms: b on torch."]


def test_each_model_that_is_unlike_is_named_once_in_the_opening():
    odd = [record("b", 1_090_000, head=8.0), record("b", 1_090_000, head=8.0, token_ids="others")]
    page = render([record("a"), *odd, record("c", head=8.0, metrics={"parameters": None})], Catalogue())
    opening = page.partition('class="reading"')[0]
    assert ">Not on equal terms with the others: a on torch, b on torch, c on torch.<" in opening
    assert "Not checked for equal terms" not in opening
    assert "equal terms:" not in render([record("a"), record("c")], Catalogue()).partition('class="reading"')[0]


def test_the_odd_one_of_several_is_named_and_not_the_others():
    odd = record("d", 400_000, metrics={"vocabulary": 100})
    said = unlike(record("a"), record("b"), record("c"), odd, record("e", metrics={"parameters": None}))
    silent = "not checked: its parameters are not recorded"
    assert said == {"a": "", "b": "", "c": "", "e": silent} | {
        "d": "parameters more than 8% off the median, another vocabulary"
    }


def test_sizes_are_compared_among_themselves():
    assert unlike(record("a"), record("b", 50_000, size="tiny")) == {"a": "", "b": ""}


def test_options_that_make_another_model_are_said():
    other = record("a", 1_010_000)
    other = replace(other, case=replace(other.case, options=(("backbone", "transformer"), ("compare", "float64"))))
    models = fairness([record("a"), other, replace(record("a"), case=other.case)])
    assert [(model.parameters, model.options) for model in models] == [
        (1_000_000, ()),
        (1_010_000, (("backbone", "transformer"),)),
        (1_000_000, (("backbone", "transformer"),)),
    ]
    assert models[1].words(Catalogue()) == "1.3b, backbone transformer"


def test_cases_that_ask_for_another_type_are_compared_among_themselves():
    exact = record("a", weights_dtype="float32")
    exact = replace(exact, case=replace(exact.case, dtype="float32"))
    models = fairness([record("a"), exact, record("b")])
    assert [(model.system, model.dtype, model.unlike) for model in models] == [
        ("a", "bfloat16", ()),
        ("b", "bfloat16", ()),
        ("a", "float32", ()),
    ]


def test_cases_without_a_timing_and_layers_are_in_no_comparison():
    layer = Record(Case("ttt-linear", "torch", "1.3b", "forward", 1, 8), "ok", samples_ms=[1.0], throttled=[False])
    assert fairness([record("a", status="oom"), layer]) == []


def test_the_page_has_a_row_for_each_model():
    page = render([record("a"), record("b", 1_090_000, token_ids="<new>")], Catalogue())
    section = page[page.index('id="fairness"') : page.index('id="machines"')]
    assert section.count("<tr>") == 3
    assert "1,090,000" in section
    assert "parameters more than 8% off the median" in section
    assert "&lt;new&gt;" in section
    assert '>Size</th><th scope="col">Unlike the others<' in section
    layer = Record(Case("ttt-linear", "torch", "1.3b", "forward", 1, 8), "ok", samples_ms=[1.0], throttled=[False])
    assert 'id="fairness"' not in render([layer], Catalogue())
