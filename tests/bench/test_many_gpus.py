"""`--gpus`, `--slurm`, `status` and `work`, and their user errors."""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import command_line
import pytest
from command_line import Done, one_sentence

from bench.commands.status import status
from bench.plan import plan
from bench.request import RunRequest
from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.record import Record
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned, RunFile
from tests.harness.harness_helpers import fake_command

SMALL = ["quick", "--systems", "transformer,ttt-linear/torch", "--batch", "1", "--context", "32", "--budget", "0.05"]


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    folder = tmp_path / "commands"
    fake_command(folder, "sbatch", f"echo x >>{tmp_path}/submitted; echo 4711")
    fake_command(folder, "squeue", 'echo "0 RUNNING"; echo "1 PENDING"')
    fake_command(folder, "scancel", f"echo $1 >{tmp_path}/cancelled")
    return folder


def environment(path: Path | None = None, **env: str) -> dict[str, str]:
    without = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "CUDA_VISIBLE"))}
    return without | {"PATH": f"{path}:/usr/bin:/bin" if path else "/nowhere"} | env


def ttt_bench(*arguments: object, cwd: Path, path: Path | None = None, **env: str) -> Done:
    return command_line.called(*arguments, cwd=cwd, env=environment(path, **env))


@pytest.mark.parametrize("command", ["run", "profile"])
@pytest.mark.parametrize(
    ("gpus", "visible", "message"),
    [
        ("7", "0,1", "--gpus 7: GPU '7' was not found; this machine has 0, 1"),
        ("0", "1", "--gpus 0: GPU '0' was not found; this machine has 1"),
        ("0,1.5", "0,1", "--gpus 0,1.5: GPU '1.5' was not found"),
        (",", "0,1", "--gpus ',': is an empty list"),
    ],
)
@pytest.mark.usefixtures("two_gpus")
def test_missing_gpus_are_refused(tmp_path: Path, command: str, gpus: str, visible: str, message: str) -> None:
    done = ttt_bench(command, "quick", "--gpus", gpus, cwd=tmp_path, CUDA_VISIBLE_DEVICES=visible)
    assert message in one_sentence(done)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("two_gpus")
def test_a_plan_is_for_the_first_gpu_of_the_option() -> None:
    for gpus, uuid in ((None, "GPU-aa"), ("all", "GPU-aa"), ("1", "GPU-bb"), ("1,0", "GPU-bb")):
        assert plan(RunRequest(suites=("quick",), gpus=gpus)).machine["device"] == f"name of {uuid}"


def test_a_plan_names_gpus_of_another_machine(tmp_path: Path) -> None:
    plan = ("run", "fig15-generate", "--dry-run", "--device", "cuda", "--gpus")
    for gpus in ("6,7", "GPU-a1b2,GPU-c3d4,MIG-e5", "all"):
        done = ttt_bench(*plan, gpus, cwd=tmp_path)
        assert re.match(r"\d+ cases in \d+ jobs: ", done.stdout.splitlines()[-1]), done.stderr
    for more in ([], ["--dry-run"]):
        done = ttt_bench("run", "quick", "--device", "cpu", "--gpus", "all", *more, cwd=tmp_path)
        assert "--gpus all: this run is on the CPU; add --device cuda" in one_sentence(done)


def test_a_login_node_without_gpu_plans_and_submits(tmp_path: Path, commands: Path) -> None:
    done = ttt_bench("run", "paper", "--slurm", "gpus=4,partition=gpu", "--out", "out", cwd=tmp_path, path=commands)
    assert done.returncode == 0, done.stderr
    assert "Slurm job 4711: 4 tasks for 7 jobs of 160 cases" in done.stdout
    assert "scancel 4711" in done.stdout
    script = (tmp_path / "out" / "slurm.sbatch").read_text()
    assert f"{sys.executable} -P -m bench work out" in script
    assert "#SBATCH --partition=gpu" in script
    assert {planned.case.dtype for job in Run.open(tmp_path / "out").jobs for planned in job.cases} == {"bfloat16"}


def test_a_run_is_submitted_once(tmp_path: Path, commands: Path) -> None:
    call = ("run", *SMALL, "--device", "cpu", "--slurm", "tasks=2", "--out", "an out")
    assert "ttt-bench status 'an out'\n" in ttt_bench(*call, cwd=tmp_path, path=commands).stdout
    planned = (tmp_path / "an out" / "run.json").read_bytes()
    here = [
        ("run", *SMALL, "--device", "cpu", "--resume", "--out", "an out"),
        ("profile", *SMALL[:-2], "--device", "cpu", "--resume", "--out", "an out"),
    ]
    for again in (call, (*call, "--resume"), *here):
        line = one_sentence(ttt_bench(*again, cwd=tmp_path, path=commands))
        assert "Slurm job 4711 is writing to it; follow it (ttt-bench status 'an out')" in line
    assert (tmp_path / "submitted").read_text() == "x\n"
    assert (tmp_path / "an out" / "run.json").read_bytes() == planned


