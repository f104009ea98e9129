"""A site has the right files, histories and comparisons, and overwrites no other folder."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest
import synthetic_records as synthetic
from small_runs import a_case, a_run, on_cpu, on_gpu, timed, without

from harness.schema.record import RecordError
from harness.schema.run import Run
from reports.publish import write_table
from reports.site.build import MARKER, write_site
from reports.site.entry import slug


def nightly(folder, day, ms=10.0, cases=1, environment=None, name="", samples=9):
    at = f"2026-{1 + day // 28:02}-{1 + day % 28:02}T03:00:00+00:00"
    environment = environment or on_gpu(commit=f"{day:02}" * 20)
    records = [timed(a_case(64 << each), ms, environment, samples=samples, at=at) for each in range(cases)]
    return a_run(folder / (name or f"day-{day:02}"), *records, at=at).folder


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def only(folder, pattern):
    (path,) = folder.glob(pattern)
    return path


@pytest.fixture
def two_runs(tmp_path):
    return [nightly(tmp_path, 1), nightly(tmp_path, 2, ms=11.0)]


def test_a_run_that_is_left_out_disappears_with_its_files(two_runs, tmp_path):
    out = tmp_path / "site"
    write_site(two_runs, out)
    (out / "downloads" / "mine.txt").write_text("not of the site")
    gone = {name for name in files_in(out) if "day-02" in name}
    assert len(gone) == 4
    assert write_site(two_runs[:1], out) == len(gone)
    assert not gone & files_in(out)
    assert {"downloads/mine.txt"} <= files_in(out)
    assert "day-02" not in (out / "index.html").read_text()


def test_only_a_site_or_an_empty_folder_is_written_to(two_runs, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "index.html").write_text("mine")
    with pytest.raises(RecordError, match="is not a ttt-bench site"):
        write_site(two_runs, mine)
    (mine / MARKER).write_text('{"tool": "something else"}')
    with pytest.raises(RecordError, match="is not a ttt-bench site"):
        write_site(two_runs, mine)
    assert (mine / "index.html").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    write_site(two_runs, tmp_path / "empty")
    assert (tmp_path / "empty" / "index.html").exists()


def test_an_interrupted_site_is_written_again(two_runs, tmp_path):
    def interrupted(line):
        raise KeyboardInterrupt

    out = tmp_path / "site"
    with pytest.raises(KeyboardInterrupt):
        write_site(two_runs, out, interrupted)
    write_site(two_runs, out)
    assert (out / "index.html").exists()


def test_the_same_run_twice_is_an_error_and_two_of_one_name_are_two_pages(two_runs, tmp_path):
    with pytest.raises(RecordError, match="are the same run"):
        write_site([two_runs[0], two_runs[0]], tmp_path / "site")
    assert not (tmp_path / "site").exists()  # refused before anything is written
    copy = tmp_path / "copies" / two_runs[0].name
    shutil.copytree(two_runs[0], copy)
    run = Run.open(copy)
    run.record_file(run.jobs[0]).append(timed(a_case(64), 12.0))
    with pytest.raises(RecordError, match="are the same run; name one of them"):
        write_site([two_runs[0], copy], tmp_path / "site")
    write_site([two_runs[0], nightly(tmp_path / "others", 2, name="day-01")], tmp_path / "site")
    assert len(list((tmp_path / "site" / "runs").glob("day-01-*.html"))) == 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [("../../x", "x"), ("Ä & <b>.html", "b-html"), ("\n", "x"), ("日本", "x"), ("CON", "con"), ("a" * 300, "a" * 48)],
)
def test_files_have_names_that_are_safe_anywhere(name, expected):
    assert slug(name) == expected


def test_a_run_without_records_is_a_line_and_one_without_a_result_a_page(tmp_path):
    planned = a_run(tmp_path / "planned", timed(a_case(), 1)).folder
    only(planned, "records/*.jsonl").unlink()
    failed = a_run(tmp_path / "failed", without(a_case(), "oom", "does not fit"), timed(a_case(128), 1)).folder
    file = only(failed, "records/*.jsonl")
    file.write_text(file.read_text().partition("\n")[0] + "\n")
    out = tmp_path / "site"
    write_site([planned, failed], out)
    index = (out / "index.html").read_text()
    assert "no records yet" in index
    assert "0 of 2 cases measured" in index
    assert index.count("unfinished: 1 case without a record") == 2
    assert [path.name[:6] for path in (out / "runs").iterdir()] == ["failed"]
    assert "does not fit" in only(out, "runs/*.html").read_text()
    assert not (out / "over-time").exists()


class Links(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.urls = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.urls += [value for name, value in attributes if name in ("href", "src")]


def test_every_address_leads_to_a_file_of_the_site(two_runs, tmp_path):
    out = tmp_path / "site"
    write_site(two_runs, out)
    for path in out.rglob("*.html"):
        for url in Links(path.read_text()).urls:
            target = url.partition("#")[0].partition("?")[0]
            assert url.startswith(("#", "data:")) or (path.parent / target).is_file(), (path, url)


def test_the_downloads_have_the_runs_records_and_table(tmp_path, capsys):
    folder = synthetic.paper().run(tmp_path / "paper")
    write_site([folder], tmp_path / "site")
    downloads = {path.suffix: path for path in (tmp_path / "site" / "downloads").iterdir()}
    write_table(folder, "csv")
    assert downloads[".csv"].read_text() == capsys.readouterr().out
    assert downloads[".jsonl"].read_text().splitlines() == [each.to_json() for each in Run.open(folder).records()]
    page = only(tmp_path / "site", "runs/*.html").read_text()
    assert all(f'href="../downloads/{path.name}"' in page for path in downloads.values())
    assert "<title>paper, " in page


def test_the_index_has_the_note_of_a_run_from_tables_toml(tmp_path):
    folder = synthetic.paper().run(tmp_path / "paper")
    tables = tmp_path / "tables.toml"
    tables.write_text('[runs]\nruns = [{ run = "paper", note = "two GPUs & <b>" }]\n')
    out = tmp_path / "site"
    write_site([folder], out)
    index = (out / "index.html").read_text()
    assert ">two GPUs &amp; &lt;b&gt;</span>" in index
    tables.write_text("[runs")
    write_site([folder], out)
    assert "two GPUs" not in (out / "index.html").read_text()


def lines_of(out):
    text = only(out, "over-time/ttt-linear-*.html").read_text()
    data = json.loads(text.partition('id="page-data">')[2].partition("</script>")[0])
    return data["cases"][0]["lines"]


def test_a_history_is_in_order_of_time(tmp_path):
    runs = [nightly(tmp_path, day, 10 + day) for day in range(4)]
    for name, given in (("old-first", runs), ("new-first", runs[::-1])):
        write_site(given, tmp_path / name)
        (line,) = lines_of(tmp_path / name)
        assert line["ms"] == [10, 11, 12, 13]


def test_a_history_has_the_times_of_cases_not_of_runs(tmp_path):
    cases = [timed(a_case(context), 10, at=f"2026-01-{day}T03:00:00+00:00") for context, day in ((64, "01"), (128, 20))]
    write_site([a_run(tmp_path / "resumed", *cases).folder, nightly(tmp_path, 9, ms=12)], tmp_path / "site")
    (line,) = lines_of(tmp_path / "site")
    assert line["ms"] == [10, 12]


def test_a_history_has_the_times_in_utc_and_no_point_without_one(tmp_path):
    starts = ("2026-01-02T02:00:00+03:00", "2026-01-02T00:00:00Z", "2026-01-02T00:30:00", "yesterday", "")
    runs = [a_run(tmp_path / f"run-{at}", timed(a_case(), 10 + at, at=start)) for at, start in enumerate(starts)]
    write_site([run.folder for run in runs], tmp_path / "site")
    (line,) = lines_of(tmp_path / "site")
    assert line["at"] == ["2026-01-01T23:00:00", "2026-01-02T00:00:00", "2026-01-02T00:30:00"]
    assert line["ms"] == [10, 11, 12]
    named = re.findall(r'class="name"><a [^>]*>run-(\d)<', (tmp_path / "site" / "index.html").read_text())
    assert named == ["2", "1", "0", "4", "3"]  # the newest first


def test_a_bar_has_the_ends_of_its_interval(tmp_path):
    skewed = timed(a_case(), 10)
    skewed.samples_ms[:] = [10, 20, 9.95, 10.2, 10, 21, 9.9, 10, 10.5]
    write_site([a_run(tmp_path / "run", skewed).folder], tmp_path / "site")
    (line,) = lines_of(tmp_path / "site")
    assert (line["low"], line["ms"], line["high"]) == ([9.95], [10], [20])


def test_runs_with_different_sequence_counts_are_drawn_per_token(tmp_path):
    runs = []
    for day, (ms, tokens) in enumerate(((22, 11), (22.55, 11), (22.5, 10))):
        record = timed(a_case(), ms, tokens=tokens, at=f"2026-01-0{1 + day}T03:00:00+00:00")
        runs.append(a_run(tmp_path / f"day-{day:02}", record).folder)
    write_site(runs, tmp_path / "site")
    (line,) = lines_of(tmp_path / "site")
    assert line["ms"] == pytest.approx([2, 2.05, 2.25])
    assert all(low < ms < high for low, ms, high in zip(line["low"], line["ms"], line["high"], strict=True))
    assert line["sequences"] == ["11", "11", "10"]


def test_no_line_joins_two_machines_or_drivers(tmp_path):
    machines = [on_gpu(), on_gpu("A100"), on_gpu(driver="590"), on_cpu(), on_cpu(cores=2)]
    runs = [nightly(tmp_path, day, 10 + 5 * day, environment=machine) for day, machine in enumerate(machines)]
    write_site(runs, tmp_path / "site")
    assert [len(line["run"]) for line in lines_of(tmp_path / "site")] == [1] * 5


def test_few_samples_and_a_loaded_machine_are_flagged(tmp_path):
    loaded = on_gpu(cpu={"others_share": 0.5, "idle_share": 0.01})
    days = [(10, {}), (15, {"samples": 3}), (15, {"environment": loaded}), (12, {})]
    write_site([nightly(tmp_path, day, ms, **changes) for day, (ms, changes) in enumerate(days)], tmp_path / "site")
    (line,) = lines_of(tmp_path / "site")
    assert line["flagged"] == [1, 2]


def compared_in(out):
    return {re.sub(r"-[0-9a-f]{8}", "", path.stem) for path in (out / "compared").iterdir()}


def test_a_run_is_compared_with_the_one_before_and_the_newest_of_its_gpu_model(tmp_path):
    runs = [nightly(tmp_path, day) for day in range(4)]
    runs += [nightly(tmp_path, day, environment=on_gpu("H200"), name=f"other-{day}") for day in (1, 2)]
    unlike = a_run(tmp_path / "unlike", timed(a_case(7), 1, at="2026-02-20T03:00:00+00:00")).folder
    out = tmp_path / "site"
    write_site([*runs, unlike], out)
    before, newest = {"day-00--day-01", "day-01--day-02", "day-02--day-03"}, {"day-00--day-03", "day-01--day-03"}
    assert compared_in(out) == before | newest | {"other-1--other-2", "other-2--day-03"}
    write_site(runs[:2], out)
    assert compared_in(out) == {"day-00--day-01"}


def test_the_index_says_whether_a_run_confirms_the_one_before_and_two_gpu_models_are_ratios(tmp_path):
    runs = [nightly(tmp_path, 1, cases=3), nightly(tmp_path, 2, ms=10.2, cases=3)]
    runs.append(nightly(tmp_path, 3, ms=5, cases=3, environment=on_gpu("H200"), name="other"))
    write_site(runs, tmp_path / "site")
    index = (tmp_path / "site" / "index.html").read_text()
    assert "Against day-01</a>: Confirmed: 3 of 3 reliable points within 3%." in index
    assert (
        "Against day-02</a>: Another GPU: other takes 0.49 times as long as day-02 in the median of 3 points" in index
    )
    assert "another GPU" in only(tmp_path / "site", "compared/day-02-*--other-*.html").read_text()
