"""`ttt-bench run`: the run folder, resumption, user errors and dry runs."""

import csv
import io
import json
import re
import shlex
import shutil
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace

import pytest
from command_line import SMALL, called, one_sentence, ttt_bench

from bench import plan, run_folder
from bench.commands import measure
from bench.request import RunRequest
from harness.schema.case import Case
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned

ELSEWHERE = '["transformer/torch"]\npython = "/bin/false"\n'  # an interpreter that starts no worker


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, ttt_bench("run", "quick", *SMALL, "--out", "out", cwd=folder)


@pytest.fixture
def copied(measured, tmp_path):
    shutil.copytree(measured[0] / "out", tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def only_planned(monkeypatch):
    monkeypatch.setattr(measure, "run_jobs", lambda *_, **__: [])


@pytest.fixture
def interrupted(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "run_jobs", interrupt)


def records_of(folder):
    return Run.open(folder).records()


def last_line(*arguments, cwd):
    return called("run", *arguments, cwd=cwd).stdout.splitlines()[-1]


def test_a_run_leaves_a_folder_with_records_that_the_table_shows(measured):
    folder, done = measured
    assert done.returncode == 0, done.stderr
    assert "2 ok" in done.stdout
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["records", "run.json"]
    assert "to continue" not in called("status", "out", cwd=folder).stdout
    printed = ttt_bench("table", folder / "out", "--csv", "--columns", "all", cwd=folder)
    rows = list(csv.DictReader(io.StringIO(printed.stdout)))
    assert {row["phase"] for row in rows} == {"forward", "generate"}
    for row in rows:
        assert row["status"] == "ok"
        assert float(row["latency_ms_low"]) <= float(row["latency_ms"]) <= float(row["latency_ms_high"])
        tokens = int(row["batch"]) * (int(row["context"]) if row["phase"] == "forward" else 1)
        assert float(row["us_per_token"]) == pytest.approx(float(row["latency_ms"]) * 1000 / tokens)
    for record in records_of(folder / "out"):
        assert record.samples_ms
        assert record.check["passed"]
        names = {check["name"] for check in record.check["checks"]}
        assert names >= {"logits_relative_error", "total_variation", "timed_logits_relative_error"}


def test_run_json_stores_the_request_with_types(measured):
    folder, _ = measured
    run = Run.open(folder / "out")
    (request,) = run.file.requests
    typed = {"suites": ["quick"], "systems": ["transformer"], "batch": [1], "context": [32], "device": "cpu"}
    assert request.request == typed | {"budget_s": 0.05, "out": "out"}
    assert request.arguments == ("run", "quick", *SMALL, "--out", "out")
    assert [suite.name for suite in run.catalogue.suites] == ["quick"]


def test_the_default_folder_has_the_current_time(tmp_path, only_planned):
    for second in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bench.cli.datetime", SimpleNamespace(now=lambda at=second: datetime(2026, 1, 1, second=at)))
            assert called("run", "quick", *SMALL, cwd=tmp_path).returncode == 0
    folders = sorted((tmp_path / "out").iterdir())
    assert len(folders) == 2
    assert all(re.fullmatch(r"\d{8}-\d{6}", folder.name) for folder in folders)


@pytest.mark.parametrize("exists", [False, True])
def test_resume_without_a_run_creates_one(tmp_path, only_planned, exists):
    notes = []
    for out, options in (("first", ()), ("second", ("--resume",))):
        if exists:
            (tmp_path / out).mkdir()
        notes.append(called("run", "quick", *SMALL, "--out", out, *options, cwd=tmp_path).stderr)
        assert Run.open(tmp_path / out).jobs
    assert notes[0] == notes[1]


def test_cases_of_a_concurrent_call_are_kept(copied, monkeypatch, only_planned):
    held = Run.held

    def another_call_first(run, *arguments):
        monkeypatch.setattr(Run, "held", held)
        file = Run.open(copied)
        planned = file.jobs[0].cases[0]
        case = replace(planned.case, context=64)
        job = replace(file.jobs[0], cases=(replace(planned, case=case),))
        file.extend([job], file.catalogue, file.file.requests[0])
        return held(run, *arguments)

    monkeypatch.setattr(Run, "held", another_call_first)
    sixteen = ["16" if each == "32" else each for each in SMALL]
    done = called("run", "quick", *sixteen, "--out", copied, "--resume", cwd=copied.parent)
    assert done.returncode == 0, done.stderr
    contexts = {planned.case.context for job in Run.open(copied).jobs for planned in job.cases}
    assert contexts == {16, 32, 64}


def test_a_run_with_another_budget_is_not_continued(measured):
    folder, _ = measured
    arguments = ["run", "quick", *SMALL[:-1], "0.1", "--out", folder / "out", "--resume"]
    for more in ([], ["--dry-run"]):
        done = called(*arguments, *more, cwd=folder)
        one_sentence(done, "samples each case for 0.05 s, not 0.1", "--budget 0.05")
    done = called("run", "quick", *SMALL[:-2], "--out", folder / "out", "--resume", "--dry-run", cwd=folder)
    assert done.returncode == 0, done.stderr


def test_a_side_of_ab_is_not_continued(copied):
    """`run --resume` refuses a run of `ab`: it would continue the first round and ignore the others."""
    values = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps(values | {"repeats": 2}))
    for more in ([], ["--dry-run"]):
        done = called("run", "quick", *SMALL, "--out", copied, "--resume", *more, cwd=copied.parent)
        one_sentence(done, "rounds of `ttt-bench ab`", "name another folder")


