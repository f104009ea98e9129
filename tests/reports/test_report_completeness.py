"""Does the top of the page say which cases have no record?"""

import synthetic_records as synthetic
from headline_records import SLOW, forward

from harness.schema.case import Case
from reports.page.findings import unfinished
from reports.page.html import render


def test_a_run_that_ended_early_says_so_first_and_of_which_systems():
    made = synthetic.of_suite("fig15-forward", *forward({2048: 4.0}))
    gone = [Case("ttt-linear", "thunderkittens", "1.3b", "forward", 16, 4096)]
    gone += [Case(*SLOW, "1.3b", "forward", 16, context) for context in (2048, 4096)]
    words = "Unfinished: 3 of the 4 planned cases have no record: 1 of TTT-Linear and 2 of Transformer."
    assert unfinished(made.table, gone, made.catalogue) == words
    assert unfinished(made.table, [], made.catalogue) == ""
    page = render(made.records, made.catalogue, missing=gone)
    assert words in page
    assert "1 of 4 cases" in page.partition('id="citation"')[2]
    begun = "Unfinished: 1 of the 2 planned cases has no record"
    assert unfinished(made.table, gone[:1], made.catalogue) == f"{begun}: 1 of TTT-Linear."
    other = [Case("ttt-linear", "torch", "1.3b", "forward", 16, 2048)]
    assert unfinished(made.table, other, made.catalogue) == f"{begun}: 1 of TTT-Linear on PyTorch."
