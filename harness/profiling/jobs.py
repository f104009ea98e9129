"""Profile a run's jobs: first all times (Nsight Systems or Kineto), then counters, "ratios" (Nsight Compute)."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from harness.profiling.tools.choice import Tools
from harness.profiling.under_profiler import ToolLost, UnderProfiler
from harness.schema.case import Case
from harness.schema.profile import Counters, Profile, ProfileError, profile_path, read_profile, write_profile
from harness.schema.reason import sentence
from harness.schema.record import Record, utc_now
from harness.schema.run import Run
from harness.schema.run_file import Job, Pair, Planned
from harness.workers.machine_load import is_loaded, load_note
from harness.workers.pool import on_free_slots
from harness.workers.process import DEFAULT_SLOT, GpuSlot, Launch, Limits
from harness.workers.scheduler import signals_raise, unmeasured

NOT_COUNTED, COUNTED = "not counted: ", "Nsight Compute counted "  # starts of notes on counters


@dataclass
class Profiler:
    """Profiles cases of a run, each once, and writes each profile to the run's folder.

    launches: how to start a worker for each (system, backend). tools: the profilers to use.
    skip: returns the reason to skip a case; "" to profile the case.
    stand_in: returns the case to run under Nsight Compute. It can need less memory but must launch the same kernels.
    say: called with sentences for the user.
    on_times: called with each profile that has times and waits for counters. on_profile: called with finished profiles.
    resume: whether to keep stored profiles and to add only the times or counters that they lack.
    """

    run: Run
    launches: Mapping[Pair, Launch]
    tools: Tools
    limits: Limits = field(default_factory=Limits)
    skip: Callable[[Planned], str] = lambda planned: ""
    stand_in: Callable[[Case], Case] = lambda case: case
    say: Callable[[str], object] = lambda text: None
    on_times: Callable[[Profile], object] = lambda profile: None
    on_profile: Callable[[Profile], object] = lambda profile: None
    resume: bool = False

    def jobs(self, jobs: Sequence[Job], slots: Sequence[GpuSlot] = (DEFAULT_SLOT,)) -> list[Profile]:
        """Profile the jobs' cases and return the profiles; with `resume`, skip complete ones.

        All jobs are timed first, each on the next free GPU slot. Nsight Compute then reads counters, on the first slot
        only. It delays launches on all GPUs of the machine, so it does not run while a job is timed.
        Raises RunError for a lost GPU or a locked run.
        """
        with signals_raise(), self.run.held():
            (self.run.folder / "profiles").mkdir(exist_ok=True)
            left = [replace(job, cases=self.pending(job)) for job in jobs]
            on_free_slots(left, slots, lambda job, *where: JobProfiler(self, job, *where).times())
            if self.tools.ratios:  # on one GPU: Nsight Compute locks a file of the machine
                on_free_slots(left, slots[:1], lambda job, *where: JobProfiler(self, job, *where).ratios())
        return [self.stored(planned) for job in left for planned in job.cases]

    def pending(self, job: Job) -> tuple[Planned, ...]:
        """Return the job's cases to profile; with `resume`, without those whose profile is complete."""

        def is_done(found: Profile | None) -> bool:
            return bool(found and (not self.tools.ratios or any(kernel.counters for kernel in found.kernels)))

        return tuple(each for each in job.cases if not (self.resume and is_done(self.timed_profile(each))))

    def timed_profile(self, planned: Planned) -> Profile | None:
        """Return the case's stored profile if it has times; otherwise None."""
        with suppress(ProfileError):
            if (found := self.stored(planned)).status == "ok":
                return found
        return None

    def stored(self, planned: Planned) -> Profile:
        return read_profile(profile_path(self.run.folder, planned.case.key))


