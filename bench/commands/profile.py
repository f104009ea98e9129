"""`ttt-bench profile`: run cases again under a profiler, and keep what it finds in a run."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock

from bench.errors import INTERRUPTED, UserError
from bench.estimate import in_words, longest_first, past_durations
from bench.gpus import gpus_asked
from bench.models.config import SIZES, cut
from bench.plan import Plan, plan, with_keys
from bench.request import RunRequest
from bench.run_folder import extended, file_of, refuse_another_device
from harness.measure.ranges import COUNTED
from harness.profiling.jobs import BUILD, Profiler
from harness.profiling.tools.choice import choose
from harness.schema.profile import Profile
from harness.schema.reason import counted
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned
from harness.workers.machine_load import warning
from harness.workers.pool import gpu_places, place_here
from harness.workers.process import HERE
from harness.workers.task import refuse_submitted
from reports.profiles.ceilings import with_common_ceilings
from reports.profiles.words import Recorded, agreement, recorded, sentences

CEILINGS = "bench.systems.ceilings:measured_ceilings"
LEAST_WIDTH = 1536  # of a model that is cut: two layers of it are 100 MB, twice an H100's L2
COUNTED_LAYERS = COUNTED + 1  # up to the one that is counted


def profile(request: RunRequest, out: Path) -> None:
    """Profile into the run folder `out`, one that was measured or a new one; exit status 1 where nothing came of it."""
    refuse_submitted(out)
    before = Run.open(out) if Run.exists(out) else None
    work = plan(request, before if before and before.mode == "profile" else None)
    work.refuse_elsewhere()
    places = gpu_places(gpus_asked(request.gpus, work.device))
    tools = choose(request.way, work.device)
    new = "" if before else f"{out}: a new run, without latencies to hold its profiles against"
    run = _run_of(out, work, before)
    jobs = _jobs_of(run, work.jobs)
    if places:
        jobs = longest_first(jobs, past_durations(work.machine, out))
    for said in filter(None, (*work.notes_on_systems, tools.said, new, warning("they may slow what is profiled"))):
        print(f"ttt-bench: {said}", file=sys.stderr)
    profiler = Profiler(
        run,
        work.launches,
        tools,
        request.limits,
        ceilings=CEILINGS if work.device == "cuda" else "",
        skip=lambda planned: work.skip(planned, []),
        stand_in=of_few_layers,
        say=lambda text: print(f"ttt-bench: {text}", file=sys.stderr, flush=True),
        resume=request.resume,
        retry_failed=request.retry == "failed",
        place=place_here() if work.device == "cuda" else HERE,
    )
    every, left = (sum(map(len, cases)) for cases in ([job.cases for job in jobs], map(profiler.pending, jobs)))
    if request.resume:
        print(f"{out}: {counted(every - left, 'profile')} kept from before", flush=True)
    profiler.on_times = lambda profile: print(f"timed, to be counted: {profile.case.label}", flush=True)
    profiler.on_profile = _Shown(left, recorded(run.records()))
    try:
        found = profiler.jobs(jobs, places)
    except KeyboardInterrupt:
        print(f"ttt-bench: interrupted; to continue: {request.to_continue(out)}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if found and not any(each.status == "ok" for each in found):
        sys.exit(1)


def _run_of(out: Path, work: Plan, before: Run | None) -> Run:
    """The run to profile into: the one in the folder, or a new one of mode "profile"."""
    if before is None:
        return Run.create(out, file_of(work, "profile"))
    refuse_another_device(before, work)
    if before.mode != "profile":
        return before
    if not work.request.resume:
        raise UserError(f"{out}: holds profiles already; resume it (--resume) or name another folder")
    return extended(work, out)


def _jobs_of(run: Run, jobs: Sequence[Job]) -> list[Job]:
    """What of the jobs the run has; what it did not measure is not profiled into it."""
    known = {planned.case.key for job in run.jobs for planned in job.cases}
    kept = with_keys(jobs, known)
    if not kept:
        raise UserError(f"{run.folder}: has none of these cases; name another folder to profile them on their own")
    return kept


def of_few_layers(planned: Planned) -> Planned:
    """A model's case with so few layers that a profiler can save what they keep; a layer's and a checkpoint's as is.

    Nor is a model cut whose layers would then fit into an L2, where the whole one's come from memory.
    """
    case = planned.case
    if case.option("scope", "model") != "model" or case.option("checkpoint", ""):
        return planned
    if case.size not in SIZES or SIZES[case.size].layers <= COUNTED_LAYERS or SIZES[case.size].width < LEAST_WIDTH:
        return planned
    return replace(planned, case=replace(case, size=cut(case.size, COUNTED_LAYERS)))


class _Shown:
    """Prints each profile as it is finished: its kernels and gaps against the record's latency, and what bounds it."""

    def __init__(self, total: int, latencies: Mapping[str, Recorded]) -> None:
        self._total, self._done, self._latencies = total, 0, latencies
        self._one_at_a_time = Lock()

    def __call__(self, profile: Profile) -> None:
        with self._one_at_a_time:
            self._show(profile)

    def _show(self, profile: Profile) -> None:
        self._done += 1
        counter = f"[{self._done}/{self._total}]"
        if profile.status != "ok":
            print(f"{counter} {profile.status} {profile.case.label}: {profile.reason}", flush=True)
            return
        (profile,) = with_common_ceilings([profile])
        agrees = agreement(profile, self._latencies.get(profile.case.key))
        stages_s = dict(profile.stages_s)
        built, took = in_words(stages_s.pop(BUILD, 0.0)), in_words(sum(stages_s.values()))
        print(f"{counter} {profile.case.label}: {agrees} ({took}, and {built} to build the model)", flush=True)
        print(f"    {' '.join(sentences(profile))}", flush=True)
        for note in profile.notes:
            print(f"    ({note})", flush=True)
