"""Kill parents and workers at random moments: no case is lost or recorded twice.

`KILL_ROUNDS=10` in the environment repeats that ten times.
"""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from harness_helpers import case, lines_of, new_run, statuses
from pool_helpers import launches, pooled, start_parent

from harness.schema.run import Run
from harness.workers.warden import descendants

SYSTEMS = ("a", "b", "c", "d")
CASES = 24
POOL_KILLS, SLURM_KILLS = 14, 6
ROUNDS = range(int(os.environ.get("KILL_ROUNDS", "1")))


def refuse_loss_and_doubles(run: Run) -> None:
    """Assert that every case has a record, and none has two with status ok."""
    records = run.records()
    assert len(records) == sum(len(job.cases) for job in run.jobs)
    assert set(statuses(records)) <= {"ok", "killed"}
    for job in run.jobs:
        ok = Counter(line["case"]["batch"] for line in lines_of(run.folder, job.name) if line["status"] == "ok")
        assert set(ok.values()) <= {1}


@pytest.mark.parametrize("number", ROUNDS)
def test_kills_of_parents_and_workers_of_a_pool(number: int, tmp_path: Path) -> None:
    draw = random.Random(2 * number + 1)
    cases = [case("slow", system=system, batch=batch) for system in SYSTEMS for batch in range(1, CASES // 4 + 1)]
    done = 0
    while done < POOL_KILLS:  # one run, or another where it is whole before
        run = new_run(tmp_path / f"out-{done}", cases)
        done += kills_of(run, POOL_KILLS - done, draw, tmp_path / "pids")
        pooled(run, launches(*SYSTEMS))
        refuse_loss_and_doubles(run)


def kills_of(run: Run, most: int, draw: random.Random, pids: Path) -> int:
    """Start a run and kill its parent or a descendant, again and again, until it is complete; return the kills."""
    done = 0
    while done < most and not is_whole(run):
        parent = start_parent(run, pids)
        try:
            while done < most and parent.poll() is None:
                time.sleep(draw.uniform(0.1, 0.5))
                below = descendants(parent.pid)
                kill(parent.pid if draw.random() < 0.4 or not below else draw.choice(below))
                done += 1
        finally:
            parent.kill()
            parent.wait()
    return done


def is_whole(run: Run) -> bool:
    return len(run.records()) == CASES


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
