"""Profile the cases of one job at one place: times, then ratios, without a profiler that gives nothing."""

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from harness.measure.environment import around, snapshot
from harness.measure.nvml import VARIABLE as GPU_VARIABLE
from harness.profiling.request import BUILD, RATIOS, TIMES, ProfileRequest
from harness.profiling.under_profiler import ToolLost, UnderProfiler
from harness.schema.profile import Counters, Profile, ProfileError, write_profile
from harness.schema.reason import sentence
from harness.schema.record import Record, RecordError
from harness.schema.run_file import Job, Planned
from harness.workers.process import Launch, Place, PlaceLost, Stopped, WorkerProcess

NOT_COUNTED = "not counted: "  # begins the note that says why
# Cases that share a worker: the model is built once for them, but none has its profile before all were timed.
TOGETHER = 8
GIVEN_UP = f"{NOT_COUNTED}Nsight Compute was given up after an earlier case"


class JobProfiler:
    """Profiles the cases of a job at a place as a request says.

    tools: what is left of the profilers; lost_everywhere: whether what was lost of them no other job has either.
    stopped: whether to end, asked while a worker works.
    """

    def __init__(self, asked: ProfileRequest, job: Job, place: Place, stopped: Callable[[], bool]) -> None:
        self.asked, self.job, self.place, self.stopped = asked, job, place, stopped
        self.tools, self.lost_everywhere = asked.tools, False
        launch = asked.launches[job.pair]
        self.launch = replace(launch, env={**launch.env, **place.env})
        self.under_profiler = UnderProfiler(asked.run, place, asked.limits, asked.ceilings, asked.stop_s, stopped)

    def times(self, found: dict[str, Profile]) -> None:
        """Put the times of cases into `found` by key: good ones of earlier, others in as few workers as may be."""
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
                    found[planned.case.key] = self._with_times(worker, planned, alone)

    def ratios(self, found: dict[str, Profile]) -> None:
        """Put ratios beside the times, each case in a worker of its own.

        Without the stage, so that a resumption tries again, where Nsight Compute was given up.
        """
        launch = replace(self.launch, env={**self.launch.env, **_lock_of(self.place)})
        for key, profile in found.items():
            if profile.status != "ok" or self.asked.has_ratios(profile):
                continue
            profile = replace(profile, notes=tuple(note for note in profile.notes if not note.startswith(NOT_COUNTED)))
            if self.tools.ratios:
                start = time.monotonic()
                profile, record = self._with_ratios(launch, profile)
                found[key] = _took(profile, RATIOS, start, record) if self.tools.ratios else profile
            else:
                found[key] = replace(profile, notes=(*profile.notes, GIVEN_UP))
            write_profile(self.asked.run.folder, found[key])
            self.asked.on_profile(found[key])

    def _alone(self, worker: WorkerProcess, cases: Sequence[Planned]) -> dict[str, "_Alone"]:
        """By the cases' keys how long each takes while nothing is profiled, where Kineto is to record several on a GPU.

        Before it records any: from then on it holds up what its process launches.
        """
        asked = [planned for planned in cases if not self.asked.skip(planned)]
        if self.tools.times != "kineto" or len(asked) < 2:
            return {}
        if worker.ready().environment.get("device_kind") != "cuda":
            return {}
        self.asked.say(f"{self.job.name}: {len(asked)} cases are timed before the first is profiled")
        found: dict[str, _Alone] = {}
        for planned in asked:
            start, built_s = time.monotonic(), 0.0
            try:
                (call_us, record), lost = self.under_profiler.alone(worker, planned), None
                built_s = record.stages_s.get(BUILD, 0.0)
            except ToolLost as error:
                self._end_if_stopped()
                if not self.place.is_there():
                    raise PlaceLost from None
                call_us, lost = 0.0, error
            found[planned.case.key] = _Alone(call_us, lost, time.monotonic() - start, built_s)
        return found

    def _with_times(self, worker: WorkerProcess, planned: Planned, alone: Mapping[str, "_Alone"]) -> Profile:
        """A case with its times, which joins the run's folder."""
        before = alone.get(planned.case.key, _Alone())
        start = time.monotonic() - before.took_s
        profile, record = self._times(worker, planned, before)
        if profile.status not in ("ok", "skipped") and not self.place.is_there():
            raise PlaceLost
        profile = _took(profile, TIMES, start, record, before.built_s)
        self._keep(profile, record)
        if profile.status == "ok" and self.tools.ratios:
            self.asked.on_times(profile)
        else:
            self.asked.on_profile(profile)
        return profile

    def _keep(self, profile: Profile, record: Record | None) -> None:
        run = self.asked.run
        write_profile(run.folder, profile)
        if run.mode == "profile":  # a run that measures holds nothing but what it measured
            environment = snapshot(visible=self.place.env.get(GPU_VARIABLE))
            record = record or Record(
                profile.case,
                profile.status,
                profile.reason,
                environment=around(environment, environment),
                started_at=profile.started_at,
            )
            run.record_file(self.job).append(record)

    def _times(self, worker: WorkerProcess, planned: Planned, alone: "_Alone") -> tuple[Profile, Record | None]:
        """The profile of a case by whatever tells times, and the worker's record; a failed one has its reason."""
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        reason = self.asked.skip(planned)
        if reason:
            return Profile(case=planned.case, status="skipped", reason=reason, started_at=started_at), None
        try:
            if alone.lost is not None:
                raise alone.lost
            found, record = self._found(worker, planned, alone.us)
            environment = {name: record.environment.get(name) for name in _ENVIRONMENT}
            profile = _profile(planned, found | {"environment": environment, "started_at": started_at})
        except (ToolLost, ProfileError) as error:
            self._end_if_stopped()
            status, why = getattr(error, "status", "failed"), sentence(str(error))
            return Profile(case=planned.case, status=status, reason=why, started_at=started_at), None
        return profile, record

    def _found(self, worker: WorkerProcess, planned: Planned, alone_us: float) -> tuple[dict[str, Any], Record]:
        """Fields of the profile of a case, and the worker's record; ToolLost or ProfileError where there are none."""
        if self.tools.times == "kineto":
            return self.under_profiler.by_kineto(worker, self.launch, planned, alone_us)
        try:
            worker.stop()  # what Kineto needed a worker for before
            found, record = self.under_profiler.by_nsys(self.launch, planned)
            return found | {"tools": {"nsys": self.tools.versions.get("nsys", "")}}, record
        except (ToolLost, ProfileError) as error:
            self._end_if_stopped()
            if not self.tools.fallback:
                raise ToolLost(_advised(error), status=getattr(error, "status", "failed")) from None
            why = self._give_up("times", error)
            found, record = self.under_profiler.by_kineto(worker, self.launch, planned)
            return found | {"notes": [why, *found["notes"]]}, record

    def _with_ratios(self, launch: Launch, profile: Profile) -> tuple[Profile, Record | None]:
        """The profile with what Nsight Compute counts, and the worker's record; else with a note that says why."""
        planned = Planned(profile.case)
        stand_in = self.asked.stand_in(planned)
        try:
            try:
                counters, command, record = self.under_profiler.by_ncu(launch, profile.case, stand_in)
            except (ToolLost, ProfileError) as lost:
                # A whole engine under ncu takes longer than a case may.
                if getattr(lost, "lasting", False) or stand_in == planned or profile.case.timing == "engine":
                    raise
                stand_in = planned
                counters, command, record = self.under_profiler.by_ncu(launch, profile.case, planned)
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
        self.asked.say(why)
        if isinstance(error, ToolLost) and error.lasting:
            self.tools = replace(self.tools, times="kineto") if part == "times" else replace(self.tools, ratios="")
            self.lost_everywhere = self.lost_everywhere or error.everywhere
        return why


