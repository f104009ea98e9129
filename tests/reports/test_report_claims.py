"""Is each claim of the paper judged where the run can judge it, and only there?"""

import pytest
from headline_records import SLOW, forward, said, spread


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [
        (
            {2048: 1.0, 8192: 5.0, 16384: 8.0},
            "holds at 8k to 16k: TTT-Linear is 1.25 to 2.00 times as fast as Transformer",
        ),
        ({8192: 3.0, 16384: 8.0}, "does not hold at 8k: TTT-Linear is 0.750 to 2.00 times as fast as Transformer"),
        ({8192: 3.0, 16384: 3.0}, "does not hold at 8k to 16k: TTT-Linear is 0.750 times"),
    ],
)
def test_the_papers_claim_is_held_against_the_contexts_that_it_is_about(theirs, verdict):
    found = " ".join(said(*forward({2048: 4.0, 8192: 4.0, 16384: 4.0}), *forward(theirs, *SLOW)))
    claim = "TTT-Linear is faster than the Transformer from 8k tokens on"
    assert f"“{claim}” {verdict}" in found


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [
        ({8192: 5.0}, "holds at 8k: TTT-Linear is 1.25 times as fast as Transformer."),
        ({16384: 6.0, 32768: 8.0}, "holds at 16k to 32k: TTT-Linear is 1.50 to 2.00 times"),
        ({8192: 5.0, 32768: 8.0}, "holds at 8k and 32k: TTT-Linear is 1.25 to 2.00 times"),
        ({8192: 5.0, 16384: 6.0, 32768: 8.0}, "holds at 8k to 32k: TTT-Linear is 1.25 to 2.00 times"),
    ],
)
def test_a_verdict_says_where_it_was_judged(theirs, verdict):
    found = " ".join(said(*forward(dict.fromkeys((2048, 8192, 16384, 32768), 4.0)), *forward(theirs, *SLOW)))
    assert f"from 8k tokens on” {verdict}" in found


def test_a_claim_about_smaller_contexts_than_were_tried_is_judged_at_those_that_were():
    found = " ".join(said(*forward({16384: 4.0, 32768: 4.0}), *forward({16384: 5.0, 32768: 8.0}, *SLOW)))
    assert "from 8k tokens on” holds at 16k to 32k: TTT-Linear is 1.25 to 2.00 times" in found


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [
        (
            (5.0, 8.0),
            "holds at 16k and is not decided at 8k: TTT-Linear is 2.00 times as fast as Transformer.",
        ),
        ((3.0, 1.0), "does not hold at 16k and is not decided at 8k: TTT-Linear is 0.250 times"),
        ((5.0, 5.0), "is not decided at 8k to 16k."),
    ],
)
def test_a_claim_is_not_judged_where_the_two_are_not_told_apart(theirs, verdict):
    contexts = (8192, 16384)
    few = spread(dict(zip(contexts, theirs, strict=True)), 0.0, *SLOW, count=3)
    found = " ".join(said(*forward(dict.fromkeys(contexts, 4.0)), *few))
    assert f"from 8k tokens on” {verdict}" in found


def test_a_claim_that_the_run_cannot_judge_is_left_out():
    found = " ".join(said(*forward({2048: 4.0}), *forward({2048: 1.0}, *SLOW)))
    assert "paper's" not in found


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [(3.5, "does not hold at 2k"), (3.7, "holds at 2k"), (4.3, "holds at 2k"), (4.5, "is exceeded at 2k")],
)
def test_a_match_may_be_a_little_slower_and_much_faster_is_more(theirs, verdict):
    found = " ".join(said(*forward({2048: 4.0}), *forward({2048: theirs}, "mamba", "mamba-ssm")))
    assert f"“TTT-Linear matches Mamba” {verdict}" in found
