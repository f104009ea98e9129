"""Profile the cases of a run's jobs by the chosen profilers, keep the profiles, and do without a profiler that fails.

Nsight Systems tells times and Nsight Compute tells ratios; where the first is not available, Kineto of PyTorch tells
times from inside of the worker.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from harness.measure.environment import device_id_of
from harness.profiling.job import JobProfiler
from harness.profiling.request import ProfileRequest
from harness.schema.profile import Profile
from harness.schema.run_file import Job, Pair
from harness.workers.pool import Pool
from harness.workers.process import Place
from harness.workers.scheduler import signals_raise


class Profiler(ProfileRequest):
    """Profiles the requested cases, each once, and writes each profile to the run's folder."""

    def jobs(self, jobs: Sequence[Job], places: Sequence[Place] = ()) -> list[Profile]:
        """Profile the cases of `jobs`: times of all, then ratios; at `places`, each job at the first that is free.

        Times are those of the GPU that measured the job, if that is among them: no two are alike. Nothing is timed
        while Nsight Compute counts, as that holds up launches on other GPUs of the machine, too. RunError where the GPU
        is gone, or every one of them.
        """
        with signals_raise(), self.run.held():
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
        pool = Pool(self.run.folder, places or (self.place,), self.say)
        stopped = pool.stop.is_set if places else self.stopped

        def at(number: int, place: Place) -> None:
            mine = JobProfiler(self, jobs[number], place, stopped)
            do(number, mine)
            if mine.lost_everywhere:
                self.tools = mine.tools

        pool.each(range(len(jobs)), at, lambda number: homes[number])
