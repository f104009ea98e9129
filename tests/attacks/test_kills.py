"""SIGKILL to every kind of process of a run: no case is lost or doubled, no process is left."""

import os
import random
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from harness.schema.policy import Policy
from harness.schema.run import Run
from harness.workers.process import Launch
from harness.workers.scheduler import LOST, TRIES, run_jobs
from tests.harness.harness_helpers import case, launch, new_run, wait_for

BACKENDS = ("a", "b")
CASES = 5  # of each backend
KILLS = 10
KINDS = ("parent", "warden", "worker", "starting worker", "grandchild")
ROUNDS = range(int(os.environ.get("KILL_ROUNDS", "1")))
_ENDS_S = 250.0  # for a run that nobody kills
_STARTS_S = 0.2  # about as long as a worker takes to import what it needs


@pytest.mark.parametrize("number", ROUNDS)
def test_kills_of_each_kind_of_process_lose_double_and_leave_nothing(tmp_path: Path, number: int) -> None:
    rng, mark = random.Random(number), f"FAKE_CHILD={tmp_path / 'family'}"  # in the environment of each process
    victim = launch("fake_systems:WithFamily", FAKE_CHILD=str(tmp_path / "family"), FAKE_THEN="return")
    launches = {("fake", backend): victim for backend in BACKENDS}
    cases = [case(backend=backend, batch=number + 1) for backend in BACKENDS for number in range(CASES)]
    run = new_run(tmp_path / "out", cases, policy=Policy(min_samples=2, budget_s=0.0))
    hit: Counter[str] = Counter()
    try:
        while hit.total() < KILLS or set(hit) < set(KINDS):
            if _is_finished(run):
                _truncate(run, rng)
            _kill_some(_start(run.folder, launches), mark, rng, hit)
            assert wait_for(lambda: not _family(mark)), f"processes outlive their parent: {_family(mark)}"
        while not _is_finished(run):
            assert _wait(_start(run.folder, launches), _ENDS_S) == 0
            assert wait_for(lambda: not _family(mark)), f"processes outlive their parent: {_family(mark)}"
    finally:
        for pid in _pids(_family(mark)):
            _kill(pid)
    assert {record.status for record in run.records()} <= {"ok", *LOST}
    for statuses in _statuses(run).values():
        lost = [each for each in statuses if each in LOST]
        assert statuses in ([*lost, "ok"], lost)  # ok at most once, and last
        assert statuses
        assert len(lost) <= TRIES


def _start(folder: Path, launches: dict[tuple[str, str], Launch]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        run_jobs(Run.open(folder), launches)
        os._exit(0)
    finally:
        os._exit(1)


def _kill_some(parent: int, mark: str, rng: random.Random, hit: Counter[str]) -> None:
    """Kill each kind of process once, then random ones, until the parent ends; count kills in `hit`."""
    while hit.total() < KILLS or set(hit) < set(KINDS):
        missed = [kind for kind in KINDS if not hit[kind]]
        if _wait(parent, rng.uniform(0.0, 0.02 if missed else 0.25)) is not None:
            return
        kind = rng.choice(missed or KINDS)
        family = _family(mark)
        victims = [parent] if kind == "parent" else family.get(kind, [])
        if victims and _kill(rng.choice(victims)):
            hit[kind] += 1
            if kind == "warden":  # the other warden ends the family; a kill of both leaves it alone
                assert wait_for(partial(_are_gone, mark, _pids(family)))
    assert _wait(parent, _ENDS_S) is not None, "a run did not end"


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _wait(pid: int, seconds: float) -> int | None:
    """Return a child's exit status, -signal if it was killed, None if it still runs."""
    end = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.002)


def _family(mark: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            state = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            ours = mark.encode() in (entry / "environ").read_bytes().split(b"\0")
            young = time.clock_gettime(time.CLOCK_BOOTTIME) - int(state[19]) / os.sysconf("SC_CLK_TCK") < _STARTS_S
        except (OSError, IndexError):
            continue
        if ours and command[0] and state[0] not in (b"Z", b"X"):
            found.setdefault(_kind(command, young), []).append(int(entry.name))
    return found


def _pids(family: dict[str, list[int]]) -> set[int]:
    return {pid for pids in family.values() for pid in pids}


def _are_gone(mark: str, pids: set[int]) -> bool:
    return not pids & _pids(_family(mark))


def _kind(command: list[bytes], young: bool) -> str:
    if any(word.endswith(b"warden.py") for word in command):
        return "warden"
    if b"harness.worker" in command:
        return "starting worker" if young else "worker"
    return "grandchild"


def _statuses(run: Run) -> dict[str, list[str]]:
    statuses: dict[str, list[str]] = {planned.case.key: [] for job in run.jobs for planned in job.cases}
    for record in (record for job in run.jobs for record in run.job_records(job)):
        statuses[record.case.key].append(record.status)
    return statuses


def _is_finished(run: Run) -> bool:
    return all(set(each) - set(LOST) or len(each) >= TRIES for each in _statuses(run).values())


def _truncate(run: Run, rng: random.Random) -> None:
    """Truncate the record files at a random byte, as a kill during a write does."""
    for job in run.jobs:
        path = run.record_file(job).path
        whole = path.read_bytes()
        path.write_bytes(whole[: rng.randrange(len(whole) + 1)])
