"""A run: a folder of JSON files with the planned cases, their records and their profiles."""

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.files import listed, read_regular, refusing, write_atomically
from harness.schema.profile import Profile, profile_path, read_profile
from harness.schema.reason import clipped
from harness.schema.record import Record, RecordFile, parsed
from harness.schema.run_file import FILE, RUN_FILE, Job, PastRequest, RunError, RunFile, jobs_of

_REASON_LIMIT = 400  # characters of a sentence about run.json
_STATUS_S = 0.5  # longest wait for the lock: `ttt-bench status` holds it for a moment
_SUBMIT_S = 60.0  # the same for a Slurm task: the process that submitted the task may still hold the lock


@dataclass(eq=False)
class Run:
    """A run's folder and its run.json; `create` and `open` raise RunError if they fail."""

    folder: Path
    file: RunFile

    @classmethod
    def create(cls, folder: Path, file: RunFile) -> "Run":
        """Create a run in a new or empty folder; RunError if the folder has files or is locked."""
        cls.refuse_existing(folder)
        with refusing(folder, "written", RunError):
            folder.mkdir(parents=True, exist_ok=True)
        run = cls(folder, file)
        with run.held():
            cls.refuse_existing(folder)  # again: another process may have been first
            run.save()
        return run

    @staticmethod
    def refuse_existing(folder: Path) -> None:
        """Raise RunError if `folder` is a file, or already has a run or other files."""
        with refusing(folder, "read", RunError):
            has_run, others = os.path.lexists(folder / FILE), listed(folder)
        if has_run:
            raise RunError(f"{folder}: holds a run already; resume it (--resume) or name another folder")
        if folder.exists() and not folder.is_dir():
            raise RunError(f"{folder}: is not a folder; name another for the run")
        if others:
            raise RunError(f"{folder}: holds no {FILE}, but {others[0].name}; name another folder")

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Open the run in `folder`; RunError if its run.json is missing or invalid."""
        path = folder / FILE
        with refusing(path, "read", RunError):
            if not folder.is_dir():
                why = "is not a folder" if folder.exists() else "no such folder"
                raise RunError(f"{folder}: {why}; name a run's folder")
            if not path.exists():
                raise RunError(f"{folder}: is not a run: it has no {FILE}")
            data = read_regular(path)
        try:
            return cls(folder, parsed(RUN_FILE, data, RunError))
        except RunError as error:
            raise RunError(f"{path}: {clipped(str(error), _REASON_LIMIT)}") from None

    @staticmethod
    def exists(folder: Path) -> bool:
        """Return whether the folder has a run.json."""
        return (folder / FILE).exists()

    @property
    def jobs(self) -> tuple[Job, ...]:
        return self.file.jobs

    @property
    def catalogue(self) -> Catalogue:
        return self.file.catalogue

    def save(self) -> None:
        """Write run.json whole or not at all, or raise RunError."""
        with refusing(self.folder, "written", RunError):
            values = RUN_FILE.dump_python(self.file, mode="json")
            write_atomically(self.folder / FILE, json.dumps(values, separators=(",", ":"), ensure_ascii=False) + "\n")
            (self.folder / "records").mkdir(exist_ok=True)

    def joined(self, jobs: Iterable[Job]) -> tuple[Job, ...]:
        """Return the run's jobs merged with a later request's `jobs`; a case in both is planned once."""
        return jobs_of(planned for job in (*self.jobs, *jobs) for planned in job.cases)

    def extend(self, jobs: Iterable[Job], catalogue: Catalogue, request: PastRequest) -> None:
        """Add a later request, its jobs and catalogue to run.json; keep the run's `Policy`."""
        self.file = replace(
            self.file,
            jobs=self.joined(jobs),
            catalogue=self.catalogue.merged(catalogue),
            requests=(*self.file.requests, request),
        )
        self.save()

    def record_file(self, job: Job) -> RecordFile:
        """Return the file with a job's records, which need not exist yet."""
        return RecordFile(self.folder / "records" / f"{job.name}.jsonl")

    def job_records(self, job: Job) -> list[Record]:
        """Return a job's records in file order; RunError for an unplanned case or repeat."""
        file = self.record_file(job)
        records = file.read()
        planned = {planned.case.key for each in self.jobs if each.pair == job.pair for planned in each.cases}
        for number, record in enumerate(records, start=1):
            if record.case.key not in planned or record.repeat >= self.file.repeats:
                what = f"repeat {record.repeat} of {record.case.label}"
                raise RunError(f"{file.path}, line {number}: {what} does not belong to the job {job.name}")
        return records

    def records(self) -> list[Record]:
        """Return the last record of each case and repeat, in the order of the plan.

        Raises RunError for a record file or record that belongs to no job, and RecordError for an invalid record.
        """
        names = {f"{job.name}.jsonl" for job in self.jobs}
        for path in listed(self.folder / "records", "*.jsonl"):
            if path.name not in names:
                raise RunError(f"{path}: belongs to no job of the run")
        return [record for job in self.jobs for record in latest(job, self.job_records(job))]

    def missing(self, records: Iterable[Record]) -> list[Case]:
        """Return the planned cases without a record in `records`."""
        recorded = {record.case.key for record in records}
        planned = (planned.case for job in self.jobs for planned in job.cases)
        return [case for case in planned if case.key not in recorded]

    def profiles(self) -> dict[str, Profile]:
        """Return the run's profiles by case key, in the order of the plan.

        Raises ProfileError for an invalid profile, and RunError for a profile of an unplanned case.
        """
        folder = self.folder / "profiles"
        planned = [each.case.key for job in self.jobs for each in job.cases]
        if stray := {path.stem for path in listed(folder, "*.json")} - set(planned):
            raise RunError(f"{folder / min(stray)}.json: belongs to no case of the run")
        paths = {key: profile_path(self.folder, key) for key in planned}
        return {key: read_profile(path) for key, path in paths.items() if path.exists()}

    @contextmanager
    def held(self, shared: bool = False) -> Iterator[None]:
        """Lock the run's folder in the block, or raise RunError if another process has locked it.

        shared: whether the run's other Slurm tasks may hold the lock at the same time.
        """
        with refusing(self.folder, "read", RunError):
            descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._lock(descriptor, *((fcntl.LOCK_SH, _SUBMIT_S) if shared else (fcntl.LOCK_EX, _STATUS_S)))
            yield
        finally:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child's copy of the descriptor would keep the lock
            os.close(descriptor)

    @property
    def is_held(self) -> bool:
        """Whether a process has locked the run; always False on a file system without locks."""
        try:
            with self.held():
                return False
        except RunError:
            return True

    def _lock(self, descriptor: int, kind: int, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise RunError(
                        f"{self.folder}: another process is using it; wait for its end or name another folder"
                    ) from None
            except OSError:  # a file system without locks: better an unguarded run than none
                return
            time.sleep(0.1)


def latest(job: Job, records: Iterable[Record]) -> list[Record]:
    """Return the last record of each case and repeat, in the job's order.

    Each one's `earlier` gets the previous records, oldest first. Records of cases outside the job are omitted.
    """
    last: dict[tuple[str, int], Record] = {}
    for record in records:
        before = last.get((record.case.key, record.repeat))
        record.earlier = [*before.earlier, before] if before else []
        last[record.case.key, record.repeat] = record
    place = {planned.case.key: number for number, planned in enumerate(job.cases)}
    of_job = [record for record in last.values() if record.case.key in place]
    return sorted(of_job, key=lambda record: (place[record.case.key], record.repeat))
