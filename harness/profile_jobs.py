"""Profile the cases of a run's jobs by the chosen profilers, keep the profiles, and do without a profiler that fails.

Nsight Systems tells times and Nsight Compute tells ratios; where the first is not available, Kineto of PyTorch tells
times from inside of the worker.
"""

import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from harness.attempt import LOST, Retry
from harness.environment import around, device_id_of, snapshot
from harness.nvml import VARIABLE as GPU_VARIABLE
from harness.pool import Pool
from harness.process import HERE, RUN_VARIABLE, Launch, Limits, Place, PlaceLost, Stopped, end_marked
from harness.profile_record import Profile, profile_path, read_profile, write_profile
from harness.profile_region import Counters, ProfileError
from harness.profilers.choice import Tools
from harness.reason import sentence
from harness.record import Record, RecordError
from harness.run import Run
from harness.run_file import Job, Pair, Planned
from harness.runner import gpu_gone, signals_raise
from harness.under_profiler import STOP_S, ToolLost, UnderProfiler
from harness.worker_slot import WorkerSlot

# The stages of a profile: the model is built, by every profiler anew; times are told; Nsight Compute counts.
BUILD, TIMES, RATIOS = "build", "times", "ratios"
NOT_COUNTED = "not counted: "  # begins the note that says why
GIVEN_UP = f"{NOT_COUNTED}Nsight Compute was given up after an earlier case"