@dataclass(frozen=True)
class _Alone:
    """How long a call takes while nothing is profiled, and why the case does not run.

    us: 0 if not known. took_s: seconds spent, of which built_s on the model.
    """

    us: float = 0.0
    lost: ToolLost | None = None
    took_s: float = 0.0
    built_s: float = 0.0


def by_worker(cases: Sequence[Planned]) -> list[list[Planned]]:
    """The cases of a job that share a worker, at most `TOGETHER`; of an engine those of one phase, the shortest first.

    Once Kineto has recorded it holds up every later launch of its process, and the timeline of work that is short shows
    it; and another phase starts the engine anew in any case.
    """
    found: dict[str, list[Planned]] = {}
    for planned in cases:
        found.setdefault(planned.case.phase if planned.case.timing == "engine" else "", []).append(planned)
    ordered = (sorted(each, key=_length) if phase else each for phase, each in found.items())
    return [each[first : first + TOGETHER] for each in ordered for first in range(0, len(each), TOGETHER)]


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


def _took(profile: Profile, stage: str, start: float, record: Record | None, built_before: float = 0.0) -> Profile:
    """The profile with the seconds since `start` as those of a stage, but for those that the models took.

    built_before: of that of an earlier request.
    """
    built = built_before + (record.stages_s.get(BUILD, 0.0) if record else 0.0)
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
