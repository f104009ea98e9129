"""SIGKILL of every kind of process of a run at random moments: is a case lost, doubled, a process left?"""

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.policy import Policy
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned, RunFile
from harness.workers.process import Launch
from harness.workers.scheduler import LOST, TRIES, run_jobs
from tests.attacks.victims import MARK

HERE = Path(__file__).resolve().parent
POLICY = Policy(min_samples=2, budget_s=0.0)
CHILDREN = ("", "group", "session", "orphan", "group session orphan")
REPEATS = 2
KILLS_A_RUN = 12
KINDS = ("parent", "warden", "worker", "starting worker", "grandchild")
_ENDS_S = 300.0  # of a parent that nobody kills
_STARTS_S = 0.2  # about as long as a worker takes to import what it needs
_DEAD_S = 60.0  # until what a dead parent had started must be gone


@dataclass
class Kills:
    """What an attack found. hit: kills by the kind of process; the others must stay 0 and empty."""

    hit: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    resumed: int = 0
    lost: int = 0
    doubled: int = 0
    left: int = 0
    broken: list[str] = field(default_factory=list)  # runs that could not be resumed or read

    def is_done(self, wanted: int) -> bool:
        """Whether so many processes are dead, and one of every kind."""
        return self.hit.total() >= wanted and not self.missed

    @property
    def missed(self) -> list[str]:
        """The kinds that no kill has hit."""
        return [kind for kind in KINDS if not self.hit[kind]]

    @property
    def failures(self) -> int:
        return self.lost + self.doubled + self.left + len(self.broken)


def attack(kills: int, seed: int = 0) -> Kills:
    """Kill until `kills` processes are dead and every kind was killed; each run is then brought to its end."""
    chance, found = random.Random(seed), Kills()
    while not found.is_done(kills):
        with tempfile.TemporaryDirectory(prefix="attack-") as folder:
            _attack_run(Path(folder) / "out", chance, found, kills)
    return found


def _attack_run(folder: Path, chance: random.Random, found: Kills, kills: int) -> None:
    found.runs += 1
    mark = f"{os.getpid()}{found.runs:06}"
    launches = _launches(mark)
    run = _new_run(folder)
    wanted = min(kills, found.hit.total() + KILLS_A_RUN)
    try:
        while not found.is_done(wanted):
            if _is_finished(run):
                _forget_some(run, chance)
            parent = _start(lambda: run_jobs(Run.open(folder), launches))
            found.resumed += 1
            _harass(parent, mark, chance, found, wanted)
            found.left += _left_of(mark)
        while not _is_finished(run):
            parent = _start(lambda: run_jobs(Run.open(folder), launches))
            status = _wait(parent, _ENDS_S)
            if status is None:
                _kill(parent)
                _wait(parent, _ENDS_S)
            found.left += _left_of(mark)
            if status != 0:
                found.broken.append(f"a run ended with status {status} though nobody killed it")
                return
        _count(run, found)
    except Exception as error:
        found.broken.append(f"{type(error).__name__}: {error}")
    finally:
        _left_of(mark)


def _launches(mark: str) -> dict[tuple[str, str], Launch]:
    paths = os.pathsep.join(filter(None, [str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]))
    launch = Launch([sys.executable], "tests.attacks.victims:Victim", {"PYTHONPATH": paths, MARK: mark})
    return {("victim", backend): launch for backend in ("a", "b")}


def _new_run(folder: Path) -> Run:
    jobs = tuple(Job("victim", backend, tuple(map(Planned, _cases(backend)))) for backend in ("a", "b"))
    return Run.create(folder, RunFile("measure", "cpu", jobs, Catalogue(), POLICY, repeats=REPEATS))


def _cases(backend: str) -> list[Case]:
    return [
        Case("victim", backend, "tiny", "forward", batch, 8, options=(("children", children),) if children else ())
        for batch, children in enumerate(CHILDREN, start=1)
    ]


