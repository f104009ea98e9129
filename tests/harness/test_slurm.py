"""Tasks that share a run: claims, requests to Slurm, and a real Slurm of two nodes."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from harness_helpers import HERE, ROOT, case, lines_of, new_run, statuses, wait_for
from pool_helpers import launches, pooled, slot
from slurm_cluster import Cluster, missing

from harness.schema import claims
from harness.schema.claims import Claims, Holder
from harness.schema.run import Run
from harness.schema.run_file import RunError
from harness.workers import slurm
from harness.workers.scheduler import Options
from harness.workers.task import refuse_submitted, run_task

TASK = Holder("n1", 10, "77", "0")
JOBS = tuple(f"s{number}" for number in range(10))


@pytest.fixture
def no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def fake_command(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def squeue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    commands = tmp_path / "commands"
    fake_command(commands, "squeue", 'echo "0 RUNNING"; echo "1 PENDING"')
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    return commands


# Claims


def test_one_task_alone_may_claim_a_job_again_until_it_finished_it(folder: Path) -> None:
    mine = Claims(folder, "77")
    assert mine.take("a", TASK)
    assert mine.take("a", TASK)
    assert not mine.take("a", replace(TASK, index="1"))
    assert (mine.holder("a"), claims.holders(folder)) == (TASK, [TASK])
    mine.finish("a")
    assert mine.is_finished("a")
    assert claims.holders(folder) == []
    assert not mine.take("a", TASK)
    assert Claims(folder, "78").take("a", replace(TASK, array="78"))


def test_a_job_finished_during_a_claim_is_not_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed, create = Claims(folder, "77"), claims.create_atomically

    def slow(path: Path, text: str) -> bool:
        monkeypatch.setattr(claims, "create_atomically", create)
        claimed.take("a", replace(TASK, index="1"))
        claimed.finish("a")
        return create(path, text)

    monkeypatch.setattr(claims, "create_atomically", slow)
    assert not claimed.take("a", TASK)


def test_two_processes_of_one_allocation_do_not_take_a_job_from_each_other(folder: Path) -> None:
    other = replace(TASK, host="n2", process=99)
    assert Claims(folder, "77").take("a", TASK)
    assert not Claims(folder, "77").take("a", other)
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert Claims(folder, "77").take("b", replace(TASK, host=socket.gethostname(), process=ended.pid))
    assert Claims(folder, "77").take("b", TASK)


def test_one_of_many_concurrent_claims_succeeds(folder: Path) -> None:
    won: list[int] = []
    start = threading.Barrier(16)

    def claim(number: int) -> None:
        start.wait()
        for job in JOBS:
            if Claims(folder, "77").take(job, replace(TASK, index=str(number))):
                won.append(number)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == len(JOBS)
    assert not [path for path in (folder / "claims" / "77").iterdir() if path.name.startswith(".")]


def test_a_requeued_task_resumes_its_claim_and_an_earlier_start_does_not(folder: Path) -> None:
    again = replace(TASK, host="n2", process=99, restart=1)
    assert Claims(folder, "77").take("a", TASK)
    assert Claims(folder, "77").take("a", again)
    assert Claims(folder, "77").holder("a") == again
    assert not Claims(folder, "77").take("a", TASK)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": 1}', '{"host": "a", "process": "b"}', '{"x": 1}'])
def test_a_broken_claim_has_no_holder(folder: Path, text: str) -> None:
    claimed = Claims(folder, "77")
    assert claimed.take("a", TASK)
    (folder / "claims" / "77" / "a.json").write_text(text)
    assert claimed.holder("a") is None
    assert not claimed.take("a", TASK)


def test_a_holder_has_the_task_of_slurms_variables() -> None:
    env = {"SLURM_JOB_ID": "80", "SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "2"}
    task = Holder.here(env)
    assert (task.name, task.restart, task.process) == ("77_3", 2, os.getpid())
    assert str(task).startswith("Slurm task 77_3, restart 2, process ")
    assert Holder.here({"SLURM_JOB_ID": "80"}).name == "80_0"
    assert Holder.here({}).name == ""


# Tasks


def test_two_tasks_share_the_jobs_and_the_run_is_whole(folder: Path) -> None:
    run = new_run(folder, [case(system=job) for job in JOBS[:4]])
    of = launches(*JOBS, entry="fake_systems:Fake")
    found: dict[str, list[str]] = {}

    def task(index: str) -> None:
        found[index] = run_task(Run.open(folder), of, replace(TASK, index=index), Options())

    threads = [threading.Thread(target=task, args=(index,)) for index in "01"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found["0"] + found["1"]) == [job.name for job in run.jobs]
    assert statuses(run.records()) == ["ok"] * 4
    assert all(len(lines_of(folder, job.name)) == 1 for job in run.jobs)
    assert run_task(run, of, replace(TASK, index="2"), Options()) == []


def test_tasks_and_a_single_run_exclude_each_other(folder: Path) -> None:
    run = new_run(folder, [case()])
    Claims(folder, "77").take("fake-cpu", TASK)
    with (
        run.held(TASK),
        run.held(TASK),
        pytest.raises(RunError, match=r"another run is writing to it \(Slurm task 77_0, process 10 on n1\)"),
        run.held(),
    ):
        pass
    with run.held(), pytest.raises(RunError, match=rf"another run .*\(process {os.getpid()} on .+\)"), run.held():
        pass


def test_a_task_waits_for_its_submission(folder: Path) -> None:
    run = new_run(folder, [case(system="s0")])
    with run.held():
        task = threading.Thread(
            target=run_task,
            args=(run, launches("s0", entry="fake_systems:Fake"), TASK, Options()),
        )
        task.start()
        time.sleep(0.5)
        assert not run.records()
    task.join()
    assert statuses(run.records()) == ["ok"]


def test_a_task_whose_job_was_taken_over_writes_no_more(folder: Path) -> None:
    run = new_run(folder, [case(system="s0", batch=number + 1) for number in range(3)])

    def requeue(event: object) -> None:
        if getattr(event, "record", None):
            Claims(folder, "77").take("s0-cpu", replace(TASK, restart=1, host="n2"))

    with pytest.raises(RunError, match=r"s0-cpu was taken over by Slurm task 77_0, restart 1, .* on n2"):
        run_task(run, launches("s0", entry="fake_systems:Fake"), TASK, Options(on_event=requeue))
    assert len(run.records()) == 1


def test_a_task_without_its_gpu_takes_no_more_jobs(folder: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    run = new_run(folder, [case(system=job, batch=batch) for job in JOBS[:2] for batch in (1, 2)])
    lost = slot("1", is_there=lambda: not gone.exists())
    of = launches(*JOBS, FAKE_GONE=f"1:{gone}")
    with pytest.raises(RunError, match="no GPU answers any more, 1 job unfinished"):
        run_task(run, of, TASK, Options(), lost)
    assert len(run.records()) == 1
    assert run_task(run, of, replace(TASK, index="1"), Options(), slot("0")) == ["s1-cpu"]
    pooled(run, of, [slot("0")])
    assert statuses(run.records()) == ["ok"] * 4


@pytest.mark.usefixtures("squeue")
def test_a_run_that_was_submitted_is_refused_with_its_job_and_host(folder: Path) -> None:
    run = new_run(folder, [case(system="s0")])
    claims.note_submission(folder, "55")
    expected = f"another run is writing to it, Slurm job 55 submitted from {claims.Holder.here().host}; follow it"
    with pytest.raises(RunError, match=expected):
        refuse_submitted(folder)
    with pytest.raises(RunError, match=expected):
        run_task(run, launches("s0"), TASK, Options())


def test_a_submission_unknown_to_slurm_is_over(folder: Path, squeue: Path) -> None:
    run = new_run(folder, [case(system="s0")])
    claims.note_submission(folder, "55")
    fake_command(squeue, "squeue", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    refuse_submitted(folder)
    assert run_task(run, launches("s0", entry="fake_systems:Fake"), TASK, Options()) == ["s0-cpu"]
    assert claims.submission(folder) is None  # all is done


@pytest.mark.usefixtures("no_slurm")
def test_a_submission_without_slurm_is_not_over(folder: Path) -> None:
    new_run(folder, [case()])
    claims.note_submission(folder, "55")
    with pytest.raises(RunError, match=r"submitted as Slurm job 55 from .*squeue: is not on this machine.*remove"):
        refuse_submitted(folder)


# Requests to Slurm


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "number of GPUs"),
        ("partition=gpu", "number of GPUs"),
        ("gpus=2,tasks=2", "number of GPUs"),
        ("gpus=0", "gpus=0: must be a number from 1 to 1000"),
        ("gpus=two", "gpus=two: must be"),
        ("gpus=1,array=0-9", "array=0-9: is set by the run itself"),
        ("gpus=1,time=1,time=2", "time: is given twice"),
        ("gpus=1,Partition gpu", "Partition gpu: must be an option of sbatch"),
        ("gpus=1,time=1\n2", "must be an option of sbatch"),
        ("gpus=2,nodelist=n1,n2", "n2: is not NAME=VALUE; a value cannot hold a comma"),
        ("gpus=2,time", "time: is not NAME=VALUE"),
        ("gpus=2,gres=gpu:4", "gres=gpu:4: a task has one GPU"),
        ("gres=gpu:4", "number of GPUs"),
        ("gpus=2,gpus-per-node=4", "gpus-per-node=4: use gpus=N"),
        ("gpus=2,account=...", "account=...: stands for a private name"),
    ],
)
def test_a_wrong_request_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(slurm.SlurmError, match=message):
        slurm.parsed(text)


@pytest.mark.parametrize("gres", ["gpu", "gpu:1", "gpu:h100", "gpu:h100:1"])
def test_a_gpu_may_be_of_a_kind(gres: str) -> None:
    assert slurm.parsed(f"gpus=2,gres={gres},hold").options == {"gres": gres, "hold": ""}


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
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


def test_a_refusal_of_sbatch_is_reported(squeue: Path) -> None:
    fake_command(squeue, "sbatch", 'echo "sbatch: error: invalid partition specified: gpuu" >&2; exit 1')
    with pytest.raises(slurm.SlurmError, match="sbatch failed: sbatch: error: invalid partition specified: gpuu"):
        slurm.submit("x")
    fake_command(squeue, "sbatch", "echo welcome")
    with pytest.raises(slurm.SlurmError, match="sbatch answered 'welcome', which is no job id"):
        slurm.submit("x")
    fake_command(squeue, "sbatch", 'echo Welcome; echo "123;cluster"')
    assert slurm.submit("x") == "123"


@pytest.mark.usefixtures("no_slurm")
def test_commands_report_a_missing_slurm() -> None:
    for call in (slurm.submit, slurm.task_states):
        with pytest.raises(slurm.SlurmError, match="is not on this machine"):
            call("1")


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
    """Submit a run; its ten jobs last long enough for a test to kill their processes."""
    run = new_run(folder, [case("slow", system=job) for job in JOBS])
    command = [sys.executable, str(HERE / "slurm_task.py"), str(folder)]
    text = slurm.script(slurm.parsed("partition=gpu,gpus=4,mem=20"), 4, command, str(HERE), f"{folder}/task %a.log")
    (folder / "a script.sbatch").write_text(text)
    with run.held():
        array = slurm.submit(str(folder / "a script.sbatch"))
        claims.note_submission(folder, array)
    return run, array


def claimed(run: Run, array: str) -> list[Holder]:
    found = (Claims(run.folder, array).holder(job.name) for job in run.jobs)
    return [holder for holder in found if holder]


def all_once(run: Run) -> None:
    assert Counter(statuses(run.records())) == {"ok": len(JOBS)}, logs_of(run)
    lines = [len([line for line in lines_of(run.folder, job.name) if line["status"] == "ok"]) for job in run.jobs]
    assert lines == [1] * len(JOBS)


def test_a_killed_task_is_requeued_and_every_job_runs_once(cluster: Cluster, folder: Path) -> None:
    run, array = submitted(folder)
    assert wait_for(lambda: len(claimed(run, array)) >= 2), cluster.logs() + logs_of(run)
    with suppress(ProcessLookupError):
        os.kill(claimed(run, array)[0].process, signal.SIGKILL)
    cluster.finish(array)
    all_once(run)
    assert '"restart":1' in " ".join(path.read_text() for path in (folder / "claims").rglob("*.done"))
    assert {record.settings["gpu"] for record in run.records()} <= {"0", "1"}
    assert claims.submission(folder) is None
    refuse_submitted(folder)


def test_a_cancelled_run_is_free_and_goes_on_alone(cluster: Cluster, folder: Path) -> None:
    run, array = submitted(folder)
    assert wait_for(lambda: claimed(run, array))
    with pytest.raises(RunError, match=f"Slurm job {array} submitted from"):
        refuse_submitted(folder)
    subprocess.run(["scancel", array], check=True)
    cluster.finish(array)
    refuse_submitted(folder)
    pooled(run, launches(*JOBS))
    all_once(run)