@dataclass
class Profiler:
    """Profiles cases of a run, each once, and puts what it finds into the run's folder.

    ceilings: MODULE:FUNCTION that measures what the GPU does at best. skip: why a case need not be tried, "" to try.
    stand_in: the case that Nsight Compute runs in a case's place, of the same kernels in less memory: it saves all that
    a kernel may write, half a minute a kernel where the GPU has no room for it. Where that fails, the case itself.
    say: gets sentences for whoever waits. on_times: gets each profile that waits for its ratios, on_profile as it is
    finished. resume: keep what is finished, of a good profile whose ratios an interruption left out its times, and of
    what failed what `retry` says.
    place, stopped: where the workers run, and whether to end, asked while one works.
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
    stop_s: float = STOP_S
    resume: bool = False
    retry: Retry = "lost"
    place: Place = HERE
    stopped: Callable[[], bool] = lambda: False
    _wants_ratios: bool = False
    _lost_everywhere: bool = False

    def pending(self, job: Job) -> tuple[Planned, ...]:
        """The cases of a job to profile."""
        if not self.resume:
            return job.cases
        return tuple(each for each in job.cases if not self._is_finished(self._earlier(each)))

    def jobs(self, jobs: Sequence[Job], places: Sequence[Place] = ()) -> list[Profile]:
        """Profile the cases of `jobs`: times of all, then ratios; at `places`, each job at the first that is free.

        Times are those of the GPU that measured the job, if that is among them: no two are alike. Nothing is timed
        while Nsight Compute counts, as that holds up launches on other GPUs of the machine, too. RunError where the GPU
        is gone, or every one of them.
        """
        with signals_raise(), self.run.held():
            end_marked(RUN_VARIABLE, self._mark)
            (self.run.folder / "profiles").mkdir(exist_ok=True)
            self._wants_ratios = bool(self.tools.ratios)
            found: list[dict[str, Profile]] = [{} for _ in jobs]  # by their cases' keys, as they come

            def times(number: int, at: Profiler) -> None:
                at._times_of(jobs[number], found[number])

            def ratios(number: int, at: Profiler) -> None:
                at._ratios_of(jobs[number], found[number])

            self._each(range(len(jobs)), places, times, self._homes(jobs, places) if places else ())
            if self._wants_ratios:
                self._each(range(len(jobs)), places, ratios)
            return [profile for profiles in found for profile in profiles.values()]

    def _homes(self, jobs: Sequence[Job], places: Sequence[Place]) -> list[str]:
        """The one of the places' GPUs that measured most cases of each job; "" where none did."""
        here = {place.device_id for place in places}
        measured: dict[Pair, Counter[str]] = defaultdict(Counter)
        for record in self.run.records():
            measured[record.case.system, record.case.backend][device_id_of(record.environment)] += 1
        ordered = [[gpu for gpu, _ in measured[job.pair].most_common()] for job in jobs]
        return [next((gpu for gpu in gpus if gpu in here), "") for gpus in ordered]

    def _each(
        self,
        numbers: Iterable[int],
        places: Sequence[Place],
        do: Callable[[int, "Profiler"], None],
        homes: Sequence[str] = (),
    ) -> None:
        """Let profilers like this do jobs by their numbers: what one job loses of the tools the next one tries.

        homes: the GPU that each job is for, if that is among the places.
        """
        pool = Pool(self.run.folder, places, self.say)
        stopped = pool.stop.is_set if places else self.stopped

        def at(number: int, place: Place) -> None:
            mine = replace(self, place=place, stopped=stopped, _lost_everywhere=False)
            do(number, mine)
            if mine._lost_everywhere:
                self.tools, self._lost_everywhere = mine.tools, True

        if places:
            pool.each(numbers, at, lambda number: homes[number] if homes else "")
        else:
            try:
                for number in numbers:
                    at(number, self.place)
            except PlaceLost:
                raise gpu_gone(self.run) from None

    def _earlier(self, planned: Planned) -> Profile | None:
        """The profile that an earlier profiling left, unless it cannot be read."""
        path = profile_path(self.run.folder, planned.case.key)
        with suppress(ProfileError):
            return read_profile(path) if path.exists() else None
        return None

    def _is_finished(self, found: Profile | None) -> bool:
        if found is None or found.status in (*LOST, "skipped"):
            return False
        if found.status == "ok":  # an interruption may lie between times and ratios
            return self._has_ratios(found) or not self.tools.ratios
        return self.retry != "failed"

    def _has_ratios(self, found: Profile) -> bool:
        """Whether nothing more is to be counted of a good profile: it was, or failed and is not to be tried again."""
        counted = any(kernel.counters for kernel in found.kernels)
        return RATIOS in found.stages_s and (counted or not self.resume or self.retry != "failed")

    @property
    def _mark(self) -> str:
        return str(self.run.folder.resolve())

    @property
    def _under_profiler(self) -> UnderProfiler:
        return UnderProfiler(self.run, self.place, self.limits, self.ceilings, self.stop_s, self.stopped)

    def _launch(self, job: Job) -> Launch:
        launch = self.launches[job.pair]
        return replace(launch, env={**launch.env, **self.place.env, RUN_VARIABLE: self._mark})

    def _times_of(self, job: Job, found: dict[str, Profile]) -> None:
        """Times of a job's cases, good ones of earlier kept, the others in as few workers as may be."""
        launch, missing = self._launch(job), list[Planned]()
        for planned in self.pending(job):
            earlier = self._earlier(planned) if self.resume else None
            if earlier is not None and earlier.status == "ok":
                found.setdefault(planned.case.key, earlier)
            elif planned.case.key not in found:
                missing.append(planned)
        for cases in by_worker(missing):
            with WorkerSlot(launch, self.limits.start_s, self.stopped) as slot:
                alone = self._alone(slot, cases)
                for planned in cases:
                    found[planned.case.key] = self._with_times(slot, job, launch, planned, alone)

    def _alone(self, slot: WorkerSlot, cases: Sequence[Planned]) -> dict[str, "_Alone"]:
        """By the cases' keys how long each takes while nothing is profiled, where Kineto is to record several on a GPU.

        Before it records any: from then on it holds up what its process launches.
        """
        asked = [planned for planned in cases if not self.skip(planned)]
        if self.tools.times != "kineto" or len(asked) < 2:
            return {}
        if slot.ready().environment.get("device_kind") != "cuda":
            return {}
        found: dict[str, _Alone] = {}
        for planned in asked:
            start = time.monotonic()
            try:
                call_us, lost = self._under_profiler.alone(slot, planned), None
            except ToolLost as error:
                self._end_if_stopped()
                if not self.place.is_there():
                    raise PlaceLost from None
                call_us, lost = 0.0, error
            found[planned.case.key] = _Alone(call_us, lost, time.monotonic() - start)
        return found

    def _ratios_of(self, job: Job, found: dict[str, Profile]) -> None:
        """Ratios beside the times, each case in a worker of its own.

        Without the stage, so that a resumption tries again, where Nsight Compute was given up.
        """
        launch = self._launch(job)
        launch = replace(launch, env={**launch.env, **_lock_of(self.place)})
        for key, profile in found.items():
            if profile.status != "ok" or self._has_ratios(profile):
                continue
            profile = replace(profile, notes=tuple(note for note in profile.notes if not note.startswith(NOT_COUNTED)))
            if self.tools.ratios:
                start = time.monotonic()
                profile, record = self._with_ratios(launch, profile)
                found[key] = _took(profile, RATIOS, start, record) if self.tools.ratios else profile
            else:
                found[key] = replace(profile, notes=(*profile.notes, GIVEN_UP))
            write_profile(self.run.folder, found[key])
            self.on_profile(found[key])

    def _with_times(
        self, slot: WorkerSlot, job: Job, launch: Launch, planned: Planned, alone: Mapping[str, "_Alone"]
    ) -> Profile:
        """A case with its times, which joins the run's folder."""
        before = alone.get(planned.case.key, _Alone())
        start = time.monotonic() - before.took_s
        profile, record = self._times(slot, launch, planned, before)
        if profile.status not in ("ok", "skipped") and not self.place.is_there():
            raise PlaceLost
        profile = _took(profile, TIMES, start, record)
        self._keep(job, profile, record)
        if profile.status == "ok" and self._wants_ratios:
            self.on_times(profile)
        else:
            self.on_profile(profile)
        return profile

    def _keep(self, job: Job, profile: Profile, record: Record | None) -> None:
        write_profile(self.run.folder, profile)
        if self.run.mode == "profile":  # a run that measures holds nothing but what it measured
            environment = snapshot(visible=self.place.env.get(GPU_VARIABLE))
            record = record or Record(
                profile.case,
                profile.status,
                profile.reason,
                environment=around(environment, environment),
                started_at=profile.started_at,
            )
            with self.run.record_file(job) as file:
                file.append(record)

    def _times(
        self, slot: WorkerSlot, launch: Launch, planned: Planned, alone: "_Alone"
    ) -> tuple[Profile, Record | None]:
        """The profile of a case by whatever tells times, and the worker's record; a failed one has its reason."""
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        reason = self.skip(planned)
        if reason:
            return Profile(case=planned.case, status="skipped", reason=reason, started_at=started_at), None
        try:
            if alone.lost is not None:
                raise alone.lost
            found, record = self._found(slot, launch, planned, alone.us)
            environment = {name: record.environment.get(name) for name in _ENVIRONMENT}
            profile = _profile(planned, found | {"environment": environment, "started_at": started_at})
        except (ToolLost, ProfileError) as error:
            self._end_if_stopped()
            status, why = getattr(error, "status", "failed"), sentence(str(error))
            return Profile(case=planned.case, status=status, reason=why, started_at=started_at), None
        return profile, record

    def _found(
        self, slot: WorkerSlot, launch: Launch, planned: Planned, alone_us: float
    ) -> tuple[dict[str, Any], Record]:
        """Fields of the profile of a case, and the worker's record; ToolLost or ProfileError where there are none."""
        if self.tools.times == "kineto":
            return self._under_profiler.by_kineto(slot, launch, planned, alone_us)
        try:
            slot.stop()  # what Kineto needed a worker for before
            found, record = self._under_profiler.by_nsys(launch, planned)
            return found | {"tools": {"nsys": self.tools.versions.get("nsys", "")}}, record
        except (ToolLost, ProfileError) as error:
            self._end_if_stopped()
            if not self.tools.fallback:
                raise ToolLost(_advised(error), status=getattr(error, "status", "failed")) from None
            why = self._give_up("times", error)
            found, record = self._under_profiler.by_kineto(slot, launch, planned)
            return found | {"notes": [why, *found["notes"]]}, record

    def _with_ratios(self, launch: Launch, profile: Profile) -> tuple[Profile, Record | None]:
        """The profile with what Nsight Compute counts, and the worker's record; else with a note that says why."""
        planned = Planned(profile.case)
        stand_in = self.stand_in(planned)
        try:
            try:
                counters, command, record = self._under_profiler.by_ncu(launch, profile.case, stand_in)
            except (ToolLost, ProfileError) as lost:
                # A whole engine under ncu takes longer than a case may.
                if getattr(lost, "lasting", False) or stand_in == planned or profile.case.timing == "engine":
                    raise
                stand_in = planned
                counters, command, record = self._under_profiler.by_ncu(launch, profile.case, planned)
        except (ToolLost, ProfileError) as error:
            self._end_if_stopped()
            if not self.place.is_there():
                raise PlaceLost from None
            why = f"{NOT_COUNTED}{self._give_up('ratios', error)}"
            return replace(profile, notes=(*profile.notes, why)), None
        if stand_in != planned:
            counted = f"Nsight Compute counted {stand_in.case.label}, the same kernels in a model of fewer layers"
            profile = replace(profile, notes=(*profile.notes, counted))
        tools = {**profile.tools, "ncu": self.tools.versions.get("ncu", "")}
        return replace(_counted(profile, counters), tools=tools, commands=(*profile.commands, command)), record

    def _end_if_stopped(self) -> None:
        """Ctrl-C ends a program that reads a report, too: that is no failure to keep."""
        if self.stopped():
            raise Stopped

    def _give_up(self, part: Literal["times", "ratios"], error: Exception) -> str:
        """Say what went wrong, and do without the profiler from now on where it would again; the sentence."""
        why = sentence(_advised(error))
        self.say(why)
        if isinstance(error, ToolLost) and error.lasting:
            self.tools = replace(self.tools, times="kineto") if part == "times" else replace(self.tools, ratios="")
            self._lost_everywhere = self._lost_everywhere or error.everywhere
        return why


