"""Slurm tasks share the jobs of a run; batch scripts have the requested options; Slurm requeues a killed task."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from harness_helpers import HERE, ROOT, case, fake_command, lines_of, new_run, statuses, wait_for
from pool_helpers import worker_launches
from slurm_cluster import Cluster, missing

from harness.schema.run import Run
from harness.schema.run_file import RunError
from harness.workers import slurm
from harness.workers.scheduler import Options
from harness.workers.slurm import JOB, Task, refuse_submitted, run_task

TASK = Task("77", 0, 2)
JOBS = tuple(f"s{number}" for number in range(10))


@pytest.fixture
def squeue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    commands = tmp_path / "commands"
    fake_command(commands, "squeue", 'echo "0 RUNNING"; echo "1 PENDING"')
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    return commands


def test_tasks_share_all_jobs_of_the_run(folder: Path) -> None:
    run = new_run(folder, [case(system=job) for job in JOBS[:5]])
    of = worker_launches(*JOBS, entry="fake_systems:Fake")
    (folder / JOB).write_text("77")
    assert run_task(run, of, Task("77", 1, 2), Options()) == ["s1-cpu", "s3-cpu"]
    assert run_task(run, of, TASK, Options()) == ["s0-cpu", "s2-cpu", "s4-cpu"]
    assert statuses(run.records()) == ["ok"] * 5
    assert (folder / JOB).read_text() == "77"  # other tasks of the job may still wait


@pytest.mark.parametrize(("index", "first", "task"), [(3, 0, Task("77", 3, 4)), (5, 5, Task("77", 0, 1))])
def test_slurms_variables_name_the_task(index: int, first: int, task: Task) -> None:
    assert (Task.here({}), Task.here({"SLURM_JOB_ID": "80"})) == (None, Task("80", 0, 1))
    array = {"ID": index, "MIN": first, "MAX": first + task.count - 1, "COUNT": task.count}
    own = {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in array.items()}
    assert Task.here({"SLURM_JOB_ID": "80", "SLURM_ARRAY_JOB_ID": "77"} | own) == task
    with pytest.raises(slurm.SlurmError, match="--array of 9 tasks: is no range"):
        Task.here({"SLURM_ARRAY_JOB_ID": "77"} | own | {"SLURM_ARRAY_TASK_COUNT": "9"})


def test_tasks_and_a_single_run_exclude_each_other(folder: Path) -> None:
    run = new_run(folder, [case()])
    assert not run.is_held
    for shared in (True, False):
        with run.held(shared):
            assert run.is_held
            with pytest.raises(RunError, match="another process is using it"), run.held():
                pass
    with run.held(shared=True), run.held(shared=True):
        pass
    assert not run.is_held


def test_a_task_waits_for_its_submission(folder: Path) -> None:
    run = new_run(folder, [case(system="s0")])
    with run.held():
        task = threading.Thread(
            target=run_task,
            args=(run, worker_launches("s0", entry="fake_systems:Fake"), TASK, Options()),
        )
        task.start()
        time.sleep(0.5)
        assert not run.records()
    task.join()
    assert statuses(run.records()) == ["ok"]


@pytest.mark.usefixtures("squeue")
def test_a_run_that_was_submitted_is_refused_with_its_job(folder: Path) -> None:
    run = new_run(folder, [case(system="s0")])
    (folder / JOB).write_text("55")
    with pytest.raises(RunError, match="Slurm job 55 is writing to it; follow it"):
        run_task(run, worker_launches("s0"), TASK, Options())


def test_a_submission_unknown_to_slurm_is_over(folder: Path, squeue: Path) -> None:
    new_run(folder, [case(system="s0")])
    (folder / JOB).write_text("55")
    fake_command(squeue, "squeue", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    refuse_submitted(folder)


def test_a_submission_without_slurm_is_not_over(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    new_run(folder, [case()])
    (folder / JOB).write_text("55")
    with pytest.raises(RunError, match=r"submitted as Slurm job 55, .*squeue is not installed on this machine.*remove"):
        refuse_submitted(folder)


# Requests to Slurm


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "number of GPUs"),
        ("gpus=2,tasks=2", "number of GPUs"),
        ("gpus=0", "gpus=0: must be a number from 1 to 1000"),
        ("gpus=two", "gpus=two: must be"),
        ("gpus=1,array=0-9", "array=0-9: is set by the run itself"),
        ("gpus=1,Partition gpu", "Partition gpu: must be an option of sbatch"),
        ("gpus=1,time=1\n2", "must be an option of sbatch"),
        ("gpus=2,gpus-per-node=4", "gpus-per-node=4: is set by the run itself"),
    ],
)
def test_a_wrong_request_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(slurm.SlurmError, match=message):
        slurm.parsed(text)


def test_the_script_has_the_requested_options() -> None:
    request = slurm.parsed("partition=gpu, time=01:00:00,gpus=4,exclusive")
    text = slurm.script(request, 3, ["python", "-m", "bench", "work", "my out"], "/home/me", "/home/me/a b/log")
    for line in (
        "#SBATCH --array=0-2", "#SBATCH --requeue", "#SBATCH --gres=gpu:1", "#SBATCH --partition=gpu",
        "#SBATCH --time=01:00:00", "#SBATCH --exclusive", "#SBATCH --output='/home/me/a b/log'",
        "python -m bench work 'my out'",
    ):  # fmt: skip
        assert line in text.splitlines()
    assert "gres" not in slurm.script(slurm.parsed("tasks=1"), 1, ["true"], "/", "/log")
    assert "--gres=gpu:h100:1\n" in slurm.script(slurm.parsed("gpus=1,gres=gpu:h100:1"), 1, ["true"], "/", "/log")
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


def test_a_refusal_of_sbatch_is_reported(squeue: Path) -> None:
    fake_command(squeue, "sbatch", 'echo "sbatch: error: invalid partition specified: gpuu" >&2; exit 1')
    with pytest.raises(slurm.SlurmError, match="sbatch failed: sbatch: error: invalid partition specified: gpuu"):
        slurm.submit("x")
    fake_command(squeue, "sbatch", "echo welcome")
    with pytest.raises(slurm.SlurmError, match="sbatch answered 'welcome', which is not a job id"):
        slurm.submit("x")
    fake_command(squeue, "sbatch", 'echo Welcome; echo "123;cluster"')
    assert slurm.submit("x") == "123"


# A real Slurm


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    made = Cluster()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", made.env["SLURM_CONF"])
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(HERE)]))
        patch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/sbin")
        made.env.update(os.environ)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def logs_of(run: Run) -> str:
    return "\n".join(path.read_text() for path in run.folder.glob("*.log"))


def submitted(folder: Path) -> tuple[Run, str]:
    run = new_run(folder, [case("slow", system=job) for job in JOBS])
    command = [sys.executable, str(HERE / "slurm_task.py"), str(folder)]
    text = slurm.script(slurm.parsed("partition=gpu,gpus=4,mem=20"), 4, command, str(HERE), f"{folder}/task %a.log")
    (folder / "a script.sbatch").write_text(text)
    with run.held():
        array = slurm.submit(str(folder / "a script.sbatch"))
        (folder / JOB).write_text(array)
    return run, array


def workers(folder: Path) -> list[int]:
    arguments = f"slurm_task.py\0{folder}\0".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if arguments in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def test_a_killed_task_is_requeued_and_every_job_runs_once(cluster: Cluster, folder: Path) -> None:
    run, array = submitted(folder)
    assert wait_for(lambda: len(workers(folder)) >= 2 and run.records()), cluster.logs() + logs_of(run)
    with suppress(ProcessLookupError):
        os.kill(workers(folder)[0], signal.SIGKILL)
    cluster.finish(array)
    assert Counter(statuses(run.records())) == {"ok": len(JOBS)}, logs_of(run)
    lines = [len([line for line in lines_of(run.folder, job.name) if line["status"] == "ok"]) for job in run.jobs]
    assert lines == [1] * len(JOBS)
    assert {record.settings["gpu"] for record in run.records()} <= {"0", "1"}
    refuse_submitted(folder)
