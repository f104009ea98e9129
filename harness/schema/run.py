"""A run: a folder that says what was asked for, holds what was measured, and can be drawn without this program.

FOLDER/run.json                      what was asked for and planned, where, by which commit; the catalogue
FOLDER/records/SYSTEM-BACKEND.jsonl  the records of one job, appended by one writer
FOLDER/profiles/KEY.json             what a profiler found of a case
FOLDER/claims/                       who holds the run and its jobs, while it is under way
"""

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from harness.schema import claims
from harness.schema.case import Case, Mode
from harness.schema.catalogue import Catalogue
from harness.schema.claims import Holder
from harness.schema.files import listed, refusing, unlock_and_close
from harness.schema.profile import Profile, profile_path, read_profile
from harness.schema.record import Record
from harness.schema.record_file import RecordFile
from harness.schema.run_file import FILE, Job, PastRequest, RunError, RunFile, read_run_file, write_run_file

_HELD = "{}: holds a run already; resume it (--resume) or name another folder"
_OURS = ("records", "profiles", "claims")  # what a folder may hold before its run.json
MOST_RECORDS = 100_000  # that are read at once: a page of so many takes minutes and gigabytes
_SUBMIT_S = 60.0  # that a task waits for whoever submits it to let the folder go


class Run:
    """A run folder. `create` makes one, `open` reads one; both raise RunError with one sentence where they cannot."""

    def __init__(self, folder: Path, file: RunFile) -> None:
        self.folder, self.file = folder, file

    @classmethod
    def create(cls, folder: Path, file: RunFile) -> "Run":
        """A new run in `folder`, which may exist but must hold no run; of several made at once the first is."""
        cls.refuse_held(folder)
        run = cls(folder, file)
        run.save(new=True)
        return run

    @staticmethod
    def refuse_held(folder: Path) -> None:
        """RunError where `folder` cannot hold a new run, as one is in it or it is a file."""
        with refusing(folder, "read", RunError):
            held, recorded = os.path.lexists(folder / FILE), listed(folder / "records")
            others = [path.name for path in listed(folder) if path.name not in _OURS]
        if held:
            raise RunError(_HELD.format(folder))
        if recorded:
            raise RunError(f"{folder}: has records but no {FILE}; put its {FILE} back or name another folder")
        if folder.exists() and not folder.is_dir():
            raise RunError(f"{folder}: is not a folder; name another for the run")
        if others:
            raise RunError(f"{folder}: holds no run, but {others[0]}; name another folder")

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """The run in `folder`, its run.json checked."""
        return cls(folder, read_run_file(folder))

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether the folder holds a run.json."""
        return (folder / FILE).exists()

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs, in the order in which they run."""
        return self.file.jobs

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue that the run was made with."""
        return self.file.catalogue

    @property
    def mode(self) -> Mode:
        """measure, verify or profile."""
        return self.file.mode

    def save(self, *, new: bool = False) -> None:
        """Write run.json whole or not at all; new: RunError where there is one."""
        try:
            (self.folder / "records").mkdir(parents=True, exist_ok=True)
            written = write_run_file(self.folder, self.file, new=new)
        except (OSError, ValueError) as error:  # also a number that JSON has not, or a name that no file can have
            raise RunError(f"{self.folder}: cannot be written: {getattr(error, 'strerror', None) or error}") from None
        if not written:
            raise RunError(_HELD.format(self.folder))

    def joined(self, jobs: Iterable[Job]) -> tuple[Job, ...]:
        """The run's jobs with those of a later request: cases that are not planned yet go to the end of their job.

        A case of both keeps its place, with what both ask for (`Planned.merged`).
        """
        by_pair = {job.pair: job for job in self.jobs}
        for job in jobs:
            before = by_pair.get(job.pair, replace(job, cases=()))
            cases = {planned.case.key: planned for planned in before.cases}
            for planned in job.cases:
                cases[planned.case.key] = cases.get(planned.case.key, planned).merged(planned)
            by_pair[job.pair] = replace(before, cases=tuple(cases.values()))
        return tuple(by_pair.values())

    def extend(self, jobs: Iterable[Job], catalogue: Catalogue, request: PastRequest) -> None:
        """Add what a later request asks for; it is measured by the run's policy."""
        self.file = replace(
            self.file,
            jobs=self.joined(jobs),
            catalogue=self.catalogue.merged(catalogue),
            requests=(*self.file.requests, request),
        )
        self.__dict__.pop("_planned", None)
        self.save()

    def record_file(self, job: Job) -> RecordFile:
        """The file of a job's records."""
        folder = self.folder / "records"
        if folder.is_symlink():
            raise RunError(f"{folder}: is a link; a run holds its records itself")
        return RecordFile(folder / f"{job.name}.jsonl")

    def job_records(self, job: Job) -> list[Record]:
        """All records of a job in the order of its file, RunError for one that does not belong to it."""
        file = self.record_file(job)
        records = file.read()
        for number, record in enumerate(records, start=1):
            why = self.foreign(record, job)
            if why:
                raise RunError(f"{file.path}, line {number}: {why}")
        return records

    def foreign(self, record: Record, job: Job) -> str:
        """Why a record cannot be one of this job of this run; "" where it can."""
        if record.case.key not in self._planned.get(job.name, set()):
            return f"the case {record.case.label} is not one of the job {job.name}"
        if record.repeat >= self.file.repeats:
            return f"repeat {record.repeat} of a run of {self.file.repeats}"
        timed = self.mode == "measure"
        if record.status == "ok" and timed != bool(record.samples_ms):
            return f"status 'ok' {'without' if timed else 'with'} samples in a run of mode {self.mode!r}"
        return ""

    def records(self) -> list[Record]:
        """The last record of each case and repeat, in the order of the plan; RunError for what belongs to no job.

        Also where the files have more than `MOST_RECORDS` lines.
        """
        self._refuse_stray_files()
        self._refuse_too_many()
        return [record for job in self.jobs for record in latest(job, self.job_records(job))]

    def missing(self, records: Iterable[Record]) -> list[Case]:
        """The planned cases that none of its `records` is of: the run ended before them, or still goes on."""
        recorded = {record.case.key for record in records}
        planned = (planned.case for job in self.jobs for planned in job.cases)
        return [case for case in planned if case.key not in recorded]

    def profiles(self) -> dict[str, Profile]:
        """The profiles by the key of their case, in the order of the plan; ProfileError for one that cannot be used."""
        folder = self.folder / "profiles"
        planned = [each.case.key for job in self.jobs for each in job.cases]
        stray = {path.stem for path in listed(folder, "*.json")} - set(planned)
        if stray:
            raise RunError(f"{folder / sorted(stray)[0]}.json: is of a case that the run has not")
        paths = {key: profile_path(self.folder, key) for key in planned}
        return {key: read_profile(path) for key, path in paths.items() if path.exists()}

    @cached_property
    def _planned(self) -> dict[str, set[str]]:
        return {job.name: {planned.case.key for planned in job.cases} for job in self.jobs}

    def _refuse_stray_files(self) -> None:
        names = {f"{job.name}.jsonl" for job in self.jobs}
        for path in listed(self.folder / "records", "*.jsonl"):
            if path.name not in names:
                raise RunError(f"{path}: belongs to no job of the run")

    def _refuse_too_many(self) -> None:
        lines = sum(self.record_file(job).count_lines() for job in self.jobs)
        if lines > MOST_RECORDS:
            raise RunError(
                f"{self.folder}: holds {lines:,} records, and at most {MOST_RECORDS:,} are read at once; "
                "measure into several folders, each of fewer suites or systems"
            )

    @contextmanager
    def held(self, task: Holder | None = None) -> Iterator[None]:
        """The folder for one planner or runner, or for a task beside other tasks; RunError where another holds it."""
        with refusing(self.folder, "read", RunError):
            descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if task:
                self._lock(descriptor, fcntl.LOCK_SH, _SUBMIT_S)
                claims.forget_holder(self.folder, alone=False)  # one that was killed
                yield
            else:
                self._lock(descriptor, fcntl.LOCK_EX, 0)
                claims.note_holder(self.folder, Holder.here({}))
                try:
                    yield
                finally:
                    claims.forget_holder(self.folder, alone=True)
        finally:
            unlock_and_close(descriptor)

    def _lock(self, descriptor: int, kind: int, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    by = "; ".join(map(str, claims.holders(self.folder)))
                    raise RunError(
                        f"{self.folder}: another run is writing to it{f' ({by})' if by else ''}; "
                        "wait for it or name another folder"
                    ) from None
            except OSError:  # a file system without locks: a run is worth more than the guard
                return
            time.sleep(0.1)


def latest(job: Job, records: Iterable[Record]) -> list[Record]:
    """The last record of each case and repeat: the repeats of a case together, cases in the order of the job."""
    last: dict[tuple[str, int], Record] = {}
    for record in records:
        before = last.get((record.case.key, record.repeat))
        record.earlier = [*before.earlier, before] if before else []
        last[record.case.key, record.repeat] = record
    by_case: dict[str, list[Record]] = {}
    for key, repeat in sorted(last, key=lambda each: each[1]):
        by_case.setdefault(key, []).append(last[key, repeat])
    return [record for planned in job.cases for record in by_case.get(planned.case.key, [])]
