"""Profiles of cases under fake profilers that work, die, hang, truncate their report or lack permission."""

import os
import re
import signal
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness_helpers import case
from profile_helpers import NCU_TABLE_NAMES, PAIR, ncu_table, nsys_database, put_profilers, run_of, worker_launches

from harness.profiling import under_profiler
from harness.profiling.jobs import JobProfiler, Profiler
from harness.profiling.tools.choice import Tools, choose
from harness.schema.catalogue import Catalogue
from harness.schema.policy import Policy
from harness.schema.profile import Profile, ProfileError, profile_path, write_profile
from harness.schema.record import RecordError
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned, RunError, RunFile
from harness.workers.process import DEFAULT_SLOT, GpuSlot, Limits

KINETO = Tools("kineto")
WITH_NCU = Tools("kineto", "ncu", {"ncu": "2025.3.0"})


def profile_all(run: Run, tools: Tools, fake: bool = True, **changes: Any) -> tuple[list[Profile], list[str]]:
    messages: list[str] = []
    found = Profiler(run, worker_launches(fake), tools, Limits(60, 60), say=messages.append, **changes).jobs(run.jobs)
    assert list(run.profiles().values()) == found
    return found, messages


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.workers.process.load_between", lambda start, end: {})


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(does: str = "", version: str = "Version 2025.3.0.0", names: tuple[str, ...] = ("ncu", "nsys")) -> None:
        monkeypatch.setenv("PATH", put_profilers(tmp_path / "bin", *names))
        monkeypatch.setenv("FAKE_PROFILER", does)
        monkeypatch.setenv("FAKE_VERSION", version)
        (tmp_path / "table.csv").write_text(ncu_table(*NCU_TABLE_NAMES))
        monkeypatch.setenv("FAKE_REPORT", str(tmp_path / "table.csv"))
        monkeypatch.setenv("FAKE_SQLITE", str(nsys_database(tmp_path / "fake.sqlite")) if "nsys" in names else "")

    return put


def test_kineto_profiles_cases_and_notes_failures(tmp_path: Path) -> None:
    cases = [case(), case(batch=7), case("oom"), case("idle")]
    run = run_of(tmp_path, *cases)
    (good, again, oom, idle), messages = profile_all(run, KINETO, False)
    assert [each.status for each in (good, again, oom, idle)] == ["ok", "ok", "oom", "failed"]
    assert "MemoryError" in oom.reason
    assert "no operator of PyTorch" in idle.reason
    assert {"aten::mm", "aten::add"} <= {kernel.name for kernel in good.kernels}
    paths = [each.path for each in good.ranges]
    assert ("forward", "layer 0") in paths
    assert ("forward", "layer 1") in paths
    assert good.peaks == {"copy_gbs": 3000.0, "product_tflops": 600.0}
    assert list(good.tools) == ["torch.profiler"]
    assert good.commands[0].endswith("-m harness.worker profile_helpers:WithTorch")
    assert "/" not in good.commands[0]
    assert 0 < good.busy_us <= good.region_us
    assert [record.status for record in run.records()] == ["ok", "ok", "oom", "failed"]
    assert str(tmp_path) not in good.to_json()
    assert messages == []


@pytest.mark.parametrize(("idle", "notes"), [(0.02, ("contended: other programs used 60% of the CPU",)), (0.4, ())])
def test_a_profile_on_a_contended_cpu_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle: float, notes: tuple[str, ...]
) -> None:
    load = {"others_share": 0.6, "idle_share": idle}
    monkeypatch.setattr("harness.workers.process.load_between", lambda start, end: load)
    (found,), _ = profile_all(run_of(tmp_path), KINETO)
    assert tuple(note for note in found.notes if "contended" in note) == notes