class JobProfiler:
    """Profiles the cases of one job on one GPU slot, with the tools and options of `profiler`.

    stopped: returns whether the run should end. tools: the profilers in use; a lasting error removes one.
    """

    def __init__(self, profiler: Profiler, job: Job, slot: GpuSlot, stopped: Callable[[], bool]) -> None:
        self.profiler, self.job, self.slot, self.stopped = profiler, job, slot, stopped
        self.tools = profiler.tools
        self.under_profiler = UnderProfiler(profiler.run, profiler.launches[job.pair], slot, profiler.limits, stopped)

    def times(self) -> None:
        """Time the job's cases; with `Profiler.resume`, only those without times. A skip keeps a profile with times."""
        for planned in self.job.cases:
            timed, reason = self.profiler.timed_profile(planned), self.profiler.skip(planned)
            if timed and reason:
                self.profiler.on_profile(Profile(case=planned.case, status="skipped", reason=reason))
            elif not (timed and self.profiler.resume):
                self._with_times(planned, reason)

    def ratios(self) -> None:
        """Add hardware counters to the job's profiles that have times, in a new worker per case."""
        for planned in self.job.cases:
            profile = self.profiler.stored(planned)
            if profile.status != "ok" or self.profiler.skip(planned):
                continue
            notes = tuple(note for note in profile.notes if not note.startswith((NOT_COUNTED, COUNTED)))
            profile = replace(profile, notes=notes, commands=profile.commands[:1])  # only of the times
            if self.tools.ratios:
                start = time.monotonic()
                found = self._with_ratios(profile)
                found = replace(found, stages_s={**found.stages_s, "ratios": time.monotonic() - start})
            else:
                found = replace(profile, notes=(*notes, f"{NOT_COUNTED}Nsight Compute failed in an earlier case"))
            write_profile(self.profiler.run.folder, found)
            self.profiler.on_profile(found)

    def _with_times(self, planned: Planned, reason: str) -> None:
        start, started_at = time.monotonic(), utc_now()
        record = None
        if reason:
            profile = Profile(case=planned.case, status="skipped", reason=reason, started_at=started_at)
        else:
            try:
                found, worker_record = self._times(planned)
                notes = [load_note(worker_record.environment)] if is_loaded(worker_record.environment) else []
                notes += found["notes"]
                values = found | {"environment": worker_record.environment, "started_at": started_at, "notes": notes}
                profile, record = Profile.from_values({"case": planned.case.to_dict(), **values}), worker_record
            except ProfileError as error:
                self._raise_if_stopped_or_gpu_lost()
                status, why = getattr(error, "status", "failed"), sentence(str(error))
                profile = Profile(case=planned.case, status=status, reason=why, started_at=started_at)
        profile = replace(profile, stages_s={"times": time.monotonic() - start})
        run = self.profiler.run
        if run.file.mode == "profile":  # a run that measures has records already
            launch = self.profiler.launches[self.job.pair]
            unprofiled = unmeasured(planned.case, profile.status, profile.reason, launch, self.slot)
            run.record_file(self.job).append(record or replace(unprofiled, started_at=started_at))
        write_profile(run.folder, profile)  # last: a resumption keeps a case with a profile
        if profile.status == "ok" and self.tools.ratios:
            self.profiler.on_times(profile)
        else:
            self.profiler.on_profile(profile)

    def _times(self, planned: Planned) -> tuple[dict[str, Any], Record]:
        if self.tools.times == "kineto":
            return self.under_profiler.by_kineto(planned.case)
        try:
            found, record = self.under_profiler.by_nsys(planned.case)
            return found | {"tools": {"nsys": self.tools.versions.get("nsys", "")}}, record
        except ProfileError as error:
            self._raise_if_stopped_or_gpu_lost()
            why = self._give_up("times", error)
            found, record = self.under_profiler.by_kineto(planned.case)
            return found | {"notes": [why, *found["notes"]]}, record

    def _with_ratios(self, profile: Profile) -> Profile:
        stand_in = self.profiler.stand_in(profile.case)
        try:
            counters, command = self.under_profiler.by_ncu(profile.case, stand_in)
        except ProfileError as error:
            self._raise_if_stopped_or_gpu_lost()
            why = f"{NOT_COUNTED}{self._give_up('ratios', error)}"
            return replace(profile, notes=(*profile.notes, why))
        if stand_in != profile.case:
            counted = f"{COUNTED}{stand_in.label}, a model of fewer layers with the same kernels"
            profile = replace(profile, notes=(*profile.notes, counted))
        tools = {**profile.tools, "ncu": self.tools.versions.get("ncu", "")}
        return replace(_counted(profile, counters), tools=tools, commands=(*profile.commands, command))

    def _raise_if_stopped_or_gpu_lost(self) -> None:
        if self.stopped():
            raise KeyboardInterrupt
        self.slot.refuse_lost_gpu()

    def _give_up(self, part: Literal["times", "ratios"], error: Exception) -> str:
        """Report and return why a profiler failed; drop it from `tools` if the error is lasting."""
        again = "profiled by torch.profiler" if part == "times" else "try again (--resume), or use --with torch"
        why = sentence(str(error) if isinstance(error, ToolLost) else f"{error}; {again}")
        self.profiler.say(why)
        if isinstance(error, ToolLost) and error.lasting:
            self.tools = replace(self.tools, times="kineto") if part == "times" else replace(self.tools, ratios="")
            self.profiler.tools = self.tools if error.everywhere else self.profiler.tools
        return why


def _counted(profile: Profile, counters: Mapping[str, Counters]) -> Profile:
    kernels = tuple(replace(each, counters=counters.get(each.name)) for each in profile.kernels)
    total = sum(kernel.time_us for kernel in kernels)
    missed = sum(kernel.time_us for kernel in kernels if kernel.counters is None)
    note = f"{COUNTED}no launch of kernels that take {missed / total:.0%} of the time" if total else ""
    notes = (*profile.notes, note) if missed > 0.05 * total else profile.notes
    return replace(profile, kernels=kernels, notes=notes)
