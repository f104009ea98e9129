"""Does the page say how far each state precision drifted?"""

import synthetic_records as synthetic

from harness.schema.case import Case
from reports.fidelity import fidelity
from reports.page.html import render


def test_each_compared_case_is_a_row_and_no_other_is():
    rows = fidelity([record for _, record in (*synthetic.kernels(), *synthetic.fidelity())])
    assert [(row.backend, row.state_dtype, row.sequences, row.tokens) for row in rows] == [
        ("triton-dual", "float32", 4, 2048),
        ("triton-dual", "bfloat16", 4, 2048),
    ]
    assert (rows[1].mean, rows[1].first, rows[1].last) == (2.5e-2, 1.25e-2, 5e-2)
    assert rows[1].argmax_disagreement == 0.25


def test_the_last_comparison_of_a_case_counts():
    (_, first), *_ = synthetic.fidelity()
    again = synthetic.ok(first.case, 1.0, metrics={"total_variation_mean": 0.5})
    [row] = fidelity([first, again])
    assert (row.mean, row.largest, row.tokens) == (0.5, None, None)


def test_the_page_has_the_table_where_there_is_a_comparison():
    made = synthetic.made(synthetic.fidelity())
    page = render(made.records, made.catalogue)
    assert 'id="fidelity"' in page
    assert "2.50e-02" in page
    assert "25.00%" in page
    case = Case("ttt-linear", "torch", "tiny", "forward", 2, 64)
    assert 'id="fidelity"' not in render([synthetic.ok(case, 1.0)], made.catalogue)