@dataclass(frozen=True)
class _Alone:
    """How long a call takes while nothing is profiled, 0 if not known; why the case does not run; the seconds spent."""

    us: float = 0.0
    lost: ToolLost | None = None
    took_s: float = 0.0


def by_worker(cases: Sequence[Planned]) -> list[list[Planned]]:
    """The cases of a job that share a worker: all, but of an engine those of one phase, the shortest first.

    Once Kineto has recorded it holds up every later launch of its process, and the timeline of work that is short shows
    it; and another phase starts the engine anew in any case.
    """
    found: dict[str, list[Planned]] = {}
    for planned in cases:
        found.setdefault(planned.case.phase if planned.case.timing == "engine" else "", []).append(planned)
    return [sorted(each, key=_length) if phase else each for phase, each in found.items()]


def _length(planned: Planned) -> int:
    """Of an engine's case: the tokens that it reads at once, or adds in a step."""
    case = planned.case
    return case.batch * (1 if case.phase == "generate" else case.context)


_ENVIRONMENT = ("device", "device_kind", "gpu", "software", "commit", "dirty")


def _profile(planned: Planned, values: Mapping[str, Any]) -> Profile:
    try:
        return Profile.from_values({"case": planned.case.to_dict(), **values})
    except RecordError as error:
        raise ProfileError(str(error)) from None


