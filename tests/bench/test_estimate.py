"""A run's estimated duration follows from earlier runs of its cases."""

import pytest

from bench import estimate
from harness.schema.case import Case
from harness.schema.record import Record
from harness.schema.run_file import Job, Planned
from tests.reports import small_runs

H200 = {"device": "H200", "device_kind": "cuda"}


@pytest.fixture(autouse=True)
def no_published_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "RESULTS", (tmp_path / "published").resolve())


def a_case(batch):
    return Planned(Case("a", "b", "tiny", "forward", batch, 8))


def a_run(folder, cases, seconds, device="H200", status="ok", mode="measure"):
    environment = {"device": device, "device_kind": "cpu" if device == "CPU" else "cuda"}
    records = (Record(each.case, status, "a reason", environment=environment, wall_s=seconds) for each in cases)
    small_runs.a_run(folder, *records, mode=mode)


def test_a_job_takes_the_time_of_its_cases_and_an_untimed_case_the_mean_of_its_system():
    first, second, third = map(a_case, (1, 2, 3))
    assert estimate.job_seconds([first, second], {}) == 0
    past = {first.case: 10.0, second.case: 1.0, Case("other", "b", "tiny", "forward", 1, 8): 4.0}
    assert estimate.job_seconds([first, second, third, a_case(4)], past) == 10 + 1 + 2 * (10 + 1) / 2
    assert estimate.job_seconds([Planned(Case("new", "b", "tiny", "forward", 1, 8))], past) == (10 + 1 + 4) / 3


@pytest.mark.parametrize(("seconds", "words"), [(89, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h")])
def test_a_duration_in_words(seconds, words):
    assert estimate.in_words(seconds) == words


def test_the_longest_jobs_go_first():
    jobs = [
        Job(system, "b", tuple(Planned(Case(system, "b", "tiny", "forward", n + 1, 64)) for n in range(count)))
        for system, count in (("a", 2), ("b", 5), ("c", 3))
    ]
    assert [job.system for job in estimate.longest_first(jobs, {})] == ["b", "c", "a"]
    past = {each.case: 2.0 for each in jobs[1].cases} | {each.case: 100.0 for each in jobs[0].cases}
    assert [job.system for job in estimate.longest_first(jobs, past)] == ["a", "c", "b"]


def test_a_case_takes_the_median_of_earlier_runs_on_its_kind_of_device(tmp_path):
    both, elsewhere = a_case(1), a_case(2)
    a_run(tmp_path / "published/run", [both, elsewhere], 3.0, "H100")
    a_run(tmp_path / "runs/1", [both], 2.0)
    a_run(tmp_path / "runs/2", [both], 5.0, "H100")
    a_run(tmp_path / "runs/3", [both, elsewhere], 90.0, "CPU")
    a_run(tmp_path / "runs/4", [both], 500.0, mode="profile")
    a_run(tmp_path / "runs/5", [both], 30.0)
    expected = {both.case: 5.0, elsewhere.case: 3.0}
    for machine in (H200, None):
        assert estimate.past_durations(machine, tmp_path / "runs/next") == expected
    assert estimate.past_durations(H200, tmp_path / "runs") == expected
    on_cpu = {both.case: 90.0, elsewhere.case: 90.0}
    assert estimate.past_durations({"device_kind": "cpu"}, tmp_path / "runs/next") == on_cpu
    assert estimate.past_durations(H200, tmp_path / "mine/next") == {**expected, both.case: 3.0}


def test_skipped_and_failed_cases_give_no_time(tmp_path):
    case = a_case(1)
    times = {"oom": 30.0, "skipped": 0.1, "failed": 0.2, "incorrect": 50.0, "timeout": 60.0}
    for name, (status, seconds) in enumerate(times.items()):
        a_run(tmp_path / f"runs/{name}", [case], seconds, status=status)
    assert estimate.past_durations(H200, tmp_path / "runs/next") == {case.case: 50.0}
    (tmp_path / "runs/1/run.json").write_text("{")  # another program's file
    assert estimate.past_durations(H200, tmp_path / "runs/next") == {case.case: 50.0}