def test_the_record_of_a_failed_case_tells_when_the_case_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.profiling.jobs.utc_now", lambda: "2026-01-31T12:00:00+00:00")
    run = run_of(tmp_path)
    (skipped,), _ = profile_all(run, KINETO, skip=lambda planned: "too large")
    assert [record.started_at for record in run.records()] == [skipped.started_at] == ["2026-01-31T12:00:00+00:00"]


@pytest.mark.parametrize("resume", [False, True])
def test_a_skip_keeps_a_profile_with_times(tmp_path: Path, fake: Any, resume: bool) -> None:
    fake()
    shown: list[Profile] = []
    before, _ = profile_all(run := run_of(tmp_path, mode="measure"), KINETO)
    found = profile_all(run, WITH_NCU, skip=lambda _: "no checkpoint", on_profile=shown.append, resume=resume)
    assert found == (before, [])
    assert [each.reason for each in shown] == ["no checkpoint"]


def test_a_resumption_adds_a_record_that_could_not_be_written(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.record_file(run.jobs[0]).path.mkdir()
    with pytest.raises(RecordError, match="cannot be written"):
        profile_all(run, KINETO)
    run.record_file(run.jobs[0]).path.rmdir()
    Profiler(run, worker_launches(), KINETO, resume=True).jobs(run.jobs)
    assert [record.status for record in run.records()] == ["ok"]


def test_a_resumption_profiles_missing_and_failed_cases(tmp_path: Path) -> None:
    run = run_of(tmp_path, *(case(batch=batch) for batch in (2, 3, 4)))
    profile_all(run, KINETO)
    write_profile(run.folder, Profile(case=case(batch=3), status="timeout", reason="it took too long"))
    profile_path(run.folder, case(batch=4).key).unlink()
    again = Profiler(run, worker_launches(), KINETO, resume=True).jobs(run.jobs)
    assert [each.case.batch for each in again] == [3, 4]


def test_a_resumption_keeps_times_and_adds_counters(tmp_path: Path, fake: Any) -> None:
    fake()
    run = run_of(tmp_path)
    (before,), _ = profile_all(run, KINETO)
    (job,) = run.jobs
    assert Profiler(run, worker_launches(), KINETO, resume=True).pending(job) == ()
    profiler = Profiler(run, worker_launches(), WITH_NCU, resume=True)
    assert profiler.pending(job) == job.cases
    (again,) = profiler.jobs(run.jobs)
    assert [kernel.counters is not None for kernel in again.kernels if kernel.name == "aten::mm"] == [True]
    assert (again.started_at, again.region_us) == (before.started_at, before.region_us)
    assert Profiler(run, worker_launches(), WITH_NCU, resume=True).pending(job) == ()


def test_the_next_job_tries_a_failed_profiler_again(tmp_path: Path, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next job's environment may differ, so a failed profiler is tried again; a missing permission is final."""
    for does, counted in (("no range", True), ("forbidden", False)):
        (folder := tmp_path / does.replace(" ", "-")).mkdir()
        run = run_of(folder, case(), case(batch=3))
        first, second = (replace(run.jobs[0], cases=(each,)) for each in run.jobs[0].cases)
        fake(does, names=("ncu",))
        tried = Profiler(run, worker_launches(), WITH_NCU, Limits(60, 60))
        tried.on_profile = lambda profile: monkeypatch.setenv("FAKE_PROFILER", "")
        found = tried.jobs([first, second])
        assert found[0].kernels[0].counters is None
        assert any(kernel.counters is not None for kernel in found[1].kernels) is counted


@pytest.fixture
def many(tmp_path: Path, fake: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    fake(names=("ncu",))
    monkeypatch.setenv("FAKE_LOG", str(log := tmp_path / "log"))

    def profile() -> tuple[list[Profile], list[list[str]], list[str]]:
        jobs = tuple(Job(system, "cpu", (Planned(case(system=system)),)) for system in "abc")
        run = Run.create(tmp_path / "run", RunFile("measure", "cpu", jobs, Catalogue(), Policy()))
        messages: list[str] = []
        of = {job.pair: worker_launches()[PAIR] for job in jobs}
        slots = [GpuSlot(f"GPU {gpu}", {"CUDA_VISIBLE_DEVICES": gpu}) for gpu in "01"]
        found = Profiler(run, of, WITH_NCU, Limits(60, 60), say=messages.append).jobs(jobs, slots)
        return found, [line.split() for line in log.read_text().splitlines()], messages

    return profile


def test_times_on_all_gpus_precede_counters_on_the_first(many: Any) -> None:
    found, log, messages = many()
    assert ([each.case.system for each in found], messages) == (["a", "b", "c"], [])
    assert all(each.kernels[0].counters is not None for each in found)
    assert [tool for _, tool, *_ in log] == ["kineto"] * 3 + ["ncu"] * 3
    assert ({gpu for *_, gpu in log[:3]}, {gpu for *_, gpu in log[3:]}) == ({"0", "1"}, {"0"})


def test_ncu_adds_counters_to_the_times_of_kineto(tmp_path: Path, fake: Any) -> None:
    fake()
    timed: list[Profile] = []
    (found,), messages = profile_all(run_of(tmp_path), WITH_NCU, on_times=timed.append)
    assert [list(each.stages_s) for each in timed] == [["times"]]
    counters = {kernel.name: kernel.counters for kernel in found.kernels}
    assert counters["aten::mm"].launches == 2
    assert found.tools["ncu"] == "2025.3.0"
    assert [command.split()[0] for command in found.commands][1:] == ["ncu"]
    assert list(found.stages_s) == ["times", "ratios"]
    assert str(tmp_path) not in " ".join(found.commands)
    assert messages == []


def test_ncu_counts_a_smaller_stand_in(tmp_path: Path, fake: Any) -> None:
    fake()
    run = run_of(tmp_path, mode="measure")
    (found,), messages = profile_all(run, WITH_NCU, stand_in=lambda each: case(size="small"))
    assert found.case == case()
    assert all(kernel.counters for kernel in found.kernels)
    assert profile_path(run.folder, case().key).with_suffix(".ncu-rep").exists()
    assert [" small " in note for note in found.notes] == [True]
    assert run.records() == []  # a run that measures keeps its own
    assert messages == []
    (tmp_path / "table.csv").write_text(ncu_table("another kernel"))
    (first,), _ = profile_all(run, WITH_NCU)
    (again,), _ = profile_all(run, WITH_NCU, resume=True)  # counts again, and replaces the notes on counters
    assert (again.notes, again.commands) == (first.notes, first.commands)


@pytest.mark.parametrize(
    ("does", "why", "lasting"),
    [
        ("die", "ncu failed: Failed to find metric regex:xyz; use --with torch instead", True),
        ("kill late", "ncu failed: it was killed by SIGKILL", False),
        ("forbidden", "NVreg_RestrictProfilingToAdminUsers=0", True),
        ("no range", "it found no range of the case; use --with torch instead", True),
        ("unreadable", "ncu could not read its report.*; try again .--resume., or use --with torch", False),
        ("hang", "did not end within 1 s and was killed", True),
    ],
)
def test_a_failure_of_ncu_keeps_the_times_and_adds_a_note(
    tmp_path: Path, fake: Any, monkeypatch: pytest.MonkeyPatch, does: str, why: str, lasting: bool
) -> None:
    fake(does)
    if does == "hang":
        monkeypatch.setattr(under_profiler, "STOP_S", 1.0)
    cases = [case(), case(batch=3)]
    run = run_of(tmp_path, *cases)
    found, messages = profile_all(run, WITH_NCU)
    assert [each.status for each in found] == ["ok", "ok"]
    assert re.search(why, found[0].notes[-1])
    assert found[0].kernels[0].counters is None
    assert len(messages) == (1 if lasting else 2)
    assert ("failed in an earlier case" in found[1].notes[-1]) is lasting
    if does not in ("die", "unreadable"):
        return
    monkeypatch.setenv("FAKE_PROFILER", "")
    resumed = Profiler(run, worker_launches(), WITH_NCU, Limits(60, 60), resume=True)
    assert [each.case for each in resumed.jobs(run.jobs)] == cases
    assert all(each.kernels[0].counters and not each.notes for each in run.profiles().values())
    assert resumed.jobs(run.jobs) == []


@pytest.mark.parametrize(("tools", "suffix"), [(WITH_NCU, ".ncu-rep"), (Tools("nsys"), ".nsys-rep")])
def test_ctrl_c_during_reading_is_no_failure(
    tmp_path: Path, fake: Any, monkeypatch: pytest.MonkeyPatch, tools: Tools, suffix: str
) -> None:
    fake("unreadable")
    run = run_of(tmp_path)
    report = profile_path(run.folder, case().key).with_suffix(suffix)
    job = JobProfiler(Profiler(run, worker_launches(), tools, Limits(60, 60)), run.jobs[0], DEFAULT_SLOT, report.exists)
    report.parent.mkdir()
    if tools.ratios:
        job.times()
    with pytest.raises(KeyboardInterrupt):
        (job.ratios if tools.ratios else job.times)()
    monkeypatch.setenv("FAKE_PROFILER", "")
    (again,) = Profiler(run, worker_launches(), tools, Limits(60, 60), resume=True).jobs(run.jobs)
    assert (again.status, again.notes, again.kernels[0].counters is None) == ("ok", (), tools.times == "nsys")


def test_sigterm_ends_profiling_as_ctrl_c_does(tmp_path: Path, fake: Any) -> None:
    fake()
    run, pid = run_of(tmp_path), os.getpid()
    with pytest.raises(KeyboardInterrupt):
        Profiler(run, worker_launches(), WITH_NCU, on_times=lambda _: os.kill(pid, signal.SIGTERM)).jobs(run.jobs)
    with run.held():  # the profiler has released the lock
        assert [each.status for each in run.profiles().values()] == ["ok"]


def test_a_lost_gpu_ends_profiling_and_fails_no_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, case(), case(batch=3))
    before, _ = profile_all(run, KINETO)
    monkeypatch.setenv("FAKE_GONE", "0")
    slot = GpuSlot(env={"CUDA_VISIBLE_DEVICES": "0"}, is_there=lambda: False)
    with pytest.raises(RunError, match="the GPU does not respond any more"):
        Profiler(run, worker_launches(), KINETO).jobs(run.jobs, [slot])
    assert list(run.profiles().values()) == before


def test_an_unhealthy_worker_still_leaves_its_report(
    tmp_path: Path, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake()
    monkeypatch.setenv("FAKE_UNHEALTHY", "1")
    (found,), messages = profile_all(run_of(tmp_path), WITH_NCU)
    assert (found.kernels[0].counters is not None, messages) == (True, [])


def test_nsys_uses_the_time_of_an_engine(tmp_path: Path, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake()
    monkeypatch.setenv("FAKE_RUN_INFO", '{"wall_us": [40.0], "alone_us": 30.0}')
    (found,), _ = profile_all(run_of(tmp_path), Tools("nsys", versions={"nsys": "2025.1"}))
    assert (found.region_us, found.units, [kernel.launches for kernel in found.kernels]) == (30.0, 5, [1, 1])
    assert found.tools == {"nsys": "2025.1"}
    assert "a run took 33% longer under the profiler" in found.notes[0]


def test_timed_runs_without_kernels_fail(tmp_path: Path, fake: Any) -> None:
    fake()
    database = sqlite3.connect(tmp_path / "fake.sqlite")
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"):
        database.execute(f"DELETE FROM {table} WHERE correlationId > 2")
    database.commit()
    database.close()
    (found,), _ = profile_all(run_of(tmp_path), Tools("nsys"))
    assert (list(found.tools), "no kernel in the range" in found.notes[0]) == (["torch.profiler"], True)


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("kill late", "nsys failed: it was killed by SIGKILL; use --with torch instead"),
        ("no importer", "nsys failed: it wrote no report: Importer error status: Importation failed.; use --with tor"),
        ("unreadable", "nsys could not read its report: the report cannot be opened; profiled by torch.profiler"),
        ("hang", "nsys did not end within 1 s and was killed; try a smaller case"),
    ],
)
def test_kineto_replaces_a_failing_nsys(
    tmp_path: Path, fake: Any, monkeypatch: pytest.MonkeyPatch, does: str, why: str
) -> None:
    fake(does)
    if does == "hang":
        monkeypatch.setattr(under_profiler, "STOP_S", 1.0)
    cases = [case(), case(batch=3)]
    found, messages = profile_all(run_of(tmp_path, *cases), Tools("nsys"))
    assert [(each.status, list(each.tools)) for each in found] == [("ok", ["torch.profiler"])] * 2
    assert why in found[0].notes[0]
    assert messages[0] == found[0].notes[0]


def test_a_profiler_that_never_starts_is_tried_once(tmp_path: Path, fake: Any) -> None:
    fake("never start")
    run, messages, limits = run_of(tmp_path, case(), case(batch=3)), list[str](), SimpleNamespace(start_s=60, case_s=60)
    profiler = Profiler(run, worker_launches(), WITH_NCU, limits, say=messages.append)  # type: ignore[arg-type]
    limits_s = iter((60, 0.5))  # set after the times of each case: 0.5 s for workers under ncu
    profiler.on_times = lambda profile: setattr(limits, "start_s", next(limits_s))
    found = profiler.jobs(run.jobs)
    assert [each.status for each in found] == ["ok", "ok"]
    assert "ncu failed: the system could not be started: no answer within 0.5 s" in found[0].notes[0]
    assert "raise --time-limit" in found[0].notes[0]
    assert "failed in an earlier case" in found[1].notes[0]
    assert len(messages) == 1


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("oom", "ncu failed: MemoryError: 80 GiB; try a smaller batch"),
        ("killed", "ncu failed: the worker was killed by SIGKILL (by a user, or by the system for lack of memory)"),
    ],
)
def test_a_failure_under_ncu_keeps_the_times(
    tmp_path: Path, fake: Any, monkeypatch: pytest.MonkeyPatch, does: str, why: str
) -> None:
    fake()
    monkeypatch.setenv("FAKE_WORKER", does)
    (found,), _ = profile_all(run_of(tmp_path), WITH_NCU)
    assert found.status == "ok"
    assert why in found.notes[0]


def test_auto_chooses_the_best_installed_profilers(fake: Any) -> None:
    fake()
    both = choose("auto", "cuda")
    assert (both.times, both.ratios) == ("nsys", "ncu")
    assert "times from Nsight Systems 2025.3.0.0, counters from Nsight Compute 2025.3.0.0" in both.summary
    assert choose("torch", "cuda").ratios == ""
    assert (choose("ncu", "cuda").times, choose("ncu", "cuda").ratios) == ("kineto", "ncu")
    assert choose("auto", "cpu").times == "kineto"


@pytest.mark.parametrize(("version", "names"), [("no number", ("ncu",)), ("Version 2025.3", ())])
def test_an_unusable_profiler_is_refused(fake: Any, version: str, names: tuple[str, ...]) -> None:
    fake("", version, names)
    assert "ncu not found" in choose("auto", "cuda").summary
    assert choose("auto", "cuda").ratios == ""
    with pytest.raises(ProfileError, match="ncu not found; install Nsight Compute"):
        choose("ncu", "cuda")
    with pytest.raises(ProfileError, match="no GPU was found"):
        choose("ncu", "cpu")
