"""Does the top of the page say what did not fit, ran in part, has no result or no record?"""

import re
from dataclasses import replace

import pytest
import synthetic_records as synthetic
from headline_records import SLOW, STEPPING, forward, said, stepped, throughput

from harness.schema.case import Case
from reports.page.figures import figures
from reports.page.headline import headline, unfinished
from reports.page.html import render


def test_what_did_not_fit_in_memory():
    found = throughput(*stepped("ttt-linear", {64: 8.0}, lost=(128, 256)), *stepped("mamba", {64: 8.0}))
    assert "Did not fit in memory: TTT-Linear at batch 128 to 256 (generate throughput)." in found
    assert "1 of" not in found
    assert "Did not fit" not in throughput(*stepped("ttt-linear", {64: 8.0}), *stepped("mamba", {64: 8.0}))
    found = throughput(*stepped("ttt-linear", {64: 8.0}, lost=(128,)), *stepped("mamba", {64: 8.0}, lost=(256,)))
    assert "Did not fit in memory: TTT-Linear at batch 128, Mamba at batch 256 (generate throughput)." in found


@pytest.mark.parametrize(
    ("fitted", "lost", "skipped", "where"),
    [
        ((), (1, 16), (2, 4, 8, 32), "1 and 16, the others not tried"),
        ((1,), (2, 16), (4, 8, 32), "2 and 16, with 4 and 8 not tried"),
        ((4,), (2, 16), (8,), "2 and 16, with 8 not tried"),
        ((1, 4), (2, 8), (), "2 and 8"),
        ((1, 2), (4, 8), (16,), "4 to 8"),
        ((), (1,), (2, 4), "1, the others not tried"),
    ],
)
def test_where_memory_was_too_small_is_a_span_only_of_neighbours(fitted, lost, skipped, where):
    ours = stepped("ttt-linear", dict.fromkeys(fitted, 8.0), lost=lost)
    case = Case("ttt-linear", STEPPING["ttt-linear"], "1.3b", "generate", 1, 2048, timing="graph")
    ours += [synthetic.lost(replace(case, batch=batch), "skipped", "batch 1 did not fit") for batch in skipped]
    found = throughput(*ours, *stepped("mamba", {64: 8.0}))
    assert f"Did not fit in memory: TTT-Linear at batch {where} (generate throughput)." in found


def test_where_only_a_part_of_the_batch_ran():
    full = stepped("transformer", {64: 8.0}, metrics={"sequences_at_once": 40})
    found = throughput(*stepped("ttt-linear", {64: 8.0}), *full)
    assert "Only a part of the batch ran at once: Transformer at batch 64 (generate throughput)." in found
    assert "Only a part" not in throughput(*stepped("ttt-linear", {64: 8.0}), *stepped("transformer", {64: 8.0}))


def test_how_many_cases_have_no_result():
    assert "Every one of the 2 cases has a result." in said(*forward({2048: 4.0}), *forward({2048: 5.0}, *SLOW))
    lost = synthetic.lost(Case(*SLOW, "1.3b", "forward", 16, 4096), "failed", "no")
    found = said(*forward({2048: 4.0, 4096: 4.0}), *forward({2048: 5.0}, *SLOW), lost)
    assert "1 of 4 cases have no result (1 failed)." in found


def test_a_run_that_has_all_sentences_says_last_how_many_cases_have_no_result():
    paper = synthetic.paper()
    found = headline(paper.table, paper.catalogue, synthetic.paper_figures())
    claims = "Forward latency per token: the paper's"
    begun = ("Forward latency", "Generate latency", claims, "Forward throughput", "Did not fit in memory")
    assert [sentence.startswith(words) for sentence, words in zip(found, begun, strict=False)] == [True] * 5
    assert re.fullmatch(r"\d+ of \d+ cases have no result \(.*\)\.", found[5])
    assert all(sentence.endswith(".") for sentence in found)


def test_a_run_that_ended_early_says_so_first_and_of_which_systems():
    made = synthetic.of_suite("fig15-forward", *forward({2048: 4.0}))
    gone = [Case("ttt-linear", "thunderkittens", "1.3b", "forward", 16, 4096)]
    gone += [Case(*SLOW, "1.3b", "forward", 16, context) for context in (2048, 4096)]
    words = "Unfinished: 3 of the 4 planned cases have no record, 1 of TTT-Linear and all 2 of Transformer."
    assert unfinished(made.table, gone, made.catalogue) == words
    assert unfinished(made.table, [], made.catalogue) == ""
    page = render(made.records, made.catalogue, missing=gone)
    assert words in page
    assert "1 of 4 cases" in page.partition('id="citation"')[2]
    found = headline(made.table, made.catalogue, figures(made.table, made.catalogue), gone)
    assert "3 of 4 cases have no result (3 without a record)." in found
    begun = "Unfinished: 1 of the 2 planned cases has no record"
    assert unfinished(made.table, gone[:1], made.catalogue) == f"{begun}, of TTT-Linear."
    other = [Case("ttt-linear", "torch", "1.3b", "forward", 16, 2048)]
    assert unfinished(made.table, other, made.catalogue) == f"{begun}, all of TTT-Linear on PyTorch."
