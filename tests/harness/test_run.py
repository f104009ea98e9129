"""Create, extend and read run folders; an error is one sentence and changes no file."""

import fcntl
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness_helpers import case, catalogue, lines_of, measured, new_run, ok_record, planned_jobs, run_file, systems

from harness.schema.catalogue import Catalogue, FigureEntry, MetricEntry, SuiteEntry
from harness.schema.record import Record
from harness.schema.run import Run, latest
from harness.schema.run_file import Job, PastRequest, Planned, RunError
from harness.workers.scheduler import run_jobs
from tests.counting import calls_of

skippable = partial(Planned, skip_after_oom=True)
REQUEST = PastRequest("2025-01-01T00:00:00+00:00", ("run", "quick"), "abc", False, {"cpu": {"model": "x"}})


def everything_under(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def test_round_trip(folder: Path) -> None:
    cases = [skippable(case(batch=1), 6), Planned(case(timing="graph", l2="cold")), case(system="other")]
    made = new_run(folder, cases, repeats=3, requests=(REQUEST,))
    assert Run.open(folder).file == made.file
    made.extend((), Catalogue(), replace(REQUEST, arguments=("--out", "µ\udcff")))  # no UTF-8 in the folder's name
    assert Run.open(folder).file.requests == (REQUEST, replace(REQUEST, arguments=("--out", "µ?")))


def test_cases_that_are_added_later_go_to_the_end_of_their_job(folder: Path) -> None:
    run = new_run(folder, [case(batch=1), case(batch=2)])
    measured(folder)
    more = [case(batch=2), case(batch=3), case(system="other")]
    run.extend(planned_jobs(more), catalogue(more), REQUEST)
    again = Run.open(folder)
    assert [[p.case.batch for p in job.cases] for job in again.jobs] == [[1, 2, 3], [2]]
    assert again.catalogue.suites[0].cases == tuple(c.key for c in (case(batch=1), *more))
    assert again.file.requests == (REQUEST,)
    assert [r.case.batch for r in again.records()] == [1, 2]
    found = measured(folder, launches=systems() | {("other", "cpu"): systems()["fake", "cpu"]})
    assert [record.status for record in found] == ["ok"] * 4
    assert len(lines_of(folder)) == 3


def test_requests_for_one_case_merge(folder: Path) -> None:
    run = new_run(folder, [skippable(case(batch=1), 1), skippable(case(batch=2), 6)])
    again = [skippable(case(batch=1), 6), Planned(case(batch=2), 1)]
    run.extend(planned_jobs(again), catalogue(again), REQUEST)
    (job,) = Run.open(folder).jobs
    assert job.cases == (skippable(case(batch=1), 6), Planned(case(batch=2), 6))


def change(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "run.json"
    values = json.loads(path.read_text())
    replaced = edit(values)
    path.write_text(json.dumps(replaced if isinstance(replaced, list | str) else values))


STYLE = {"name": "fake", "label": "Fake", "tone": 0, "marker": "circle"}
WRONG: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda v: v.update(schema=7), "schema: Input should be 1, not 7; update ttt-bench"),
    (lambda v: v.update(tool="their-bench"), "tool: Input should be 'ttt-bench', not 'their-bench'"),
    (lambda v: v.pop("jobs") and None, "jobs: Field required"),
    (lambda v: [v], "Input should be an object"),
    (lambda v: v["policy"].update(budget_s=math.inf), "policy.budget_s: "),
    (lambda v: v["policy"].update(precision=1), "policy.precision: "),
    (lambda v: v.update(colour="red"), "colour: "),
    (lambda v: v.update({"a\nb\x1b[2J": 1}), "a b [2J: "),
    (lambda v: v.update(mode="guess"), "mode: Input should be 'measure', 'verify' or 'profile'"),
    (lambda v: v["jobs"][0]["cases"][0]["case"].update(batch=0), "jobs.0.cases.0.case.batch: "),
    (lambda v: v["catalogue"]["suites"][0]["figures"][0].update(y="beauty"), "unknown metric 'beauty'"),
    (lambda v: v["catalogue"]["suites"][0]["figures"][0].update(x="beauty"), "unknown axis 'beauty'"),
    (lambda v: v["catalogue"]["suites"][0]["figures"][0].update(along="beauty"), "unknown axis 'beauty'"),
    (lambda v: v["catalogue"]["suites"][0]["figures"][0].update(split=["beauty"]), "unknown axis 'beauty'"),
    (
        lambda v: v["catalogue"]["systems"].append(STYLE | {"tone": 8}),
        "systems.0.tone: Input should be less than 8, not 8",
    ),
    (
        lambda v: v["catalogue"]["systems"].append(STYLE | {"marker": "x"}),
        "systems.0.marker: String should match pattern",
    ),
    (lambda v: v["catalogue"]["metrics"][0].update(label="\ud800"), ""),
    (lambda v: v.update(requests=[{"at": "x"}]), "requests.0.arguments: Field required"),
]


