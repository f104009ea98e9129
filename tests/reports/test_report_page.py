"""Is the page one safe file, without a browser's help?"""

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
import synthetic_records as synthetic

from harness.record import RecordError, RecordFile
from reports import write_report
from reports.html import embedded_json, failures, render
from reports.stats import frame


class Elements(HTMLParser):
    """Every element with its attributes, and the text of every script, as a browser's parser finds them."""

    def __init__(self, page):
        super().__init__()
        self.found, self.scripts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def paper():
    return Elements(render(synthetic.paper()))


@pytest.fixture(scope="module")
def hostile():
    return Elements(render(synthetic.hostile(), title='</title><script>window.injected = 6</script>'))


def shape(elements):
    return {(tag, tuple(sorted(attributes))) for tag, attributes in elements.found}


def test_nothing_is_loaded_from_elsewhere(paper):
    for tag, attributes in paper.found:
        assert "src" not in attributes, (tag, attributes)
        assert attributes.get("href", "#").startswith(("#", "data:,")), (tag, attributes)


def test_hostile_records_add_no_kind_of_element_or_attribute(paper, hostile):
    assert shape(hostile) <= shape(paper)
    assert len(hostile.scripts) == len(paper.scripts) == 4


def test_policy_names_exactly_the_two_scripts_that_run(hostile):
    policy = next(attributes["content"] for tag, attributes in hostile.found if "http-equiv" in attributes)
    kinds = [attributes.get("type") for tag, attributes in hostile.found if tag == "script"]
    running = [text for kind, text in zip(kinds, hostile.scripts, strict=True) if kind is None]
    digests = {"sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running}
    assert set(re.findall(r"sha256-[\w+/=]+", policy)) == digests
    assert len(digests) == 2
    assert policy.startswith("default-src 'none'")


def test_embedded_json_survives_and_holds_no_markup():
    value = {"</script>": ["<!--", "<script>", "&amp;", "\u2028", "π"]}
    text = embedded_json(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028") & set(text)


def test_records_are_embedded_as_they_are(paper):
    text = gzip.decompress(base64.b64decode(paper.scripts[1])).decode()
    assert text.splitlines() == [record.to_json() for record in synthetic.paper()]


def test_page_is_the_same_for_the_same_records():
    assert render(synthetic.hostile()) == render(synthetic.hostile())


def test_failures_of_one_reason_are_one_entry():
    found = failures(frame(synthetic.paper()))
    assert {"status": "skipped", "system": "mamba", "backend": "mamba-ssm", "suite": "prompt-then-128",
            "reason": "mamba-ssm is not installed: pip install 'ttt-bench[mamba]'", "cases": 7,
            "which": "request, batch 16, context 512–32768"} in found
    assert sum(group["cases"] for group in found) == 19


def test_write_report_replaces_the_page_and_makes_its_folder(tmp_path):
    with RecordFile(tmp_path / "records.jsonl") as file:
        for record in synthetic.hostile():
            file.append(record)
    out = tmp_path / "new" / "report.html"
    for title in ("One", "Two & three"):
        write_report([tmp_path / "records.jsonl"], out, title)
    assert "<h1>Two &amp; three</h1>" in out.read_text("utf-8")


@pytest.mark.parametrize(("there", "message"), [(True, "no records in"), (False, "no such file")])
def test_missing_records_are_an_error_and_no_page(tmp_path, there, message):
    if there:
        (tmp_path / "records.jsonl").touch()
    with pytest.raises(RecordError, match=message):
        write_report([tmp_path / "records.jsonl"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