def test_the_array_has_a_task_per_unfinished_job(tmp_path: Path, commands: Path) -> None:
    call = ("run", *SMALL, "--device", "cpu", "--slurm", "tasks=3", "--out", "out")
    fake_command(commands, "squeue", "")
    expected = ["2 tasks for 2 jobs of 4 cases", "1 task for 1 job of 2 cases", "out: every requested case is finished"]
    for number, words in enumerate(expected):
        assert words in ttt_bench(*call, "--resume", cwd=tmp_path, path=commands).stdout
        run = Run.open(tmp_path / "out")
        for planned in run.jobs[number % 2].cases:
            run.record_file(run.jobs[number % 2]).append(Record(planned.case, "failed", "a bug"))
    assert "#SBATCH --array=0-0\n" in (tmp_path / "out" / "slurm.sbatch").read_text()
    assert (tmp_path / "submitted").read_text() == "x\n" * 2


def test_status_names_the_slurm_job_of_each_running_job(tmp_path: Path, commands: Path) -> None:
    call = ("run", *SMALL, "--device", "cpu", "--slurm", "tasks=2", "--out", "out")
    ttt_bench(*call, cwd=tmp_path, path=commands)
    text = ttt_bench("status", "out", cwd=tmp_path, path=commands).stdout
    assert text.count("running: Slurm job 4711") == 2
    assert "0 of 4 cases" in text.splitlines()
    assert "1 running, 1 pending" in text
    assert "squeue is not installed on this machine" in ttt_bench("status", "out", cwd=tmp_path).stdout
    fake_command(commands, "squeue", 'echo "Invalid job id specified" >&2; exit 1')
    text = ttt_bench("status", "out", cwd=tmp_path, path=commands).stdout
    assert "running:" not in text
    *_, last, command = text.splitlines()
    assert last == "this run is not running; to continue:"
    assert command == "  ttt-bench run --slurm tasks=2 --resume --out out"


def test_status_counts_the_jobs_that_are_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [Job(system, "b", (Planned(Case(system, "b", "tiny", "forward", 1, 8)),)) for system in ("one", "two")]
    run = Run.create(tmp_path / "out", RunFile("measure", "cpu", tuple(jobs), Catalogue()))

    def lines() -> list[str]:
        status(run.folder)
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    nobody = ["this run is not running"]
    table = ["job cases state", "one-b 0 of 1 not finished", "two-b 0 of 1 not finished"]
    assert lines() == [*table, "0 of 2 cases", *nobody]
    with run.held():
        assert lines() == [line.replace("not finished", "running: a process") for line in table] + ["0 of 2 cases"]
    run.record_file(jobs[0]).append(Record(jobs[0].cases[0].case, "failed", "a bug"))
    assert lines() == [table[0], table[2], "1 of 2 jobs done", "1 of 2 cases: 1 failed", *nobody]
    run.record_file(jobs[1]).append(Record(jobs[1].cases[0].case, "failed", "a bug"))
    assert lines() == ["2 of 2 jobs done", "2 of 2 cases: 2 failed"]


def test_an_error_of_sbatch_is_reported_and_the_plan_stays(tmp_path: Path, commands: Path) -> None:
    call = ("run", *SMALL, "--device", "cpu", "--slurm", "tasks=2,partition=gpuu", "--out", "out")
    fake_command(commands, "sbatch", 'echo "sbatch: error: invalid partition specified: gpuu" >&2; exit 1')
    line = one_sentence(ttt_bench(*call, cwd=tmp_path, path=commands))
    assert "sbatch failed: sbatch: error: invalid partition specified: gpuu; the run is planned" in line
    assert line.endswith("to submit it: ttt-bench run --slurm tasks=2,partition=gpuu --resume --out out")


def test_work_needs_a_slurm_task(tmp_path: Path) -> None:
    work = ("work", "out", "--keys", "out/slurm.keys")
    assert "SLURM_JOB_ID is not set" in one_sentence(ttt_bench(*work, cwd=tmp_path))
    assert "out: no such folder" in one_sentence(ttt_bench(*work, cwd=tmp_path, SLURM_JOB_ID="1"))


def test_a_task_runs_the_cases_of_the_keys(tmp_path: Path, commands: Path) -> None:
    call = ("run", *SMALL, "--phase", "forward", "--device", "cpu", "--slurm", "tasks=1", "--out", "out")
    assert ttt_bench(*call, cwd=tmp_path, path=commands).returncode == 0
    run = Run.open(tmp_path / "out")
    of_another_version = replace(run.jobs[0].cases[0].case, backend="sdpa")
    lacking = Job(of_another_version.system, "sdpa", (Planned(of_another_version),))
    run.extend([lacking], run.catalogue, run.file.requests[-1])
    keys = tmp_path / "out" / "slurm.keys"
    first, _ = sorted(keys.read_text().split())
    keys.write_text(first)
    done = ttt_bench("work", "out", "--keys", keys, cwd=tmp_path, path=commands, SLURM_ARRAY_JOB_ID="4711")
    assert done.returncode == 0, done.stderr
    assert [(record.case.key, record.status) for record in Run.open(tmp_path / "out").records()] == [(first, "ok")]


def test_a_task_without_a_gpu_runs_no_job_of_a_gpu_run(tmp_path: Path, commands: Path) -> None:
    call = ("run", "quick", "--systems", "transformer/torch", "--device", "cuda", "--slurm", "gpus=1", "--out", "out")
    assert ttt_bench(*call, cwd=tmp_path, path=commands).returncode == 0
    task = {"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "0"}
    work = ("work", "out", "--keys", "out/slurm.keys")
    line = one_sentence(ttt_bench(*work, cwd=tmp_path, path=commands, **task))
    assert "out: is a run on a GPU, and this task's node has none" in line
    assert Run.open(tmp_path / "out").records() == []
