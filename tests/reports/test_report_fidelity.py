"""The page shows the drift of each state precision from the float64 model."""

import re
from dataclasses import replace

import synthetic_records as synthetic

from harness.schema.catalogue import Catalogue
from reports.page.html import render


def rows(*records):
    found = re.search(r'id="fidelity".*?<tbody>(.*?)</tbody>', render([*records], Catalogue())[0], re.DOTALL)
    lines = re.findall("<tr>(.*?)</tr>", found[1]) if found else []
    return [re.findall(">([^<]*)</td>", line) for line in lines]


def test_each_compared_case_is_a_row_and_no_other_is():
    others = [record for _, record in synthetic.kernels()]
    assert rows(*others) == []
    found = rows(*others, *(record for _, record in synthetic.fidelity()))
    assert [row[2:6] for row in found] == [[state, "bfloat16", "125m", "4 × 2048"] for state in ("float32", "bfloat16")]
    assert found[1][6:] == ["2.50e-02", "7.50e-02", "1.25e-02", "5.00e-02", "25.00%"]


def test_a_row_names_its_checkpoint():
    (_, first), *_ = synthetic.fidelity()
    loaded = replace(first.case, options=(*first.case.options, ("checkpoint", "mine@0f")))
    found = rows(first, synthetic.ok(loaded, 1.0, metrics=first.metrics))
    assert [row[4] for row in found] == ["125m", "125m, checkpoint mine@0f"]


def test_the_last_comparison_of_a_case_counts():
    (_, first), *_ = synthetic.fidelity()
    again = synthetic.ok(first.case, 1.0, metrics={"total_variation_mean": 0.5, "argmax_disagreement": None})
    [row] = rows(first, again)
    assert row[5:] == ["4", "5.00e-01", "", "", "", ""]
