"""`ttt-bench profile`: run cases again under a profiler and store the profiles in a run."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

from bench.cases import with_keys
from bench.errors import INTERRUPTED, UserError
from bench.estimate import in_words, longest_first, past_durations
from bench.models.config import SIZES, cut
from bench.plan import Plan, plan
from bench.request import RunRequest
from bench.run_folder import extended, file_of, refuse_another_device
from bench.terminal import note
from harness.measure.ranges import COUNTED
from harness.profiling.jobs import Profiler
from harness.profiling.tools.choice import choose
from harness.schema.case import Case
from harness.schema.profile import Profile
from harness.schema.reason import counted
from harness.schema.run import Run
from harness.workers.pool import slots_of
from harness.workers.slurm import refuse_submitted
from reports.profiles.peaks import with_common_peaks
from reports.profiles.words import Recorded, agreement, recorded, sentences

LEAST_WIDTH = 1536  # two layers of this width have 100 MB of weights, twice an H100's L2; narrower ones would fit
COUNTED_LAYERS = COUNTED + 1  # layers 0 to COUNTED


def profile(request: RunRequest, out: Path) -> None:
    """Profile the request's cases into the run in `out`; exit status 1 if every profile fails."""
    refuse_submitted(out)
    before = Run.open(out) if Run.exists(out) else None
    work = plan(request, before)
    work.require_device()
    slots = slots_of(work.gpus(), work.device)
    tools = choose(request.way, work.device)
    new = "" if before else f"{out}: a new run, without latencies to compare its profiles with"
    run = _run_of(out, work, before)
    jobs = with_keys(work.jobs, {planned.case.key for job in run.jobs for planned in job.cases})
    if not jobs:
        raise UserError(f"{out}: has none of the requested cases; name another folder with --out")
    if request.gpus:
        jobs = longest_first(jobs, past_durations(work.machine, out))
    note(*filter(None, (*work.notes, tools.summary, new)))
    profiler = Profiler(
        run,
        work.worker_launches,
        tools,
        request.limits,
        skip=lambda planned: work.skip(planned, []),
        stand_in=of_few_layers,
        say=note,
        resume=request.resume,
    )
    every, left = (sum(map(len, cases)) for cases in ([job.cases for job in jobs], map(profiler.pending, jobs)))
    if request.resume:
        print(f"{out}: {counted(every - left, 'profile')} finished earlier", flush=True)
    profiler.on_times = lambda profile: print(f"timed, counters follow: {profile.case.label}", flush=True)
    numbers, latencies = count(1), recorded(run.records())
    profiler.on_profile = lambda found: print(
        "\n".join(_lines(f"[{next(numbers)}/{left}]", found, latencies)), flush=True
    )
    try:
        found = profiler.jobs(jobs, slots)
    except KeyboardInterrupt:
        note(f"interrupted; to continue: {request.resume_command(out)}")
        sys.exit(INTERRUPTED)
    if found and not any(each.status == "ok" for each in found):
        sys.exit(1)


def _run_of(out: Path, work: Plan, before: Run | None) -> Run:
    if before is None:
        return Run.create(out, file_of(work, "profile"))
    refuse_another_device(before, work)
    if before.file.mode != "profile":
        return before
    if not work.request.resume:
        raise UserError(f"{out}: holds profiles already; resume it (--resume) or name another folder")
    return extended(work, out)


def of_few_layers(case: Case) -> Case:
    """Return `case` with a model of few layers, for Nsight Compute; some cases stay unchanged.

    Nsight Compute saves and restores all model memory, so a smaller model takes less time.
    Single layers, checkpoints, sizes such as `1.3b/2` and small models stay unchanged.
    """
    if case.option("scope", "model") != "model" or case.option("checkpoint", ""):
        return case
    if case.size not in SIZES or SIZES[case.size].layers <= COUNTED_LAYERS or SIZES[case.size].width < LEAST_WIDTH:
        return case
    return replace(case, size=cut(case.size, COUNTED_LAYERS))


def _lines(counter: str, profile: Profile, latencies: Mapping[str, Recorded]) -> list[str]:
    if profile.status != "ok":
        return [f"{counter} {profile.status} {profile.case.label}: {profile.reason}"]
    (profile,) = with_common_peaks([profile])
    agrees = agreement(profile, latencies.get(profile.case.key))
    return [
        f"{counter} {profile.case.label}: {agrees} ({in_words(sum(profile.stages_s.values()))})",
        f"    {' '.join(sentences(profile))}",
        *(f"    ({each})" for each in profile.notes),
    ]
