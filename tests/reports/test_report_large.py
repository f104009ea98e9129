"""Reports of a long run are cheap: function calls grow at most linearly with records, and the page is small."""

import pytest
import synthetic_records as synthetic

from reports.publish import write_report, write_table
from tests.counting import calls_of

FEW, RECORDS = 200, 2_000
GROWTH = 10  # largest ratio of calls, for ten times as many records


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return synthetic.many(FEW).run(tmp_path_factory.mktemp("few") / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return synthetic.many(RECORDS).run(tmp_path_factory.mktemp("large") / "run")


@pytest.fixture(scope="module")
def report(run, few):
    """Return (path of `run`'s report, number of Python calls to write it, the same for `few`)."""
    write_report(few, few / "report.html")  # so that imports do not count
    small = calls_of(write_report, few, few / "report.html")
    return run / "report.html", calls_of(write_report, run, run / "report.html"), small


def test_a_large_report_is_linear_and_small(report, run):
    out, large, small = report
    assert large <= GROWTH * small
    assert out.stat().st_size <= 4e6
    assert sum(path.stat().st_size for path in (run / "records").iterdir()) > 3.5e6


def test_a_large_table_is_linear(run, few, capsys):
    def write(which):
        for fmt in ("text", "csv"):
            capsys.readouterr()
            write_table(which, fmt)

    write(few)  # so that imports do not count
    small, large = calls_of(write, few), calls_of(write, run)
    assert large <= GROWTH * small
    assert len(capsys.readouterr().out.splitlines()) == RECORDS + 1
