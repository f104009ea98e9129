"""The settings of backends on a page."""

from dataclasses import replace

import synthetic_records as synthetic

from harness.schema.case import Case
from reports.backend_settings import backend_settings
from reports.page.html import render

CASE = Case("transformer", "vllm", "1.3b", "forward", 16, 2048)


def with_settings(batch: int, **settings: str):
    return synthetic.ok(replace(CASE, batch=batch), 3.0, settings=settings)


def test_each_backend_says_its_settings_once_and_those_of_a_case_are_counted():
    records = [
        with_settings(
            batch, attention="FLASH_ATTN", largest_graph=("512", "8192")[batch % 2], checked=f"{batch} tokens"
        )
        for batch in (1, 2, 3)
    ]
    records += [with_settings(batch, split=str(batch)) for batch in (4, 5, 6, 7)]
    records.append(synthetic.ok(replace(CASE, system="mamba"), 3.0))
    found = backend_settings(records)
    said = [("attention", "FLASH_ATTN"), ("largest graph", "8192 or 512"), ("split", "4 values, by the case")]
    assert found == [("transformer", "vllm", said)]


def test_a_page_has_a_table_of_them():
    made = synthetic.of_suite("fig15-forward", with_settings(16, attention="<b>fast</b>"))
    page = render(made.records, made.catalogue)
    assert "Settings of each backend" in page
    assert "attention: &lt;b&gt;fast&lt;/b&gt;" in page
    bare = synthetic.of_suite("fig15-forward", synthetic.ok(CASE, 3.0))
    assert "Settings of each backend" not in render(bare.records, bare.catalogue)
