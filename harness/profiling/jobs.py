"""Profile the cases of a run's jobs: times of all cases, then counters; a failing profiler is given up.

Nsight Systems gives times, or Kineto inside the worker. Nsight Compute gives counters ("ratios").
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from harness.measure.environment import around, snapshot
from harness.measure.nvml import VARIABLE as GPU_VARIABLE
from harness.profiling.tools.choice import Tools
from harness.profiling.under_profiler import ToolLost, UnderProfiler
from harness.schema.profile import Counters, Profile, ProfileError, profile_path, read_profile, write_profile
from harness.schema.reason import sentence
from harness.schema.record import Record
from harness.schema.run import Run
from harness.schema.run_file import Job, Pair, Planned
from harness.workers.pool import Pool
from harness.workers.process import HERE, Launch, Limits, Place, PlaceLost, Stopped, WorkerProcess
from harness.workers.scheduler import LOST, signals_raise

TIMES, RATIOS = "times", "ratios"  # stages of a profile
NOT_COUNTED = "not counted: "  # start of a note with the reason
GIVEN_UP = f"{NOT_COUNTED}Nsight Compute was given up after an earlier case"
TOGETHER = 8  # most cases of a worker, which builds the model once but finishes no profile before all are timed
_ENVIRONMENT = ("device", "device_kind", "gpu", "software", "commit", "dirty")


@dataclass
class Profiler:
    """Profiles cases of a run, each once, and writes each profile to the run's folder.

    `ceilings`: MODULE:FUNCTION that measures the GPU's peaks.
    skip: returns a reason to skip a case, or "".
    stand_in: returns a case with the same kernels in less memory for Nsight Compute, which saves all memory that a
        kernel may write. If counting that case fails, the case itself runs.
    say: called with sentences for the user.
    on_times: called with each profile that has times and waits for counters. on_profile: with each finished profile.
    resume: whether to keep finished profiles, times that still lack counters, and failures unless `retry_failed`.
    """

    run: Run
    launches: Mapping[Pair, Launch]
    tools: Tools
    limits: Limits = field(default_factory=Limits)
    ceilings: str = ""
    skip: Callable[[Planned], str] = lambda planned: ""
    stand_in: Callable[[Planned], Planned] = lambda planned: planned
    say: Callable[[str], object] = lambda text: None
    on_times: Callable[[Profile], object] = lambda profile: None
    on_profile: Callable[[Profile], object] = lambda profile: None
    resume: bool = False
    retry_failed: bool = False

    def jobs(self, jobs: Sequence[Job], places: Sequence[Place] = (HERE,)) -> list[Profile]:
        """Profile the cases of `jobs`: times of all, then counters. Each job runs on the first free GPU slot.

        Nothing is timed while Nsight Compute counts, which delays launches on the machine's other GPUs.
        Raises RunError if every GPU is gone.
        """
        with signals_raise(), self.run.held():
            (self.run.folder / "profiles").mkdir(exist_ok=True)
            found: list[dict[str, Profile]] = [{} for _ in jobs]  # by case key
            self._each(jobs, places, lambda number, at: at.times(found[number]))
            if self.tools.ratios:
                self._each(jobs, places, lambda number, at: at.ratios(found[number]))
            return [profile for profiles in found for profile in profiles.values()]

    def pending(self, job: Job) -> tuple[Planned, ...]:
        """Return the cases of a job that are to be profiled: all, or if `resume`, the unfinished ones."""
        if not self.resume:
            return job.cases
        return tuple(each for each in job.cases if not self._is_finished(self.earlier(each)))

    def earlier(self, planned: Planned) -> Profile | None:
        """Return the earlier profile of a case; None if there is none or it is unreadable."""
        path = profile_path(self.run.folder, planned.case.key)
        with suppress(ProfileError):
            return read_profile(path) if path.exists() else None
        return None

    def _is_finished(self, found: Profile | None) -> bool:
        if found is None or found.status in (*LOST, "skipped"):
            return False
        if found.status == "ok":  # the run may have been interrupted before the counters
            return self.has_ratios(found) or not self.tools.ratios
        return not self.retry_failed

    def has_ratios(self, found: Profile) -> bool:
        """Return whether a profile has counters, or counting failed and is not to be tried again."""
        counted = any(kernel.counters for kernel in found.kernels)
        return RATIOS in found.stages_s and (counted or not self.resume or not self.retry_failed)

    def _each(self, jobs: Sequence[Job], places: Sequence[Place], do: Callable[[int, "JobProfiler"], None]) -> None:
        """Call `do` on the slots with the number of each job and a `JobProfiler` for it.

        After one job gave up a profiler, the next one tries it again, unless it fails everywhere on this machine.
        """
        pool = Pool(self.run.folder, places, self.say)

        def at(number: int, place: Place) -> None:
            mine = JobProfiler(self, jobs[number], place, pool.stop.is_set)
            do(number, mine)
            if mine.lost_everywhere:
                self.tools = mine.tools

        pool.each(range(len(jobs)), at)


class JobProfiler:
    """Profiles the cases of a job on a GPU slot.

    stopped: returns whether the run is to end; called while a worker works.
    tools: the profilers that this job still uses. lost_everywhere: whether all jobs must give up the others.
    """

    def __init__(self, asked: Profiler, job: Job, place: Place, stopped: Callable[[], bool]) -> None:
        self.asked, self.job, self.place, self.stopped = asked, job, place, stopped
        self.tools, self.lost_everywhere = asked.tools, False
        launch = asked.launches[job.pair]
        self.launch = replace(launch, env={**launch.env, **place.env})
        self.under_profiler = UnderProfiler(asked.run, place, asked.limits, asked.ceilings, stopped)

    def times(self, found: dict[str, Profile]) -> None:
        """Add a profile with times to `found` for each case. Keep earlier ones, and use as few workers as possible."""
        missing: list[Planned] = []
        for planned in self.asked.pending(self.job):
            earlier = self.asked.earlier(planned) if self.asked.resume else None
            if earlier is not None and earlier.status == "ok":
                found.setdefault(planned.case.key, earlier)
            elif planned.case.key not in found:
                missing.append(planned)
        for cases in by_worker(missing):
            with WorkerProcess(self.launch, self.asked.limits.start_s, self.stopped) as worker:
                alone = self._alone(worker, cases)
                for planned in cases:
                    before = alone.get(planned.case.key, _Alone())
                    found[planned.case.key] = self._with_times(worker, planned, before)

    def ratios(self, found: dict[str, Profile]) -> None:
        """Add counters to the profiles in `found`, each case in a worker of its own.

        If Nsight Compute is given up, a profile's `stages_s` lacks "ratios", so that a resumption counts again.
        """
        launch = replace(self.launch, env={**self.launch.env, **_lock_of(self.place)})
        for key, profile in found.items():
            if profile.status != "ok" or self.asked.has_ratios(profile):
                continue
            profile = replace(profile, notes=tuple(note for note in profile.notes if not note.startswith(NOT_COUNTED)))
            if self.tools.ratios:
                start = time.monotonic()
                profile = self._with_ratios(launch, profile)
                found[key] = _took(profile, RATIOS, start) if self.tools.ratios else profile
            else:
                found[key] = replace(profile, notes=(*profile.notes, GIVEN_UP))
            write_profile(self.asked.run.folder, found[key])
            self.asked.on_profile(found[key])

    def _alone(self, worker: WorkerProcess, cases: Sequence[Planned]) -> dict[str, "_Alone"]:
        """Return times without a profiler by case key, taken before Kineto records and so delays all later launches."""
        asked = [planned for planned in cases if not self.asked.skip(planned)]
        if self.tools.times != "kineto" or len(asked) < 2:
            return {}
        if worker.ready().environment.get("device_kind") != "cuda":
            return {}
        self.asked.say(f"{self.job.name}: {len(asked)} cases are timed before the first is profiled")
        found: dict[str, _Alone] = {}
        for planned in asked:
            start = time.monotonic()
            try:
                call_us, lost = self.under_profiler.alone(worker, planned), None
            except ToolLost as error:
                self._end_if_stopped()
                if not self.place.is_there():
                    raise PlaceLost from None
                call_us, lost = 0.0, error
            found[planned.case.key] = _Alone(call_us, lost, time.monotonic() - start)
        return found

    def _with_times(self, worker: WorkerProcess, planned: Planned, before: "_Alone") -> Profile:
        """Profile the times of a case, write the profile to the run's folder, and return it."""
        start, started_at = time.monotonic() - before.took_s, datetime.now(UTC).isoformat(timespec="seconds")
        record = None
        if reason := self.asked.skip(planned):
            profile = Profile(case=planned.case, status="skipped", reason=reason, started_at=started_at)
        else:
            try:
                if before.lost is not None:
                    raise before.lost
                found, answered = self._times(worker, planned, before.us)
                environment = {name: answered.environment.get(name) for name in _ENVIRONMENT}
                values = found | {"environment": environment, "started_at": started_at}
                profile, record = Profile.from_values({"case": planned.case.to_dict(), **values}), answered
            except (ToolLost, ProfileError) as error:
                self._end_if_stopped()
                status, why = getattr(error, "status", "failed"), sentence(str(error))
                profile = Profile(case=planned.case, status=status, reason=why, started_at=started_at)
                if not self.place.is_there():
                    raise PlaceLost from None
        profile = _took(profile, TIMES, start)
        self._keep(profile, record)
        if profile.status == "ok" and self.tools.ratios:
            self.asked.on_times(profile)
        else:
            self.asked.on_profile(profile)
        return profile

    def _keep(self, profile: Profile, record: Record | None) -> None:
        run = self.asked.run
        write_profile(run.folder, profile)
        if run.mode == "profile":  # a run that measures keeps its own records
            environment = snapshot(visible=self.place.env.get(GPU_VARIABLE))
            record = record or Record(
                profile.case,
                profile.status,
                profile.reason,
                environment=around(environment, environment),
                started_at=profile.started_at,
            )
            run.record_file(self.job).append(record)

    def _times(self, worker: WorkerProcess, planned: Planned, alone_us: float) -> tuple[dict[str, Any], Record]:
        """Return a profile's fields and the worker's record. Raises ToolLost or ProfileError."""
        if self.tools.times == "kineto":
            return self.under_profiler.by_kineto(worker, self.launch, planned, alone_us)
        try:
            worker.stop()  # one that profiled an earlier case by Kineto
            found, record = self.under_profiler.by_nsys(self.launch, planned)
            return found | {"tools": {"nsys": self.tools.versions.get("nsys", "")}}, record
        except (ToolLost, ProfileError) as error:
            self._end_if_stopped()
            if not self.tools.fallback:
                raise ToolLost(_advised(error), status=getattr(error, "status", "failed")) from None
            why = self._give_up("times", error)
            found, record = self.under_profiler.by_kineto(worker, self.launch, planned)
            return found | {"notes": [why, *found["notes"]]}, record

    def _with_ratios(self, launch: Launch, profile: Profile) -> Profile:
        """Return the profile with counters, or with a note."""
        planned = Planned(profile.case)
        stand_in = self.asked.stand_in(planned)
        try:
            try:
                counters, command = self.under_profiler.by_ncu(launch, profile.case, stand_in)
            except (ToolLost, ProfileError) as lost:
                # A whole engine under ncu exceeds the time limit.
                if getattr(lost, "lasting", False) or stand_in == planned or profile.case.timing == "engine":
                    raise
                stand_in = planned
                counters, command = self.under_profiler.by_ncu(launch, profile.case, planned)
        except (ToolLost, ProfileError) as error:
            self._end_if_stopped()
            if not self.place.is_there():
                raise PlaceLost from None
            why = f"{NOT_COUNTED}{self._give_up('ratios', error)}"
            return replace(profile, notes=(*profile.notes, why))
        if stand_in != planned:
            counted = f"Nsight Compute counted {stand_in.case.label}, the same kernels in a model of fewer layers"
            profile = replace(profile, notes=(*profile.notes, counted))
        tools = {**profile.tools, "ncu": self.tools.versions.get("ncu", "")}
        return replace(_counted(profile, counters), tools=tools, commands=(*profile.commands, command))

    def _end_if_stopped(self) -> None:
        """Raise Stopped if the run is to end: Ctrl-C also kills a profiler's program, which is no failure of a case."""
        if self.stopped():
            raise Stopped

    def _give_up(self, part: Literal["times", "ratios"], error: Exception) -> str:
        """Report an error, and give the profiler up if it would fail again; return the sentence."""
        why = sentence(_advised(error))
        self.asked.say(why)
        if isinstance(error, ToolLost) and error.lasting:
            self.tools = replace(self.tools, times="kineto") if part == "times" else replace(self.tools, ratios="")
            self.lost_everywhere = self.lost_everywhere or error.everywhere
        return why