def test_older_names_in_a_catalogue_are_read_as_todays_or_ignored(folder: Path) -> None:
    def older(values: dict[str, Any]) -> None:
        values["catalogue"]["metrics"].append({"name": "floor_share", "label": "Share"})
        values["catalogue"]["systems"].append(STYLE | {"family": "recurrent"})
        values["policy"]["rounds"] = 3
        figure = values["catalogue"]["suites"][0]["figures"][0]
        figure.update(y="floor_share", floor=True)
        figure.pop("lower_bound", None)

    new_run(folder, [case(batch=1)])
    change(folder, older)
    read = Run.open(folder).catalogue
    assert read.metrics[-1].name == "lower_bound_share"
    assert read.system_label("fake") == "Fake"
    assert (read.suites[0].figures[0].y, read.suites[0].figures[0].lower_bound) == ("lower_bound_share", True)


@pytest.mark.parametrize(("edit", "message"), WRONG, ids=[message[:40] or "surrogate" for _, message in WRONG])
def test_a_wrong_run_file_is_one_sentence(
    folder: Path, edit: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    new_run(folder, [case(batch=1), case(batch=2)])
    change(folder, edit)
    before = everything_under(tmp_path)
    with pytest.raises(RunError) as error:
        Run.open(folder)
    text = str(error.value)
    assert text.startswith(f"{folder / 'run.json'}: ")
    assert message.removesuffix("…") in text
    assert text.isprintable()
    assert len(text) < 800
    assert everything_under(tmp_path) == before


@pytest.mark.parametrize("text", ["", "my notes", "[" * 100_000])
def test_broken_json_is_refused(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "run.json").write_text(text)
    with pytest.raises(RunError, match=r"run\.json: is not JSON"):
        Run.open(folder)


def test_folders_without_a_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    (tmp_path / "empty").mkdir()
    for name, message in [("none", "no such folder"), ("plain", "is not a folder"), ("empty", r"it has no run\.json")]:
        with pytest.raises(RunError, match=message) as error:
            Run.open(tmp_path / name)
        assert str(tmp_path / name) in str(error.value)


def test_unwritable_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("mine")
    for name in (tmp_path / "plain", tmp_path / "plain" / "in", Path("/proc/run"), tmp_path / ("x" * 300)):
        with pytest.raises(RunError) as error:
            new_run(name, [case()])
        assert "\n" not in str(error.value)
    assert (tmp_path / "plain").read_text() == "mine"


def test_the_first_of_two_creators_wins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Run.held

    def late(run: Run, shared: bool = False) -> Any:
        monkeypatch.setattr(Run, "held", held)
        new_run(folder, [case()])
        return held(run, shared)

    monkeypatch.setattr(Run, "held", late)
    with pytest.raises(RunError, match="holds a run already"):
        new_run(folder, [case(batch=2)])
    assert [planned.case for planned in Run.open(folder).jobs[0].cases] == [case()]
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_a_record_file_of_no_job_is_refused(folder: Path) -> None:
    run = new_run(folder, [case()])
    stray = folder / "records" / "stranger-cpu.jsonl"
    stray.write_text(ok_record(case(system="stranger")).to_json() + "\n")
    with pytest.raises(RunError, match=r"stranger-cpu\.jsonl: belongs to no job of the run"):
        run.records()
    assert stray.exists()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (ok_record(case(batch=77)), "line 2: repeat 0 of fake/cpu tiny forward B=77"),
        (ok_record(case(system="other")), "line 2: repeat 0 of other/cpu"),
        (ok_record(repeat=1), "line 2: repeat 1 of fake/cpu"),
    ],
)
def test_a_record_that_belongs_to_no_job_is_refused(folder: Path, record: Record, message: str) -> None:
    run = new_run(folder, [case(), case(system="other")])
    path = folder / "records" / "fake-cpu.jsonl"
    path.write_text(ok_record().to_json() + "\n" + record.to_json() + "\n")
    before = path.read_bytes()
    for use in (run.records, lambda: measured(folder)):
        with pytest.raises(RunError) as error:
            use()
        assert str(error.value).startswith(f"{path}, {message}")
    assert path.read_bytes() == before


