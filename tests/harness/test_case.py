import itertools
from dataclasses import dataclass

import pytest
from harness_helpers import case
from pydantic import ValidationError

from harness.schema.case import Case

BASE = {
    "system": "ttt-linear",
    "backend": "torch",
    "size": "1.3b",
    "phase": "generate",
    "batch": 16,
    "context": 2048,
}


def test_round_trip() -> None:
    original = Case(**BASE, options=(("mini_batch", 16), ("form", "dual"), ("part", 0.5), ("causal", True)))
    assert Case(**original.to_dict()) == original
    assert Case(**original.to_dict()).key == original.key


def test_order_of_options_does_not_matter() -> None:
    pairs = [("a", 1), ("b", "x"), ("c", 2.0)]
    orders = [Case(**BASE, options=order) for order in itertools.permutations(pairs)]
    assert len(set(orders)) == len({each.key for each in orders}) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 17},
        {"context": 0},
        {"phase": "forward"},
        {"dtype": "float32"},
        {"state_dtype": "bfloat16"},
        {"timing": "graph"},
        {"l2": "cold"},
        {"options": (("form", "dual"),)},
    ],
)
def test_every_field_tells_cases_apart(change: dict) -> None:
    assert Case(**(BASE | change)).key != Case(**BASE).key


def test_the_key_of_a_case_stays() -> None:
    """The expected key is a literal, because records of earlier runs are found by their keys."""
    assert Case(**BASE).key == "6e3182160b984326"
    full = Case(**BASE, dtype="float32", state_dtype="float32", timing="graph", l2="cold", options=(("steps", 128),))
    assert full.key == "42760f96dd889729"


def test_a_new_field_at_its_default_changes_no_key() -> None:
    @dataclass(frozen=True)
    class LaterCase(Case):
        parallel: str = "none"

    assert LaterCase(**BASE).key == Case(**BASE).key
    assert LaterCase(**BASE, parallel="tensor").key != Case(**BASE).key


def test_neither_a_default_nor_a_suite_is_in_the_key() -> None:
    defaults = {"dtype": "bfloat16", "state_dtype": "", "timing": "eager", "l2": "warm", "options": ()}
    assert Case(**BASE, **defaults).to_dict() == BASE
    assert Case(**BASE, **defaults).key == Case(**BASE).key
    with pytest.raises(ValidationError, match="suite"):
        Case(**(BASE | {"suite": "fig15"}))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": 1 << 63}, "batch"),
        ({"phase": "reforward"}, "phase"),
        ({"system": ""}, "system"),
        ({"options": {"a": 1 << 63}}, "options"),
        ({"options": {"a": -(1 << 63)}}, "options"),
        ({"options": 3}, "options"),
        ({"options": {"a": [1]}}, "options"),
        ({"options": {"a": float("nan")}}, "options"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_errors_name_the_field(change: dict, field: str) -> None:
    with pytest.raises(ValidationError) as error:
        Case(**(BASE | change))
    assert [each["loc"][0] for each in error.value.errors()] == [field]


def test_option_and_label() -> None:
    it = case("work", l2="cold")
    assert it.option("do") == "work"
    assert it.option("form", "primal") == "primal"
    assert it.label == "fake/cpu tiny forward B=2 T=8 bfloat16 eager cold do=work"
    assert "state" not in case(state_dtype="bfloat16").label
