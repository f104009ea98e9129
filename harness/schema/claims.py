"""Claims: files that name the process which holds (has locked) a run or a job.

FOLDER/claims/run.json           the process that holds the whole run
FOLDER/claims/submission.json    the Slurm job whose tasks share the run, and the host that submitted it
FOLDER/claims/ARRAY/JOB.json     the task that holds a job; renamed to JOB.done once the job is finished
"""

import os
import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from harness.schema.case import Stored, Text
from harness.schema.files import create_atomically, read_regular, refusing, write_atomically
from harness.schema.record import RecordError


@dataclass(frozen=True)
class Holder(Stored):
    """A process that holds a run or one of its jobs.

    array, index, restart: Slurm's array id, the task's index, and how often Slurm requeued the task.
    """

    host: Text
    process: int
    array: str = ""
    index: str = ""
    restart: int = 0

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> "Holder":
        """Return this process's Holder, with its Slurm task if `environment` has one."""
        array = environment.get("SLURM_ARRAY_JOB_ID") or environment.get("SLURM_JOB_ID", "")
        index = environment.get("SLURM_ARRAY_TASK_ID", "0") if array else ""
        restart = environment.get("SLURM_RESTART_COUNT", "0") if array else "0"
        requeued = int(restart) if restart.isdecimal() else 0
        return cls(socket.gethostname(), os.getpid(), array, index, requeued)

    @property
    def name(self) -> str:
        """Name ARRAY_INDEX of the Slurm task; "" if Slurm did not start the process."""
        return f"{self.array}_{self.index}" if self.array else ""

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def is_dead(self) -> bool:
        """Whether the process is known to have ended; False for a process of another machine."""
        if not self.is_here:
            return False
        try:
            os.kill(self.process, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:  # a process of another user
            pass
        return False

    def __str__(self) -> str:
        restart = f", restart {self.restart}" if self.restart else ""
        task = f"Slurm task {self.name}{restart}, " if self.array else ""
        return f"{task}process {self.process} on {self.host}"


_ADAPTER: TypeAdapter[Holder] = TypeAdapter(Holder)


class Claims:
    """Claims of a Slurm array's tasks on a run's jobs; a task claims a job, then runs it."""

    def __init__(self, run_folder: Path, array: str) -> None:
        self.folder = _folder(run_folder) / array

    def take(self, job: str, holder: Holder) -> bool:
        """Claim a job for `holder`; return whether it now holds the job.

        A task can also claim the job that it claimed before Slurm requeued it.
        """
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
                return False  # two live processes of one Slurm task
            write_atomically(self._path(job), _text(holder))
            return True

    def finish(self, job: str) -> None:
        """Mark a claimed job as finished, so that no task of the array claims it again."""
        with refusing(self.folder, "written", RecordError):
            os.replace(self._path(job), self._done(job))

    def holder(self, job: str) -> Holder | None:
        """Return the task that claimed a job and has not finished it, or None."""
        return _read(self._path(job))

    def is_finished(self, job: str) -> bool:
        return self._done(job).exists()

    def _path(self, job: str) -> Path:
        return self.folder / f"{job}.json"

    def _done(self, job: str) -> Path:
        return self.folder / f"{job}.done"


def note_holder(run_folder: Path, holder: Holder) -> None:
    """Note `holder` as the process that holds the whole run."""
    _note(run_folder, "run.json", holder)


def forget_holder(run_folder: Path, alone: bool) -> None:
    """Remove the file of `note_holder`; `alone`: also the folder of claims, if it is empty."""
    with suppress(OSError):
        (_folder(run_folder) / "run.json").unlink(missing_ok=True)
        if alone:
            _folder(run_folder).rmdir()


def holders(run_folder: Path) -> list[Holder]:
    """Return the process that holds the whole run, or else the tasks that hold its jobs."""
    alone = holder_alone(run_folder)
    found = [alone] if alone else [_read(path) for path in sorted(_folder(run_folder).glob("*/*.json"))]
    return [each for each in found if each is not None]


def holder_alone(run_folder: Path) -> Holder | None:
    """Return the living process that holds the whole run; None if there is none."""
    found = _read(_folder(run_folder) / "run.json")
    return None if found is None or found.is_dead else found


def note_submission(run_folder: Path, array: str) -> None:
    """Note the run's Slurm job id (`array`) and this host."""
    _note(run_folder, "submission.json", Holder(socket.gethostname(), os.getpid(), array))


def submission(run_folder: Path) -> Holder | None:
    """Return a Holder with the run's Slurm job id (`array`) and submitting `host`, or None."""
    return _read(_folder(run_folder) / "submission.json")


def forget_submission(run_folder: Path) -> None:
    """Remove the note of `note_submission`, once the Slurm job has ended."""
    with refusing(run_folder, "written", RecordError):
        (_folder(run_folder) / "submission.json").unlink(missing_ok=True)


def clear(run_folder: Path) -> None:
    """Remove all claims on jobs, and the note of the Slurm job.

    Call it only while this process holds the whole run and no Slurm task is alive.
    """
    with refusing(run_folder, "written", RecordError):
        for path in _folder(run_folder).glob("*/"):
            shutil.rmtree(path)
    forget_submission(run_folder)


def _folder(run_folder: Path) -> Path:
    return run_folder / "claims"


def _note(run_folder: Path, name: str, holder: Holder) -> None:
    with refusing(run_folder, "written", RecordError):
        _folder(run_folder).mkdir(exist_ok=True)
        write_atomically(_folder(run_folder) / name, _text(holder))


def _read(path: Path) -> Holder | None:
    try:
        return _ADAPTER.validate_json(read_regular(path))
    except (OSError, ValueError):
        return None


def _text(holder: Holder) -> bytes:
    return _ADAPTER.dump_json(holder) + b"\n"
