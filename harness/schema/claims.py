"""Claims: files that name who works on a run.

FOLDER/claims/run.json         the process that has locked the run
FOLDER/claims/submission.json  the Slurm job whose tasks share the run, and the host that submitted it
"""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from harness.schema.case import Stored, Text
from harness.schema.files import read_regular, refusing, write_atomically
from harness.schema.record import RecordError

PROCESS, SUBMISSION = "run.json", "submission.json"


@dataclass(frozen=True)
class Holder(Stored):
    """A process that has locked a run, or the Slurm job `array` that a process submitted."""

    host: Text
    process: int
    array: str = ""

    @classmethod
    def here(cls, array: str = "") -> "Holder":
        """Return this process as a Holder."""
        return cls(socket.gethostname(), os.getpid(), array)

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
        if self.array:
            return f"Slurm job {self.array} submitted from {self.host}"
        return f"process {self.process} on {self.host}"


_ADAPTER: TypeAdapter[Holder] = TypeAdapter(Holder)


def note(run_folder: Path, name: str, holder: Holder) -> None:
    """Write the claim `name`, `PROCESS` or `SUBMISSION`; RecordError if that fails."""
    with refusing(run_folder, "written", RecordError):
        (run_folder / "claims").mkdir(exist_ok=True)
        write_atomically(run_folder / "claims" / name, _ADAPTER.dump_json(holder) + b"\n")


def forget(run_folder: Path, name: str) -> None:
    """Remove the claim `name`, and the folder of claims if it is empty."""
    with suppress(OSError):
        (run_folder / "claims" / name).unlink(missing_ok=True)
        (run_folder / "claims").rmdir()


def noted(run_folder: Path, name: str) -> Holder | None:
    """Return the holder in the claim `name`; None without a claim, or if its process has ended."""
    try:
        found = _ADAPTER.validate_json(read_regular(run_folder / "claims" / name))
    except (OSError, ValueError):
        return None
    return None if found.is_dead and not found.array else found