def _took(profile: Profile, stage: str, start: float, record: Record | None) -> Profile:
    """The profile with the seconds since `start` as those of a stage, but for those that the record's model took."""
    built = record.stages_s.get(BUILD, 0.0) if record else 0.0
    so_far = profile.stages_s.get(BUILD, 0.0)
    took = time.monotonic() - start - built
    return replace(profile, stages_s={**profile.stages_s, BUILD: so_far + built, stage: took})


def _counted(profile: Profile, counters: Mapping[str, Counters]) -> Profile:
    """The profile with counters at its kernels, and a note on the share of time that was not counted."""
    kernels = tuple(replace(each, counters=counters.get(each.name)) for each in profile.kernels)
    total = sum(kernel.time_us for kernel in kernels)
    missed = sum(kernel.time_us for kernel in kernels if kernel.counters is None)
    note = f"Nsight Compute counted no launch of kernels that take {missed / total:.0%} of the time" if total else ""
    notes = (*profile.notes, note) if missed > 0.05 * total else profile.notes
    return replace(profile, kernels=kernels, notes=notes)


def _advised(error: Exception) -> str:
    """What went wrong with Nsight and what to do; a ToolLost says that itself."""
    return str(error) if isinstance(error, ToolLost) else f"{error}; try again (--retry failed), or say --with torch"


def _lock_of(place: Place) -> dict[str, str]:
    """The environment in which a GPU among several counts under a lock of its own.

    Nsight Compute's is a file in TMPDIR, and lets one program at a time count. The folder stays, as what a worker
    compiles lies in it, too.
    """
    if not place.name:
        return {}
    folder = Path(tempfile.gettempdir()) / f"ttt-bench-{os.getuid()}-{place.device_id or place.env[GPU_VARIABLE]}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return {"TMPDIR": str(folder)}