@pytest.mark.parametrize("command", ["run", "profile"])
def test_a_run_on_another_cpu_model_is_not_continued(copied, command):
    values = json.loads((copied / "run.json").read_text())
    values["requests"][-1]["machine"]["device"] = "another CPU"
    (copied / "run.json").write_text(json.dumps(values))
    arguments = [command, "quick", *SMALL[:-2], "--out", "out", "--resume"]
    one_sentence(called(*arguments, cwd=copied.parent), "out: is from another CPU, and this machine has")


@pytest.mark.parametrize("machine", [{"device_kind": "cuda", "device": "H100"}, {}], ids=["here", "submitted"])
def test_a_run_on_a_gpu_takes_no_cases_for_a_cpu(measured, tmp_path, machine):
    file = Run.open(measured[0] / "out").file
    request = replace(file.requests[0], machine=file.requests[0].machine | machine)
    run = Run.create(tmp_path / "out", replace(file, device="cuda", requests=(request,)))
    before = (run.folder / "run.json").read_bytes()
    done = called("run", "quick", *SMALL[:-2], "--out", "out", "--resume", cwd=tmp_path)
    one_sentence(done, "out: is a run on cuda, and these cases are for cpu")
    assert (run.folder / "run.json").read_bytes() == before


@pytest.mark.parametrize(("commit", "lines"), [("", 1), ("a" * 40, 0)])
def test_a_run_without_a_commit_prints_the_reason(tmp_path, monkeypatch, capsys, commit, lines):
    monkeypatch.setattr(run_folder, "git_error", lambda: "fatal: detected dubious ownership")
    work = plan.plan(RunRequest(suites=("quick",), batch=(1,), context=(16,), device="cpu"))
    vars(work)["machine"] = work.machine | {"commit": commit}
    run_folder.open_run(work, tmp_path / "out", None)
    note = "no record of this run will name its commit: fatal: detected dubious ownership"
    assert capsys.readouterr().err == f"ttt-bench: {note}\n" * lines