def _start(run: Callable[[], object]) -> int:
    """A process that runs it, as its own parent of workers."""
    pid = os.fork()
    if pid:
        return pid
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        run()
        os._exit(0)
    except BaseException:
        os._exit(1)


def _harass(parent: int, mark: str, chance: random.Random, found: Kills, wanted: int) -> None:
    """Kill victims of a parent until it is dead or done, or enough are killed: each kind once, then at random.

    A kind that was not killed yet is looked for at short intervals, as a starting worker is soon a worker.
    """
    while not found.is_done(wanted):
        status = _wait(parent, chance.uniform(0.0, 0.02 if found.missed else 0.25))
        if status is not None:
            return
        kind = chance.choice(found.missed or KINDS)
        victims = [parent] if kind == "parent" else _family(mark).get(kind, [])
        if not victims:
            continue
        found.hit[kind] += _kill(chance.choice(victims))
        if kind == "parent":
            _wait(parent, _ENDS_S)
            return
    if _wait(parent, _ENDS_S) is None:
        found.broken.append("a run did not end")
        _kill(parent)
        _wait(parent, _ENDS_S)


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _wait(pid: int, seconds: float) -> int | None:
    """The exit status of a child, -signal for one that was killed; None while it runs."""
    end = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.002)


def _family(mark: str) -> dict[str, list[int]]:
    """The living processes of a run by their kind, found by what their environment or command line says."""
    found: dict[str, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            state = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            if not command[0] or state[0] in (b"Z", b"X"):
                continue
            environment = (entry / "environ").read_bytes().split(b"\0")
            young = time.clock_gettime(time.CLOCK_BOOTTIME) - int(state[19]) / os.sysconf("SC_CLK_TCK") < _STARTS_S
        except (OSError, IndexError):
            continue
        if f"{MARK}={mark}".encode() in environment or any(mark.encode() in word for word in command):
            found.setdefault(_kind(command, young), []).append(int(entry.name))
    return found


def _kind(command: list[bytes], young: bool) -> str:
    if any(word.endswith(b"warden.py") for word in command):
        return "warden"
    if b"harness.worker" in command:
        return "starting worker" if young else "worker"
    return "grandchild"


def _left_of(mark: str) -> int:
    """How many processes of a run whose parent is dead do not end by themselves; they are ended here."""
    end = time.monotonic() + _DEAD_S
    while (left := [pid for pids in _family(mark).values() for pid in pids]) and time.monotonic() < end:
        time.sleep(0.005)
    for pid in left:
        _kill(pid)
    return len(left)


def _records(run: Run) -> dict[tuple[str, int], list[str]]:
    """The statuses of each case and repeat, in the order of the file."""
    statuses: dict[tuple[str, int], list[str]] = {}
    for job in run.jobs:
        for planned in job.cases:
            for repeat in range(REPEATS):
                statuses[planned.case.key, repeat] = []
        for record in run.job_records(job):
            statuses[record.case.key, record.repeat].append(record.status)
    return statuses


def _is_finished(run: Run) -> bool:
    return all(
        any(each not in LOST for each in statuses) or len(statuses) >= TRIES for statuses in _records(run).values()
    )


def _forget_some(run: Run, chance: random.Random) -> None:
    """Let a finished run have more to do: cut its files at a random byte, as a kill in the middle of a write does."""
    for job in run.jobs:
        path = run.record_file(job).path
        whole = path.read_bytes()
        path.write_bytes(whole[: chance.randrange(len(whole) + 1)])


def _count(run: Run, found: Kills) -> None:
    for record in run.records():
        if record.status != "ok" and record.status not in LOST:
            found.broken.append(f"{record.case.label}: {record.status}: {record.reason}")
    for statuses in _records(run).values():
        ended = [each for each in statuses if each not in LOST]
        found.lost += not statuses
        found.doubled += max(0, len(ended) - 1) + (bool(ended) and statuses[-1] in LOST)
        found.doubled += max(0, len(statuses) - len(ended) - TRIES)
