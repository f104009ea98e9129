"""Who holds a run and its jobs: small files beside the run, each made whole by one process alone.

FOLDER/claims/run.json           the process that holds the run alone
FOLDER/claims/submission.json    the Slurm job whose tasks share the run, and from where it was submitted
FOLDER/claims/ARRAY/JOB.json     the task that holds a job; JOB.done once the job is finished
"""

import json
import os
import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.schema.files import create_atomically, read_regular, refusing, write_atomically
from harness.schema.reason import printable
from harness.schema.record import RecordError


@dataclass(frozen=True)
class Holder:
    """A process that holds a run or one of its jobs.

    array, index, restart: of a task, Slurm's id of the array, its index in it, and how often it was requeued.
    started: when the process began, in the kernel's ticks since the machine's start; 0 where that is not known.
    """

    host: str
    process: int
    array: str = ""
    index: str = ""
    restart: int = 0
    started: int = 0

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> "Holder":
        """This process, as a task where Slurm runs it as one."""
        array = environment.get("SLURM_ARRAY_JOB_ID") or environment.get("SLURM_JOB_ID", "")
        index = environment.get("SLURM_ARRAY_TASK_ID", "0") if array else ""
        restart = environment.get("SLURM_RESTART_COUNT", "0") if array else "0"
        requeued = int(restart) if restart.isdecimal() else 0
        return cls(socket.gethostname(), os.getpid(), array, index, requeued, _started(os.getpid()))

    @property
    def name(self) -> str:
        """ARRAY_INDEX of a task, as Slurm writes it; "" of another process."""
        return f"{self.array}_{self.index}" if self.array else ""

    @property
    def is_here(self) -> bool:
        """Whether its process is of this machine."""
        return self.host == socket.gethostname()

    @property
    def is_dead(self) -> bool:
        """Whether its process is known to have ended: no process of this machine has its number and began with it."""
        if not self.is_here:
            return False
        try:
            os.kill(self.process, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:  # another user's
            pass
        now = _started(self.process)
        return 0 not in (now, self.started) and now != self.started

    def __str__(self) -> str:
        restart = f", restart {self.restart}" if self.restart else ""
        task = f"Slurm task {self.name}{restart}, " if self.array else ""
        return f"{task}process {self.process} on {self.host}"


class Claims:
    """The claims on the jobs of a run by the tasks of one array."""

    def __init__(self, run_folder: Path, array: str) -> None:
        self.folder = _folder(run_folder) / array

    def take(self, job: str, holder: Holder) -> bool:
        """Whether the holder has the job now: it was free, or an earlier start of the same task had claimed it."""
        if self.is_finished(job):
            return False
        with refusing(self.folder, "written", RecordError):
            self.folder.mkdir(parents=True, exist_ok=True)
            if create_atomically(self._path(job), _text(holder)):
                return not self.is_finished(job)
            before = self.holder(job)
            if before is None or before.name != holder.name or before.restart > holder.restart:
                return False
            if before.restart == holder.restart and before != holder and not before.is_dead:
                return False  # two processes of one allocation
            write_atomically(self._path(job), _text(holder))
            return True

    def finish(self, job: str) -> None:
        """Leave a finished job; no task of the array takes it again."""
        with refusing(self.folder, "written", RecordError):
            os.replace(self._path(job), self._done(job))

    def holder(self, job: str) -> Holder | None:
        """The task that claimed a job and has not finished it."""
        return _read(self._path(job))

    def is_finished(self, job: str) -> bool:
        """Whether a task of the array finished the job."""
        return self._done(job).exists()

    def _path(self, job: str) -> Path:
        return self.folder / f"{job}.json"

    def _done(self, job: str) -> Path:
        return self.folder / f"{job}.done"


def note_holder(run_folder: Path, holder: Holder) -> None:
    """Say who holds the run alone."""
    with refusing(run_folder, "written", RecordError):
        path = _folder(run_folder) / "run.json"
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, _text(holder))


def forget_holder(run_folder: Path, alone: bool) -> None:
    """Remove the holder's note; alone: also the folder of claims, if it is empty: those in it are of tasks."""
    with suppress(OSError):
        (_folder(run_folder) / "run.json").unlink(missing_ok=True)
        if alone:
            _folder(run_folder).rmdir()


def holders(run_folder: Path) -> list[Holder]:
    """Who holds the run alone, else the tasks that claimed a job of it."""
    alone = holder_alone(run_folder)
    found = [alone] if alone else [_read(path) for path in sorted(_folder(run_folder).glob("*/*.json"))]
    return [each for each in found if each is not None]


def holder_alone(run_folder: Path) -> Holder | None:
    """The process that says that it holds the run alone; not one that was killed before it could take that back."""
    found = _read(_folder(run_folder) / "run.json")
    return None if found is None or found.is_dead else found


def note_submission(run_folder: Path, array: str) -> None:
    """Say which Slurm job the run's tasks belong to, and from where it was submitted."""
    with refusing(run_folder, "written", RecordError):
        folder = _folder(run_folder)
        folder.mkdir(exist_ok=True)
        write_atomically(folder / "submission.json", _text(Holder(socket.gethostname(), os.getpid(), array)))


def submission(run_folder: Path) -> Holder | None:
    """Who submitted the run, and as which Slurm job; None where nobody did."""
    return _read(_folder(run_folder) / "submission.json")


def forget_submission(run_folder: Path) -> None:
    """The Slurm job has done what it was submitted for."""
    with refusing(run_folder, "written", RecordError):
        (_folder(run_folder) / "submission.json").unlink(missing_ok=True)


def clear(run_folder: Path) -> None:
    """Free every job; for whoever holds the run alone, when no task of it lives."""
    folder = _folder(run_folder)
    with refusing(run_folder, "written", RecordError):
        for path in folder.glob("*/"):
            shutil.rmtree(path)
    forget_submission(run_folder)


def _folder(run_folder: Path) -> Path:
    return run_folder / "claims"


def _read(path: Path) -> Holder | None:
    try:
        values: Any = json.loads(read_regular(path))
        holder = Holder(**values)
    except (OSError, ValueError, TypeError):
        return None
    kinds = {name: type(value) for name, value in asdict(holder).items()}
    wanted = {"host": str, "process": int, "array": str, "index": str, "restart": int, "started": int}
    return holder if kinds == wanted and holder.host == printable(holder.host) else None


def _started(process: int) -> int:
    """When a process began, as `Holder.started`."""
    try:
        return int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):  # no /proc, or the process is gone
        return 0


def _text(holder: Holder) -> str:
    return json.dumps(asdict(holder)) + "\n"