@pytest.mark.usefixtures("without_torch")
def test_a_run_without_results_exits_with_1_and_retry_measures_it_again(tmp_path):
    (tmp_path / "systems.toml").write_text(ELSEWHERE)
    done = called("run", "quick", *SMALL, "--out", "out", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert {record.status for record in records_of(tmp_path / "out")} == {"unstarted"}
    assert "ttt-bench: systems.toml in this folder configures transformer/torch\n" in done.stderr
    command = done.stderr.partition("to measure failed cases again: ttt-bench ")[2].splitlines()[0]
    assert command == "run --out out --retry failed"
    (tmp_path / "systems.toml").unlink()
    again = called(*command.split(), cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert {record.status for record in records_of(tmp_path / "out")} == {"ok"}


@pytest.mark.usefixtures("without_torch")
def test_retry_flagged_measures_flagged_cases_again(copied):
    files = {file: [*map(json.loads, file.read_text().splitlines())] for file in (copied / "records").glob("*.jsonl")}
    loaded = next(iter(files))
    for file, records in files.items():
        for each in records:
            disturbed = file == loaded and each is records[0]
            count = 9 if disturbed else 3  # as few as the plan of `quick` allows
            each |= {"samples_ms": [1.0] * count, "throttled": [False] * count}
            each["environment"]["cpu"] |= {"others_share": 0.5 if disturbed else 0.0, "idle_share": 0.0}
        file.write_text("".join(f"{json.dumps(each)}\n" for each in records))
    record = files[loaded][0]
    arguments = ("run", "quick", *SMALL, "--out", "out", "--retry", "flagged")
    plan = called(*arguments, "--dry-run", cwd=copied.parent)
    assert plan.stdout.split()[0] == Case(**record["case"]).key
    assert "1 case in 1 job" in plan.stdout
    done = called(*arguments, cwd=copied.parent)
    assert done.returncode == 0, done.stderr
    for file, before in files.items():
        assert len(file.read_text().splitlines()) == len(before) + (file == loaded)
    last = json.loads(loaded.read_text().splitlines()[-1])
    assert (last["case"], last["started_at"] > record["started_at"]) == (record["case"], True)


def test_the_command_to_continue_has_the_cases_of_the_run(tmp_path, interrupted):
    folder = tmp_path / "a folder" / "out"
    folder.parent.mkdir()
    first = called("run", "--out=a folder/out", "quick", *SMALL, cwd=tmp_path)
    planned = Run.open(folder).jobs
    assert first.returncode == 130
    hint = first.stderr.splitlines()[-1].partition("to continue: ")[2]
    assert hint == "ttt-bench run --resume --out 'a folder/out'"
    again = called(*shlex.split(hint)[1:], cwd=tmp_path)
    assert Run.open(folder).jobs == planned
    assert again.stderr.splitlines()[-1].partition("to continue: ")[2] == hint
    retry = ["run", "--phase", "forward", "--out", "a folder/out", "--retry", "flagged"]
    assert called(*retry, cwd=tmp_path).stderr.endswith(f"to continue: {shlex.join(['ttt-bench', *retry])}\n")
    done = called("status", "a folder/out", cwd=tmp_path)
    assert done.stdout.splitlines()[-2:] == ["this run is not running; to continue:", f"  {hint}"]


def test_a_run_of_an_unknown_system_is_not_continued(measured, tmp_path):
    file = Run.open(measured[0] / "out").file
    planned = Planned(replace(file.jobs[0].cases[0].case, backend="sdpa"))
    catalogue = replace(file.catalogue, suites=())
    Run.create(tmp_path / "out", replace(file, jobs=(Job("transformer", "sdpa", (planned,)),), catalogue=catalogue))
    done = called("run", "--resume", "--out", "out", cwd=tmp_path)
    one_sentence(done, "out: this version lacks transformer/sdpa")


@pytest.mark.parametrize(("device", "job", "cases"), [("cpu", "mamba-torch", 10), ("cuda", "mamba-mamba-ssm", 20)])
def test_a_dry_run_prints_cases_and_jobs_and_needs_no_gpu(tmp_path, device, job, cases):
    done = ttt_bench("run", "quick", "--systems", "mamba", "--device", device, "--dry-run", "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert job in done.stdout
    assert len([line for line in lines if " tiny " in line]) == cases
    assert lines[-1].startswith(f"{cases} cases in ")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_torch")
def test_a_dry_run_plans_what_a_resumed_run_measures(copied):
    (file,) = (copied / "records").glob("*.jsonl")
    finished, *_ = file.read_text().splitlines(keepends=True)
    file.write_text(finished)
    arguments = ["run", "quick", *("64" if each == "32" else each for each in SMALL), "--out", "out", "--resume"]
    lines = called(*arguments, "--dry-run", cwd=copied.parent).stdout.splitlines()
    assert lines[-1].startswith("2 cases in 1 job: ")
    assert "finished earlier" not in lines[-1]
    done = called(*arguments, cwd=copied.parent)
    assert (done.returncode, done.stdout) == (0, "2 ok\n")
    assert "out: 2 cases to run\n" in done.stderr
    left = [line.split()[0] for line in lines if " tiny " in line]
    assert left == [record.case.key for record in records_of(copied)][1:]


def test_a_phase_of_a_finished_run_is_kept(copied):
    for selected in (["quick", *SMALL[:-2]], []):
        done = called("run", *selected, "--phase", "forward", "--out", "out", "--resume", cwd=copied.parent)
        assert (done.returncode, done.stdout) == (0, "1 ok\n")
        assert "out: 0 cases to run, 1 finished earlier\n" in done.stderr
    done = called("run", "--systems", "mamba", "--out", "out", "--resume", cwd=copied.parent)
    one_sentence(done, "--systems mamba: out has no such case; name a suite to add it")


def test_a_dry_run_for_several_gpus_or_slurm_estimates_the_time_on_one(tmp_path):
    on_gpus = (["--device", "cuda"], ["--device", "cuda", "--gpus", "0,1"], ["--slurm", "partition=x,gpus=4"])
    one, *others = (last_line(*where, "--dry-run", cwd=tmp_path) for where in on_gpus)
    assert re.fullmatch(r"160 cases in 7 jobs: [\d.]+ (min|h) on one device, plus the start of the workers", one)
    assert others == [one, one]
    longer = last_line("--device", "cuda", "--budget", "5", "--dry-run", cwd=tmp_path)
    assert longer == f"{one}; --budget 5 is not considered"


def test_a_group_has_its_own_systems_but_a_suite_next_to_it_has_all(tmp_path):
    line = last_line("paper", "dual-vs-primal", "--device", "cuda", "--dry-run", cwd=tmp_path)
    assert line.startswith("168 cases in 9 jobs: ")
    lines = [
        last_line(*suites, "--device", "cuda", "--dry-run", cwd=tmp_path)
        for suites in (("paper", "fig20-throughput"), ("fig20-throughput", "paper"))
    ]
    assert lines[0] == lines[1]
    assert int(lines[0].split()[0]) > 300