def test_a_copied_descriptor_does_not_keep_the_lock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, forked = new_run(folder, [case()]), []
    real = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda fd, kind: (real(fd, kind), forked.append(os.dup(fd))))
    with run.held():
        pass
    with run.held():
        assert len(forked) > 2
    for each in forked:
        os.close(each)


def test_a_missing_folder_is_named(folder: Path) -> None:
    run = new_run(folder, [case()])
    (folder / "records").rmdir()
    (folder / "run.json").unlink()
    folder.rmdir()
    with pytest.raises(RunError, match="No such file or directory"):
        run_jobs(run, systems())


def test_a_failed_save_leaves_the_run_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(folder, [case()])
    before = everything_under(folder)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match="cannot be written: No space left on device"):
        run.extend((), Catalogue(), REQUEST)
    assert everything_under(folder) == before


def test_the_last_record_of_a_case_counts() -> None:
    job = Job("fake", "cpu", (Planned(case(batch=1)), Planned(case(batch=2))))
    of = lambda batch, samples, repeat=0: ok_record(case(batch=batch), samples, repeat=repeat)  # noqa: E731
    records = [of(2, (1.0,)), of(1, (1.0,), 1), of(1, (2.0,)), of(2, (3.0,)), of(1, (4.0,))]
    found = latest(job, records)
    assert [r.samples_ms for r in found] == [[4.0], [1.0], [3.0]]
    assert [[earlier.samples_ms for earlier in r.earlier] for r in found] == [[[2.0]], [], [[1.0]]]
    third = latest(job, [*records, of(1, (5.0,))])[0]
    assert [earlier.samples_ms for earlier in third.earlier] == [[2.0], [4.0]]
    assert "earlier" not in json.loads(third.to_json())


def test_the_newer_of_two_entries_of_one_name_counts() -> None:
    figure = FigureEntry("forward", "New", "context", "us_per_token")
    old = replace(catalogue(), suites=(SuiteEntry("fake", "old?", (), ("a", "b")),))
    new = replace(catalogue(), metrics=(MetricEntry("us_per_token", "newer"),))
    new = replace(new, suites=(SuiteEntry("fake", "new?", (figure,), ("b", "c")),))
    both = old.merged(new)
    assert both.metric("us_per_token").label == "newer"
    assert both.suites == (SuiteEntry("fake", "new?", (figure,), ("a", "b", "c")),)
    assert both.system_label("stranger") == "stranger"
    assert both.axis("mini_batch").label == "mini-batch"


def test_ten_times_as_many_cases_take_ten_times_as_many_calls(tmp_path: Path) -> None:
    def plan_and_resume(cases: int) -> None:
        file = run_file([Planned(case(batch=number + 1)) for number in range(cases)])
        Run.create(tmp_path / f"{cases}", file)
        again = Run.open(tmp_path / f"{cases}")
        again.extend(file.jobs, file.catalogue, PastRequest("", (), "", None, {}))

    assert calls_of(plan_and_resume, 2_000) <= 11 * calls_of(plan_and_resume, 200)
