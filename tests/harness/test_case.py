import itertools
import subprocess
import sys
from dataclasses import dataclass

import pytest
from harness_helpers import ROOT, case

from harness.schema.case import Case, CaseError

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
    assert Case.from_dict(original.to_dict()) == original
    assert Case.from_dict(original.to_dict()).key == original.key


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
    """Literal: records of earlier runs are found by it."""
    assert Case(**BASE).key == "6e3182160b984326"
    full = Case(**BASE, dtype="float32", state_dtype="float32", timing="graph", l2="cold", options=(("steps", 128),))
    assert full.key == "42760f96dd889729"


def test_a_new_field_at_its_default_changes_no_key() -> None:
    @dataclass(frozen=True)
    class Later(Case):
        parallel: str = "none"

    assert Later(**BASE).key == Case(**BASE).key
    assert Later(**BASE, parallel="tensor").key != Case(**BASE).key


def test_neither_a_default_nor_a_suite_is_in_the_key() -> None:
    said = {"dtype": "bfloat16", "state_dtype": "", "timing": "eager", "l2": "warm", "options": ()}
    assert Case(**BASE, **said).to_dict() == BASE
    assert Case(**BASE, **said).key == Case(**BASE).key
    with pytest.raises(CaseError, match="unknown field 'suite'"):
        Case.from_dict(BASE | {"suite": "fig15"})


def test_key_is_the_same_in_another_process() -> None:
    code = f"from harness.schema.case import Case; print(Case(**{BASE!r}, options=(('b', 2), ('a', 'ü'))).key)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    key = Case(**BASE, options=(("a", "ü"), ("b", 2))).key
    assert other.stdout.strip() == key
    assert len(key) == 16
    int(key, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "'batch' is 0, must be at least 1"),
        ({"batch": True}, "'batch' is True, must be a whole number"),
        ({"context": -1}, "'context' is -1, must be at least 0"),
        ({"context": "8"}, "'context' is '8', must be a whole number"),
        ({"batch": 1 << 63}, "'batch' is beyond 2^63 - 1"),
        (
            {"options": {"a": 1 << 63}},
            "'options': 'a' is 9223372036854775808, must be text, a number of 64 bits or a bool",
        ),
        ({"phase": "train"}, "'phase' is 'train', must be one of forward, generate, request"),
        ({"timing": "guess"}, "'timing' is 'guess'"),
        ({"l2": "tepid"}, "'l2' is 'tepid'"),
        ({"system": ""}, "'system' is empty"),
        ({"size": None}, "'size' is None, must be text"),
        ({"options": {"a": [1]}}, "'options': 'a' is [1]"),
        ({"options": {"a": float("nan")}}, "'options': 'a' is nan"),
        ({"options": [("a", 1), ("a", 2)]}, "names an option twice"),
        ({"options": [("a",)]}, "'options' is [('a',)], must be an object or pairs of name and value"),
        ({"options": 5}, "'options' is 5, must be an object or pairs of name and value"),
        ({"options": [([], 1)]}, "'options': [] is 1"),
        ({"colour": "red"}, "unknown field 'colour'"),
    ],
)
def test_errors_name_the_field(change: dict, message: str) -> None:
    with pytest.raises(CaseError) as error:
        Case.from_dict(BASE | change)
    assert message in str(error.value)


def test_missing_field_and_other_types() -> None:
    with pytest.raises(CaseError, match="field 'batch' is missing"):
        Case.from_dict({name: value for name, value in BASE.items() if name != "batch"})
    with pytest.raises(CaseError, match="is list, must be an object"):
        Case.from_dict([])  # type: ignore[arg-type]


def test_option_and_label() -> None:
    it = case("work", l2="cold")
    assert it.option("do") == "work"
    assert it.option("form", "primal") == "primal"
    assert it.label == "fake/cpu tiny forward B=2 T=8 bfloat16 eager cold do=work"
