"""`ttt-bench run`: what it leaves, goes on with, refuses and plans, and what other commands show of it."""

import csv
import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import replace

import pytest
from command_line import SMALL, assert_one_sentence, called, one_sentence, started, ttt_bench

from bench import estimate, plan, run_folder
from bench.commands import measure
from bench.request import RunRequest
from harness.schema.case import Case
from harness.schema.claims import Holder, note_holder
from harness.schema.run import Run
from harness.schema.run_file import Job, PastRequest, Planned

CASE = Case("ttt-linear", "torch", "tiny", "forward", 2, 64)

ELSEWHERE = '["transformer/torch"]\npython = "/bin/false"\n'  # an interpreter that starts no worker


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A finished run of two cases, and what it printed."""
    folder = tmp_path_factory.mktemp("run")
    return folder, ttt_bench("run", "quick", *SMALL, "--out", folder / "out", cwd=folder)


def records_of(folder):
    return Run.open(folder).records()


def test_a_run_leaves_a_run_folder_and_records_that_the_table_shows(measured):
    folder, done = measured
    assert done.returncode == 0, done.stderr
    assert "2 ok" in done.stdout
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["records", "run.json"]
    printed = ttt_bench("table", folder / "out", "--csv", "--columns", "all", cwd=folder)
    rows = list(csv.DictReader(io.StringIO(printed.stdout)))
    assert {row["phase"] for row in rows} == {"forward", "generate"}
    for row in rows:
        assert row["status"] == "ok"
        assert float(row["latency_ms_low"]) <= float(row["latency_ms"]) <= float(row["latency_ms_high"])
        tokens = int(row["batch"]) * (int(row["context"]) if row["phase"] == "forward" else 1)
        assert float(row["us_per_token"]) == pytest.approx(float(row["latency_ms"]) * 1000 / tokens)


def test_the_run_keeps_the_request_by_name_and_type(measured):
    folder, _ = measured
    run = Run.open(folder / "out")
    (request,) = run.file.requests
    asked = {"suites": ["quick"], "systems": ["transformer"], "batch": [1], "context": [32], "device": "cpu"}
    assert request.request == asked | {"budget_s": 0.05, "out": "out"}
    assert request.arguments == ("run", "quick", *SMALL, "--out", "out")
    assert [suite.name for suite in run.catalogue.suites] == ["quick"]


def test_cases_that_the_suite_does_not_have_are_said_in_a_sentence(measured):
    _, done = measured
    words = "--batch and --context change 2 of 2 cases of quick: a run of the plain suite does not have them"
    assert f"ttt-bench: {words}" in done.stderr.splitlines()


def test_the_table_is_json_and_markdown_too(measured):
    folder, _ = measured
    rows = json.loads(called("table", folder / "out", "--json", cwd=folder).stdout)
    assert [row["system"] for row in rows] == ["transformer", "transformer"]
    lines = called("table", folder / "out", "--markdown", cwd=folder).stdout.splitlines()
    assert len([line for line in lines if line.startswith("|")]) == 4  # names, a rule, two cases


def test_the_records_hold_raw_samples_and_what_was_checked(measured):
    folder, _ = measured
    for record in records_of(folder / "out"):
        assert record.samples_ms
        assert record.gate["passed"]
        names = {check["name"] for check in record.gate["checks"]}
        assert names >= {"logits_relative_error", "total_variation", "timed_logits_relative_error"}


def test_a_report_is_one_page(measured):
    folder, _ = measured
    done = ttt_bench("report", folder / "out", "-o", folder / "page.html", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "<html" in (folder / "page.html").read_text()[:200]


def test_resuming_a_finished_run_measures_nothing(measured):
    folder, _ = measured
    before = records_of(folder / "out")
    done = called("run", "quick", *SMALL, "--out", folder / "out", "--resume", cwd=folder)
    assert (done.returncode, records_of(folder / "out")) == (0, before)


def test_a_folder_of_other_files_is_left_alone(tmp_path):
    (tmp_path / "pyproject.toml").write_text("")
    said = one_sentence(called("run", "quick", *SMALL, "--out", ".", cwd=tmp_path))
    assert said == "ttt-bench: .: holds no run, but pyproject.toml; name another folder"
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]


@pytest.fixture
def only_planned(monkeypatch):
    """Runs begin and measure nothing."""
    monkeypatch.setattr(measure, "run_jobs", lambda *_, **__: [])


def test_by_default_a_run_has_a_folder_of_its_moment(tmp_path, only_planned):
    for call in range(2):
        if call:
            time.sleep(1.0 - time.time() % 1)
        assert called("run", "quick", *SMALL, cwd=tmp_path).returncode == 0
    first, second = sorted((tmp_path / "out").iterdir())
    assert all(re.fullmatch(r"\d{8}-\d{6}", folder.name) for folder in (first, second))
    assert_one_sentence(called("run", "quick", *SMALL, "--resume", cwd=tmp_path), "--resume: say by --out which run")


def test_a_resumption_of_nothing_says_that_it_begins(tmp_path, only_planned):
    done = called("run", "quick", *SMALL, "--out", "nuw", "--resume", cwd=tmp_path)
    assert "ttt-bench: nuw: no run yet; it begins now\n" in done.stderr


def test_without_resume_a_finished_run_is_not_overwritten(measured):
    folder, _ = measured
    before = records_of(folder / "out")
    assert_one_sentence(ttt_bench("run", "quick", *SMALL, "--out", folder / "out", cwd=folder), "--resume")
    assert records_of(folder / "out") == before


def test_what_another_call_plans_in_the_same_moment_is_kept(measured, tmp_path, monkeypatch, only_planned):
    """Between its first look at run.json and its hold of the folder, another call adds a case."""
    out = tmp_path / "out"
    shutil.copytree(measured[0] / "out", out)
    held = Run.held

    def another_call_first(run, *arguments):
        monkeypatch.setattr(Run, "held", held)
        file = Run.open(out)
        planned = file.jobs[0].cases[0]
        case = replace(planned.case, context=64)
        job = replace(file.jobs[0], cases=(replace(planned, case=case),))
        file.extend([job], file.catalogue, file.file.requests[0])
        return held(run, *arguments)

    monkeypatch.setattr(Run, "held", another_call_first)
    sixteen = ["16" if each == "32" else each for each in SMALL]
    done = called("run", "quick", *sixteen, "--out", out, "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    contexts = {planned.case.context for job in Run.open(out).jobs for planned in job.cases}
    assert contexts == {16, 32, 64}


def test_a_run_of_another_budget_is_not_continued(measured):
    folder, _ = measured
    asked = ["run", "quick", *SMALL[:-1], "0.1", "--out", folder / "out", "--resume"]
    for more in ([], ["--dry-run"]):
        done = called(*asked, *more, cwd=folder)
        assert_one_sentence(done, "samples each case for 0.05 s, not 0.1", "say --budget 0.05")
    done = called("run", "quick", *SMALL[:-2], "--out", folder / "out", "--resume", "--dry-run", cwd=folder)
    assert done.returncode == 0, done.stderr  # that of the run


def test_a_run_of_another_device_is_neither_continued_nor_profiled(measured, tmp_path):
    """Of H100s it would say of an H200 what does not fit, and draw two GPUs."""
    shutil.copytree(measured[0] / "out", tmp_path / "out")
    file = tmp_path / "out" / "run.json"
    values = json.loads(file.read_text())
    values["requests"][-1]["machine"]["device"] = "another CPU"
    file.write_text(json.dumps(values))
    for command in ("run", "profile"):
        asked = [command, "quick", *SMALL[:-2], "--out", "out", "--resume"]
        assert_one_sentence(called(*asked, cwd=tmp_path), "out: is of another CPU, and this machine has")


@pytest.mark.parametrize("command", ["run", "profile"])
def test_a_run_of_a_gpu_takes_no_cases_of_a_cpu(measured, tmp_path, command):
    """Whoever planned it: a machine with the GPU, or one that only submitted it to Slurm."""
    file = Run.open(measured[0] / "out").file
    for folder, machine in (("here", {"device_kind": "cuda", "device": "H100"}), ("submitted", {})):
        request = replace(file.requests[0], machine=file.requests[0].machine | machine)
        run = Run.create(tmp_path / folder, replace(file, device="cuda", requests=(request,)))
        before = (run.folder / "run.json").read_bytes()
        done = called(command, "quick", *SMALL[:-2], "--out", folder, "--resume", cwd=tmp_path)
        if command == "run":
            words = f"{folder}: is a run of cuda cases, and these are of cpu; name another --out"
            assert_one_sentence(done, words)
        assert done.returncode == 2
        assert (run.folder / "run.json").read_bytes() == before


def test_a_run_of_a_cpu_goes_on_whatever_the_type_of_its_numbers(measured, tmp_path):
    file = Run.open(measured[0] / "out").file
    jobs = [
        replace(job, cases=tuple(replace(each, case=replace(each.case, dtype="bfloat16")) for each in job.cases))
        for job in file.jobs
    ]
    Run.create(tmp_path / "out", replace(file, jobs=tuple(jobs), catalogue=replace(file.catalogue, suites=())))
    done = called("run", "quick", *SMALL[:-2], "--out", "out", "--resume", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("commit", "lines"), [("", 1), ("a" * 40, 0)])
def test_a_run_whose_commit_git_refuses_to_name_says_why(tmp_path, monkeypatch, capsys, commit, lines):
    monkeypatch.setattr(run_folder, "refusal_of_git", lambda: "fatal: detected dubious ownership")
    work = plan.plan(RunRequest(suites=("quick",), batch=(1,), context=(16,), device="cpu"))
    vars(work)["machine"] = work.machine | {"commit": commit}
    run_folder.open_run(work, tmp_path / "out", None)
    said = "no record of this run will name its commit: fatal: detected dubious ownership"
    assert capsys.readouterr().err == f"ttt-bench: {said}\n" * lines


def test_going_on_by_another_commit_or_gpu_of_the_model_is_said(measured, tmp_path):
    def request(commit, gpu, dirty=False):
        return PastRequest("2026-01-01", (), commit, dirty, {"device_kind": "cuda", "gpu": {"device_id": gpu}})

    file = Run.open(measured[0] / "out").file
    for after, said in (
        (("a" * 40, "1"), ""),
        (("b" * 40, "1"), f"goes on with a run of commit {'a' * 10} by commit {'b' * 10}"),
        (("a" * 40, "2"), "goes on with a run of GPU 1 by GPU 2"),
        (("b" * 40, "2"), f"goes on with a run of commit {'a' * 10} by commit {'b' * 10} and GPU 1 by GPU 2"),
        (("a" * 40, "1", True), f"goes on with a run of commit {'a' * 10} by commit {'a' * 10}-dirty"),
        (("", ""), ""),
    ):
        requests = (request("a" * 40, "1"), request(*after))
        assert run_folder.by_another(Run(tmp_path, replace(file, requests=requests))) == said
    shutil.copytree(measured[0] / "out", tmp_path / "out")
    Run(tmp_path / "out", replace(file, requests=(replace(file.requests[0], commit="c" * 40, dirty=False),))).save()
    done = called("run", "quick", *SMALL[:-2], "--out", "out", "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"ttt-bench: goes on with a run of commit {'c' * 10} by commit " in done.stderr


def test_a_dry_run_beside_a_run_is_not_refused(measured, tmp_path):
    shutil.copytree(measured[0] / "out", tmp_path / "out")
    done = called("run", "quick", *SMALL, "--dry-run", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("2 cases in 1 job")


def test_a_run_whose_cases_all_fail_exits_with_1_and_retry_tries_them_again(tmp_path):
    (tmp_path / "systems.toml").write_text(ELSEWHERE)
    done = called("run", "quick", *SMALL, "--out", "out", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert {record.status for record in records_of(tmp_path / "out")} == {"unstarted"}
    assert "ttt-bench: systems.toml of this folder says how to start transformer/torch\n" in done.stderr
    command = done.stderr.partition("ttt-bench: to measure again what failed: ttt-bench ")[2].splitlines()[0]
    assert command == "run --out out --retry failed"
    (tmp_path / "systems.toml").unlink()
    again = called(*command.split(), cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert {record.status for record in records_of(tmp_path / "out")} == {"ok"}


def test_retry_marked_measures_again_what_the_page_marks_and_nothing_else(measured, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(measured[0] / "out", out)
    files = {file: [*map(json.loads, file.read_text().splitlines())] for file in (out / "records").glob("*.jsonl")}
    loaded = next(iter(files))
    for file, records in files.items():  # as if nothing but one case had been disturbed
        for each in records:
            each["samples_ms"] = [1.0] * len(each["samples_ms"])
            disturbed = file == loaded and each is records[0]
            each["environment"]["cpu"] |= {"others_share": 0.5 if disturbed else 0.0, "idle_share": 0.0}
        file.write_text("".join(f"{json.dumps(each)}\n" for each in records))
    record = files[loaded][0]
    asked = ("run", "quick", *SMALL, "--out", "out", "--retry", "marked")
    plan = called(*asked, "--dry-run", cwd=tmp_path)
    assert plan.stdout.split()[0] == Case.from_dict(record["case"]).key
    assert "1 case in 1 job" in plan.stdout
    done = called(*asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for file, before in files.items():
        assert len(file.read_text().splitlines()) == len(before) + (file == loaded)
    last = json.loads(loaded.read_text().splitlines()[-1])
    assert (last["case"], last["started_at"] > record["started_at"]) == (record["case"], True)


def test_an_interpreter_that_does_not_exist_is_named_before_the_run(tmp_path):
    (tmp_path / "systems.toml").write_text('["transformer/torch"]\npython = "/nope/bin/python"\n')
    done = called("run", "quick", *SMALL, "--out", "out", cwd=tmp_path)
    assert "/nope/bin/python, which is to run transformer/torch, does not exist: `make baselines`" in done.stderr
    assert "nope" not in "".join(path.read_text() for path in (tmp_path / "out").rglob("*.json*"))


def test_an_environment_that_failed_to_install_is_the_reason_and_the_last_line(tmp_path):
    (tmp_path / "systems.toml").write_text('["transformer/torch"]\npython = ".venv-vllm/bin/python"\n')
    (tmp_path / ".venv-vllm.log").touch()
    called("run", "quick", *SMALL, "--out", "out", cwd=tmp_path)
    why = "its environment failed to install (log: .venv-vllm.log)"
    assert {(record.status, record.reason) for record in records_of(tmp_path / "out")} == {("skipped", why)}
    assert called("report", "out", cwd=tmp_path).stderr.splitlines() == [f"ttt-bench: no PyTorch: {why}"]


def interruptible(*arguments, cwd):
    # A shell that starts the tests in the background has them ignore the signal.
    return subprocess.Popen(
        **started(*arguments, cwd=cwd),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_an_interrupt_says_how_to_go_on(tmp_path):
    process = interruptible("run", "quick", "--device", "cpu", "--out", "out", cwd=tmp_path)
    while not list(tmp_path.glob("out/records/*.jsonl")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)  # many cases before its end
    _, said = process.communicate()
    assert process.returncode == 130
    command = "ttt-bench run --resume --out out"
    assert said.splitlines()[-1] == f"ttt-bench: interrupted; to continue: {command}"
    assert all(record.status == "ok" for record in records_of(tmp_path / "out"))


def test_the_command_to_continue_plans_what_the_first_one_did(tmp_path, monkeypatch):
    """The cases of the run, and none of the default suite."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "run_jobs", interrupted)
    folder = tmp_path / "a folder" / "out"
    folder.parent.mkdir()
    first = called("run", "--out=a folder/out", "quick", *SMALL, cwd=tmp_path)
    planned = Run.open(folder).jobs
    hint = first.stderr.splitlines()[-1].partition("to continue: ")[2]
    again = called(*shlex.split(hint)[1:], cwd=tmp_path)
    assert Run.open(folder).jobs == planned
    assert again.stderr.splitlines()[-1].partition("to continue: ")[2] == hint
    assert hint == "ttt-bench run --resume --out 'a folder/out'"
    monkeypatch.undo()
    done = called("status", "a folder/out", cwd=tmp_path)
    assert done.stdout.splitlines()[-2:] == ["no process is running it; to continue:", f"  {hint}"]
    note_holder(folder, Holder("another-machine", 17))  # as one leaves it that was taken away
    done = called("status", "a folder/out", cwd=tmp_path)
    assert done.stdout.splitlines()[-2:] == ["process 17 on another-machine may be gone; to continue:", f"  {hint}"]


