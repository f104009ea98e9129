"""The report decides whether the paper's claims hold, fail or stay open."""

import pytest
from headline_records import SLOW, forward, headline_of, spread


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (
            {2048: 1.0, 8192: 5.0, 16384: 8.0},
            "holds at 8k to 16k: TTT-Linear is 1.25 to 2.00 times as fast as Transformer",
        ),
        ({8192: 3.0, 16384: 8.0}, "does not hold at 8k: TTT-Linear is 0.750 to 2.00 times as fast as Transformer"),
        ({8192: 3.0, 16384: 3.0}, "does not hold at 8k to 16k: TTT-Linear is 0.750 times"),
    ],
)
def test_a_claim_is_checked_at_its_contexts(theirs, expected):
    found = " ".join(headline_of(*forward({2048: 4.0, 8192: 4.0, 16384: 4.0}), *forward(theirs, *SLOW)))
    claim = "TTT-Linear is faster than the Transformer from 8k tokens on"
    assert f"“{claim}” {expected}" in found


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (
            (5.0, 8.0),
            "holds at 16k and is not decided at 8k: TTT-Linear is 2.00 times as fast as Transformer.",
        ),
        ((3.0, 1.0), "does not hold at 16k and is not decided at 8k: TTT-Linear is 0.250 times"),
        ((5.0, 5.0), "is not decided at 8k to 16k."),
    ],
)
def test_a_claim_is_not_decided_by_flagged_points_that_are_close(theirs, expected):
    contexts = (8192, 16384)
    few = spread(dict(zip(contexts, theirs, strict=True)), 0.0, *SLOW, count=3)
    found = " ".join(headline_of(*forward(dict.fromkeys(contexts, 4.0)), *few))
    assert f"from 8k tokens on” {expected}" in found


def test_contexts_with_one_between_them_are_listed():
    ours = forward(dict.fromkeys((8192, 16384, 32768), 4.0))
    found = " ".join(headline_of(*ours, *forward({8192: 5.0, 32768: 8.0}, *SLOW)))
    assert "from 8k tokens on” holds at 8k and 32k: TTT-Linear is 1.25 to 2.00 times" in found


def test_a_claim_without_its_contexts_is_omitted():
    found = " ".join(headline_of(*forward({2048: 4.0}), *forward({2048: 1.0}, *SLOW)))
    assert "paper's" not in found


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [(3.5, "does not hold at 2k"), (3.7, "holds at 2k"), (4.3, "holds at 2k"), (4.5, "is exceeded at 2k")],
)
def test_a_match_has_a_margin_on_both_sides(theirs, expected):
    found = " ".join(headline_of(*forward({2048: 4.0}), *forward({2048: theirs}, "mamba", "mamba-ssm")))
    assert f"“TTT-Linear matches Mamba” {expected}" in found
