"""Which cases of a run to profile, and by which profilers."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from harness.profiling.tools.choice import Tools
from harness.profiling.under_profiler import STOP_S
from harness.schema.profile import Profile, ProfileError, profile_path, read_profile
from harness.schema.run import Run
from harness.schema.run_file import Job, Pair, Planned
from harness.workers.process import HERE, Launch, Limits, Place
from harness.workers.scheduler import LOST

# The stages of a profile: the model is built, by every profiler anew; times are told; Nsight Compute counts.
BUILD, TIMES, RATIOS = "build", "times", "ratios"


@dataclass
class ProfileRequest:
    """Which cases of a run to profile, by which profilers, and which of them are finished.

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
