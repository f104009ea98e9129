"""Profile the cases of a run's jobs by the chosen profilers, keep the profiles, and do without a profiler that fails.

Nsight Systems tells times and Nsight Compute tells ratios; where the first is not available, Kineto of PyTorch tells
times from inside of the worker.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from harness.attempt import LOST
from harness.environment import device_id_of
from harness.pool import Pool
from harness.process import HERE, RUN_VARIABLE, Launch, Limits, Place, PlaceLost, end_marked
from harness.profile_record import Profile, profile_path, read_profile
from harness.profile_region import ProfileError
from harness.profiled_job import RATIOS, JobProfiler
from harness.profilers.choice import Tools
from harness.run import Run
from harness.run_file import Job, Pair, Planned
from harness.runner import gpu_gone, signals_raise
from harness.under_profiler import STOP_S


@dataclass
class Profiler:
    """Profiles cases of a run, each once, and puts what it finds into the run's folder.

    ceilings: MODULE:FUNCTION that measures what the GPU does at best. skip: why a case need not be tried, "" to try.
    stand_in: the case that Nsight Compute runs in a case's place, of the same kernels in less memory: it saves all that
    a kernel may write, half a minute a kernel where the GPU has no room for it. Where that fails, the case itself.
    say: gets sentences for whoever waits. on_times: gets each profile that waits for its ratios, on_profile as it is
    finished. resume: keep what is finished, of a good profile whose ratios an interruption left out its times, and
    what failed unless `retry_failed`.
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
    retry_failed: bool = False
    place: Place = HERE
    stopped: Callable[[], bool] = lambda: False

    def pending(self, job: Job) -> tuple[Planned, ...]:
        """The cases of a job to profile."""
        if not self.resume:
            return job.cases
        return tuple(each for each in job.cases if not self._is_finished(self.earlier(each)))

    def jobs(self, jobs: Sequence[Job], places: Sequence[Place] = ()) -> list[Profile]:
        """Profile the cases of `jobs`: times of all, then ratios; at `places`, each job at the first that is free.

        Times are those of the GPU that measured the job, if that is among them: no two are alike. Nothing is timed
        while Nsight Compute counts, as that holds up launches on other GPUs of the machine, too. RunError where the GPU
        is gone, or every one of them.
        """
        with signals_raise(), self.run.held():
            end_marked(RUN_VARIABLE, self.mark)
            (self.run.folder / "profiles").mkdir(exist_ok=True)
            found: list[dict[str, Profile]] = [{} for _ in jobs]  # by their cases' keys, as they come
            homes = self._homes(jobs, places) if places else [""] * len(jobs)
            self._each(jobs, places, lambda number, at: at.times(found[number]), homes)
            if self.tools.ratios:
                self._each(jobs, places, lambda number, at: at.ratios(found[number]), [""] * len(jobs))
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
        jobs: Sequence[Job],
        places: Sequence[Place],
        do: Callable[[int, JobProfiler], None],
        homes: Sequence[str],
    ) -> None:
        """Do each of the jobs, by its number: what one loses of the tools the next one tries, unless all have lost it.

        homes: the GPU that each is for, "" for any.
        """
        pool = Pool(self.run.folder, places, self.say)
        stopped = pool.stop.is_set if places else self.stopped

        def at(number: int, place: Place) -> None:
            mine = JobProfiler(self, jobs[number], place, stopped)
            do(number, mine)
            if mine.lost_everywhere:
                self.tools = mine.tools

        if places:
            pool.each(range(len(jobs)), at, lambda number: homes[number])
        else:
            try:
                for number in range(len(jobs)):
                    at(number, self.place)
            except PlaceLost:
                raise gpu_gone(self.run) from None

    def earlier(self, planned: Planned) -> Profile | None:
        """The profile that an earlier profiling left, unless it cannot be read."""
        path = profile_path(self.run.folder, planned.case.key)
        with suppress(ProfileError):
            return read_profile(path) if path.exists() else None
        return None

    def _is_finished(self, found: Profile | None) -> bool:
        if found is None or found.status in (*LOST, "skipped"):
            return False
        if found.status == "ok":  # an interruption may lie between times and ratios
            return self.has_ratios(found) or not self.tools.ratios
        return not self.retry_failed

    def has_ratios(self, found: Profile) -> bool:
        """Whether nothing more is to be counted of a good profile: it was, or failed and is not to be tried again."""
        counted = any(kernel.counters for kernel in found.kernels)
        return RATIOS in found.stages_s and (counted or not self.resume or not self.retry_failed)

    @property
    def mark(self) -> str:
        """What its workers bear in their environment, by which those that are left over are found."""
        return str(self.run.folder.resolve())
