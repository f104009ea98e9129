"""The page is one file that loads nothing and escapes its records; tested without a browser."""

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import synthetic_records as synthetic

from harness.schema.case import Case
from harness.schema.record import Record, RecordError
from harness.schema.run import Run
from reports.page.html import failures, render
from reports.publish import write_report
from reports.resources import TEMPLATES
from reports.stats import frame

H100 = Path(__file__).parents[2] / "reports" / "results" / "h100"
PAPER, HOSTILE = synthetic.paper(), synthetic.hostile()


class Elements(HTMLParser):
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
def paper(paper_page):
    return Elements(paper_page.read_text("utf-8"))


@pytest.fixture(scope="module")
def hostile():
    return Elements(render(HOSTILE.records, HOSTILE.catalogue, name="</title><script>window.injected = 6</script>")[0])


def shape(elements):
    return {(tag, tuple(sorted(attributes))) for tag, attributes in elements.found}


def test_nothing_is_loaded_from_elsewhere(paper):
    for tag, attributes in paper.found:
        assert "src" not in attributes, (tag, attributes)
        assert attributes.get("href", "#").startswith(("#", "data:,")), (tag, attributes)


def test_hostile_records_add_no_kind_of_element_or_attribute(paper, hostile):
    assert shape(hostile) <= shape(paper)
    assert len(hostile.scripts) == len(paper.scripts) == 6


def test_the_policy_allows_exactly_three_scripts(hostile):
    policy = next(attributes["content"] for tag, attributes in hostile.found if "http-equiv" in attributes)
    kinds = [attributes.get("type") for tag, attributes in hostile.found if tag == "script"]
    running = [text for kind, text in zip(kinds, hostile.scripts, strict=True) if kind is None]
    running += [gzip.decompress(base64.b64decode(text)).decode() for text in hostile.scripts[3:5]]
    assert "plotly.js" in running[1][:200]
    assert "class Figure" in running[2]
    digests = {"sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running}
    assert set(re.findall(r"sha256-[\w+/=]+", policy)) == digests
    assert len(digests) == 3
    assert policy.startswith("default-src 'none'")


def test_embedded_json_has_no_markup():
    value = {"</script>": ["<!--", "<script>", "&amp;", "\u2028", "π"]}
    text = TEMPLATES.from_string("{{ value | tojson }}").render(value=value)
    assert json.loads(text) == value
    assert not set("<>&") & set(text)


def test_page_is_the_same_for_the_same_records():
    assert render(HOSTILE.records, HOSTILE.catalogue)[0] == render(HOSTILE.records, HOSTILE.catalogue)[0]


def test_failures_of_one_reason_are_one_entry():
    found = failures(PAPER.table, (), PAPER.catalogue)
    assert {
        "status": "skipped",
        "system": "mamba",
        "backend": "mamba-ssm",
        "suites": ("prompt-then-128",),
        "reason": "mamba_ssm cannot be imported: No module named 'mamba_ssm'",
        "cases": 7,
        "which": "request, batch 16, context 512–32768",
    } in found
    assert sum(group["cases"] for group in found) == 18


def test_failures_are_split_by_phase_and_l2():
    case = Case("ttt-mlp", "thunderkittens", "1.3b", "forward", 64, 131072)
    cases = [case, replace(case, l2="cold"), replace(case, phase="generate"), replace(case, batch=128)]
    made = synthetic.of_suite("kernel-forward", *(synthetic.lost(each, "oom", "no memory") for each in cases))
    assert {group["which"]: group["cases"] for group in failures(made.table, (), made.catalogue)} == {
        "forward, batch 64–128, context 131072": 2,
        "forward, batch 64, context 131072, L2 cold": 1,
        "generate, batch 64, context 131072": 1,
    }


def test_a_run_that_ended_early_counts_missing_cases(tmp_path):
    cases = [
        Case(system, "torch", "tiny", "forward", 2, context)
        for system in ("ttt-linear", "transformer")
        for context in (64, 128, 256)
    ]
    last = synthetic.lost(cases[-1], "oom", "no memory")
    run = synthetic.of_suite("quick", *(synthetic.ok(case, 3.0) for case in cases[:-1]), last).run(tmp_path / "run")
    file = sorted((run / "records").glob("*.jsonl"))[0]
    first, *others = file.read_text("utf-8").splitlines(keepends=True)
    file.write_text(first, "utf-8")
    write_report(run, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    measured = sum(record.status == "ok" for record in Run.open(run).records())
    assert f"{measured} of {len(cases)} measured <small>{len(others)} missing" in page
    assert '<b data-status="missing">missing</b>: planned, without a record' in page
    opened = Run.open(run)
    gone = failures(frame(opened.records(), opened.catalogue), opened.missing(opened.records()), opened.catalogue)
    assert sum(group["cases"] for group in gone if group["status"] == "missing") == len(others)


def test_write_report_replaces_the_page_and_makes_its_folder(tmp_path):
    record = synthetic.ok(Case("ttt-linear", "torch", "tiny", "forward", 2, 64), 1.0)
    run = synthetic.of_suite("quick", record).run(tmp_path / "run")
    out = tmp_path / "new" / "report.html"
    for _ in range(2):
        write_report(run, out)
    title = "Test-Time Training, measured: run, NVIDIA H100 80GB HBM3"
    assert f"<title>{title}</title>" in out.read_text("utf-8")
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("run/run.json", "is not an HTML page"),
        ("run", "Is a directory"),
        ("thesis.tex", "is not an HTML page"),
        ("link.html", "is not an HTML page"),
    ],
)
def test_only_a_page_is_overwritten(tmp_path, out, message):
    record = synthetic.ok(Case("ttt-linear", "torch", "tiny", "forward", 2, 64), 1.0)
    run = synthetic.of_suite("quick", record).run(tmp_path / "run")
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "link.html").symlink_to("thesis.tex")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RecordError, match=message):
        write_report(run, tmp_path / out)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_folder_without_a_run_is_an_error(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(RecordError, match=str(folder)):
            write_report(folder, tmp_path / "report.html")
    empty = synthetic.of_suite("quick").run(tmp_path / "empty")
    with pytest.raises(RecordError, match="has no records yet"):
        write_report(empty, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_the_page_of_the_records_of_an_h100_takes_at_most_three_and_a_half_megabytes(tmp_path):
    write_report(H100, tmp_path / "report.html")
    assert 1e6 < (tmp_path / "report.html").stat().st_size <= 3.5e6


def test_a_run_without_timing_has_a_notice():
    case = Case("ttt-linear", "torch", "tiny", "forward", 1, 64)
    page = render([Record(case, "ok", environment=synthetic.environment())], PAPER.catalogue)[0]
    assert "No case was timed" in page
    assert "1 of 1 passed, not timed" in page
    assert "has a result" not in page.partition("</details>")[0]