def test_a_run_that_is_whole_has_no_command_to_continue(measured, tmp_path):
    shutil.copytree(measured[0] / "out", tmp_path / "out")
    for holder in (None, Holder("another-machine", 17)):
        if holder:
            note_holder(tmp_path / "out", holder)
        assert "to continue" not in called("status", "out", cwd=tmp_path).stdout


def test_a_run_of_a_version_that_kept_no_request_goes_on_with_its_own_cases(measured, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(measured[0] / "out", out)
    values = json.loads((out / "run.json").read_text())
    request = values["requests"][0] | {"arguments": ["run", "gone", "--sizes", "tiny"]}
    values["requests"] = [{name: value for name, value in request.items() if name != "request"}]
    (out / "run.json").write_text(json.dumps(values))
    (file,) = (out / "records").glob("*.jsonl")
    first, *_ = file.read_text().splitlines(keepends=True)
    file.write_text(first)
    said = called("status", "out", cwd=tmp_path).stdout.splitlines()[-2:]
    assert said == ["no process is running it; to continue:", "  ttt-bench run --resume --out out"]
    done = called(*said[1].split()[1:], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2 ok\n")
    assert "out: 1 case to run, 1 kept from before\n" in done.stderr
    assert Run.open(out).jobs == Run.open(measured[0] / "out").jobs


def test_a_run_of_a_system_that_is_gone_does_not_go_on(measured, tmp_path):
    file = Run.open(measured[0] / "out").file
    planned = Planned(replace(file.jobs[0].cases[0].case, backend="sdpa"))
    catalogue = replace(file.catalogue, suites=())
    Run.create(tmp_path / "out", replace(file, jobs=(Job("transformer", "sdpa", (planned,)),), catalogue=catalogue))
    done = called("run", "--resume", "--out", "out", cwd=tmp_path)
    assert_one_sentence(done, "out: was made by a version that had transformer/sdpa, which cannot be resumed")


def test_an_interrupt_is_one_line_where_nothing_can_go_on(tmp_path):
    process = interruptible("verify", "quick", "--systems", "transformer", "--device", "cpu", cwd=tmp_path)
    assert process.stderr.readline() == "verify: 10 cases to run\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert [line for line in said.splitlines() if line.startswith("ttt-bench")] == ["ttt-bench: interrupted"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("plan", "ttt-bench: interrupted"),
        ("warning", "ttt-bench: interrupted; to continue: ttt-bench run --resume --out out"),
    ],
)
def test_an_interrupt_before_the_first_case_says_whether_there_is_a_run(tmp_path, monkeypatch, where, said):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, where, interrupted)
    done = called("run", "quick", "--device", "cpu", "--out", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()) == (130, [said])
    assert Run.exists(tmp_path / "out") is ("--resume" in said)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_dry_run_lists_cases_and_jobs_and_needs_no_gpu(tmp_path, device):
    done = called("run", "quick", "--systems", "mamba", "--device", device, "--dry-run", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("mamba-torch" if device == "cpu" else "mamba-mamba-ssm") in done.stdout
    cases = [line for line in done.stdout.splitlines() if " tiny " in line]
    assert len(cases) == {"cpu": 10, "cuda": 20}[device]
    assert done.stdout.splitlines()[-1].startswith(f"{len(cases)} cases in ")
    assert "`ttt-bench list`, on the machine that will measure, says what can run there" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_dry_run_of_a_resumption_leaves_out_what_is_finished(measured, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(measured[0] / "out", out)
    (file,) = (out / "records").glob("*.jsonl")
    asked = ["run", "quick", *SMALL, "--out", "out", "--resume"]
    done = called(*asked, "--dry-run", cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "0 cases in 0 jobs; 2 cases kept from before"
    assert not [line for line in done.stdout.splitlines() if " tiny " in line]

    # As `run` does, it counts no cases of other calls; the longer forward takes as long as the one that is known.
    finished, *_ = file.read_text().splitlines(keepends=True)
    file.write_text(finished)
    asked[asked.index("32")] = "64"
    done = called(*asked, "--dry-run", cwd=tmp_path)
    left = [line.split()[0] for line in done.stdout.splitlines() if " tiny " in line]
    summary = done.stdout.splitlines()[-1]
    assert summary.startswith("2 cases in 1 job: ")
    assert "(1 of the cases guessed from others of their job)" in summary
    assert "kept from before" not in summary
    done = called(*asked, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2 ok\n")
    assert "out: 2 cases to run\n" in done.stderr
    assert left == [record.case.key for record in Run.open(out).records()][1:]


def test_of_an_earlier_call_nothing_is_counted(measured, tmp_path):
    shutil.copytree(measured[0] / "out", tmp_path / "out")
    asked = [*SMALL[:-2], "--phase", "forward", "--out", "out", "--resume"]
    done = called("run", "quick", *asked, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1 ok\n")
    assert "out: 0 cases to run, 1 kept from before\n" in done.stderr


def test_a_dry_run_of_rounds_counts_each_that_is_left(measured, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(measured[0] / "out", out)
    values = json.loads((out / "run.json").read_text())
    policy = values["policy"] | {"budget_s": values["policy"]["budget_s"] / 3}  # of each repeat
    (out / "run.json").write_text(json.dumps(values | {"repeats": 3, "policy": policy}))
    asked = ["run", "quick", *SMALL, "--out", "out", "--resume", "--dry-run"]
    lines = called(*asked, cwd=tmp_path).stdout.splitlines()
    assert len([line for line in lines if " tiny " in line]) == 2
    assert re.fullmatch(r"4 cases in 1 job: \d+ s; 2 cases kept from before", lines[-1])


def test_a_dry_run_knows_how_long_jobs_take_side_by_side(tmp_path):
    assert estimate.side_by_side([5.0, 3.0, 4.0, 1.0], 2) == 7.0
    assert estimate.side_by_side([5.0, 3.0], 1) == 8.0
    one, two = (
        called("run", "--device", "cuda", "--dry-run", *gpus, cwd=tmp_path).stdout.splitlines()[-1]
        for gpus in ([], ["--gpus", "0,1"])
    )
    assert "160 cases in 7 jobs: " in one
    assert "160 cases in 7 jobs on 2 GPUs: " in two
    first, second = (float(re.search(r": ([\d.]+) min", line)[1]) for line in (one, two))
    assert second < 0.7 * first


def test_a_dry_run_of_the_paper_has_the_headlines(tmp_path):
    done = ttt_bench("run", "--device", "cuda", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    jobs = [line.split()[0] for line in done.stdout.splitlines()[-8:-1]]
    assert jobs[:2] == ["ttt-linear-thunderkittens", "ttt-linear-triton-dual"]
    assert {"transformer-vllm", "mamba-mamba-ssm"} <= set(jobs)


def test_a_groups_systems_are_those_of_its_suites_whatever_stands_beside_it(tmp_path):
    def planned(*words):
        done = called("run", *words, "--device", "cuda", "--dry-run", cwd=tmp_path)
        return done.stdout.splitlines()[-1].partition(":")[0]

    assert planned("paper") == planned("paper", "paper") == "160 cases in 7 jobs"
    assert planned("paper", "dual-vs-primal") == "168 cases in 9 jobs"
    assert planned("paper", "fig20-throughput") == planned("fig20-throughput", "paper")
    assert int(planned("paper", "fig20-throughput").split()[0]) > 300  # named beside its group, it has all


def test_a_dry_run_for_slurm_plans_what_is_submitted(tmp_path):
    call = ("run", "--slurm", "partition=x,gpus=4", "--dry-run")
    done = called(*call, cwd=tmp_path)
    assert "160 cases in 7 jobs in 4 tasks: " in done.stdout.splitlines()[-1]
    assert "--slurm nonsense" in called("run", "--slurm", "nonsense", "--dry-run", cwd=tmp_path).stderr


def test_the_table_of_a_system(measured):
    folder, _ = measured
    everything, same = (
        called("table", folder / "out", "--json", *more, cwd=folder).stdout
        for more in ((), ("--systems", "transformer/torch"))
    )
    assert json.loads(same) == json.loads(everything)


@pytest.mark.parametrize("command", ["table", "report"])
def test_a_system_without_records(measured, tmp_path, command):
    done = called(command, measured[0] / "out", "--systems", "transformer/vllm", cwd=tmp_path)
    assert_one_sentence(done, "transformer/vllm", "no records")
    assert not list(tmp_path.iterdir())


def test_a_page_that_cannot_be_written(measured, tmp_path):
    (tmp_path / "file").write_text("")
    assert_one_sentence(called("report", measured[0] / "out", "-o", "file/page.html", cwd=tmp_path), "file/page.html")


def test_a_crash_in_mid_write_loses_only_the_torn_line(measured, tmp_path):
    shutil.copytree(measured[0] / "out", tmp_path / "out")
    (file,) = (tmp_path / "out" / "records").glob("*.jsonl")
    whole = file.read_text().splitlines(keepends=True)
    file.write_text(whole[0] + whole[1][:200])
    done = called("run", "quick", *SMALL, "--out", "out", "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after = file.read_text().splitlines(keepends=True)
    assert after[0] == whole[0]
    assert json.loads(after[1])["case"] == json.loads(whole[1])["case"]