@dataclass(frozen=True)
class _Alone:
    """Time of a case without a profiler.

    us: microseconds of a call, 0 if unknown. lost: why the case does not run, or None.
    took_s: seconds that this timing took.
    """

    us: float = 0.0
    lost: ToolLost | None = None
    took_s: float = 0.0


def by_worker(cases: Sequence[Planned]) -> list[list[Planned]]:
    """Group cases that share a worker process, at most `TOGETHER`. An engine's cases are grouped by phase, short first.

    Once Kineto has recorded, it delays every later launch, which short work shows most. Another phase restarts the
    engine in any case.
    """
    found: dict[str, list[Planned]] = {}
    for planned in cases:
        found.setdefault(planned.case.phase if planned.case.timing == "engine" else "", []).append(planned)
    ordered = (sorted(each, key=_length) if phase else each for phase, each in found.items())
    return [each[first : first + TOGETHER] for each in ordered for first in range(0, len(each), TOGETHER)]


def _length(planned: Planned) -> int:
    """Return the number of tokens that an engine reads from all prompts, or adds in a step."""
    case = planned.case
    return case.batch * (1 if case.phase == "generate" else case.context)


def _took(profile: Profile, stage: str, start: float) -> Profile:
    """Return the profile with the seconds since `start` added to `stages_s`."""
    return replace(profile, stages_s={**profile.stages_s, stage: time.monotonic() - start})


def _counted(profile: Profile, counters: Mapping[str, Counters]) -> Profile:
    """Return the profile with counters by kernel name, and a note if kernels without any take over 5% of the time."""
    kernels = tuple(replace(each, counters=counters.get(each.name)) for each in profile.kernels)
    total = sum(kernel.time_us for kernel in kernels)
    missed = sum(kernel.time_us for kernel in kernels if kernel.counters is None)
    note = f"Nsight Compute counted no launch of kernels that take {missed / total:.0%} of the time" if total else ""
    notes = (*profile.notes, note) if missed > 0.05 * total else profile.notes
    return replace(profile, kernels=kernels, notes=notes)


def _advised(error: Exception) -> str:
    """Return the message of an error with advice; that of a ToolLost already has some."""
    return str(error) if isinstance(error, ToolLost) else f"{error}; try again (--retry failed), or say --with torch"


def _lock_of(place: Place) -> dict[str, str]:
    """Return {"TMPDIR": a folder for each GPU}: Nsight Compute's lock file there lets one program count at a time."""
    if not place.name:
        return {}
    folder = Path(tempfile.gettempdir()) / f"ttt-bench-{os.getuid()}-{place.device_id or place.env[GPU_VARIABLE]}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return {"TMPDIR": str(folder)}
