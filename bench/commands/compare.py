"""Compare two runs (`compare`), or measure two commits alternately on one machine (`ab`)."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench import estimate
from bench.errors import NOT_COMPARABLE, REGRESSION, UserError
from bench.plan import Plan, plan
from bench.request import RunRequest
from bench.run_folder import file_of
from bench.terminal import note
from harness.measure.environment import ROOT, commit_and_dirty, run_git, uncommitted
from harness.schema.run import Run
from harness.schema.run_file import Job, RunFile
from harness.workers.process import Launch
from harness.workers.progress import Progress
from harness.workers.scheduler import Event, Options, run_jobs
from reports.compare import comparison as comparing
from reports.compare import views
from reports.compare.decision import BAR, LEAST_ROUNDS, MOST_ROUNDS


def compare(a: Path, b: Path, fail_on: str | None, markdown: bool) -> None:
    """Compare run `b` with `a`; exit status 1 for a regression, 3 if nothing can be compared.

    fail_on: the slowdown that counts as a regression, such as "5%"; None: never status 1. markdown: print Markdown.
    """
    bar = None if fail_on is None else percentage(fail_on)
    found = _show(a, b, bar, markdown)
    if bar is not None and found.regressions:
        sys.exit(REGRESSION)


def ab(request: RunRequest, out: Path, fail_on: str | None, markdown: bool) -> None:
    """Measure two commits alternately into OUT/old and OUT/new, and compare them.

    fail_on: the slowdown that counts as a regression, such as "5%"; None means 1% (`BAR`). markdown: print Markdown.
    Exit status 1 for a regression, 3 if nothing can be compared.
    """
    bar = None if fail_on is None else percentage(fail_on)
    if not LEAST_ROUNDS <= request.rounds <= MOST_ROUNDS:
        raise UserError(f"--rounds {request.rounds}: must be from {LEAST_ROUNDS} to {MOST_ROUNDS}")
    folders = (out / "old", out / "new")
    for folder in folders:
        if Run.exists(folder):
            raise UserError(f"{out}: holds a comparison already; name another folder")
    if not (ROOT / ".git").exists():
        raise UserError("ab: ttt-bench must be in a git checkout")
    if changed := uncommitted(ROOT):
        raise UserError(f"{changed[0]}: differs from the commit; commit it or `git stash -u`, then compare")
    work = plan(request)
    work.require_device()
    note(*work.notes)
    if past := estimate.past_durations(work.machine, out):
        seconds = 2 * request.rounds * sum(estimate.job_seconds(job.cases, past) for job in work.jobs)
        note(f"{request.rounds} rounds on two commits: {estimate.on_one_device(seconds)}")
    with _checkout(request.sides[0]) as old, _checkout(request.sides[1]) as new:
        file = file_of(work, "measure")  # one for both sides: reports recognize `ab` by equal times
        runs = [_Side.create(*each, work, file) for each in zip(folders, (old, new), strict=True)]
        _measure_interleaved(runs, work)
    found = _show(*folders, bar, markdown)
    if found.regressions:
        sys.exit(REGRESSION)


def percentage(text: str) -> float:
    """Parse `5%` as 0.05. Raises UserError for other text or a value below `BAR` (1%) or above 1000%."""
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        value = 0.0
    if not text.endswith("%") or not BAR <= value <= 10:
        raise UserError(f"--fail-on {text}: must be a percentage from {BAR:.0%} to 1000%, such as 5%")
    return value


def _show(a: Path, b: Path, fail_on: float | None, markdown: bool) -> comparing.Comparison:
    try:
        found = comparing.compare(Run.open(a), Run.open(b), *([] if fail_on is None else [fail_on]))
    except comparing.NotComparable as error:
        note(str(error))
        sys.exit(NOT_COMPARABLE)
    if fail_on is not None and fail_on < found.fail_on:
        raise UserError(
            f"--fail-on {100 * fail_on:g}%: differences up to {found.fail_on:.0%} between two stored runs are noise; "
            "to find a smaller slowdown, measure both commits alternately with `ttt-bench ab`"
        )
    print(views.markdown(found) if markdown else views.text(found), end="", flush=True)
    outcomes = found.counts.keys() - {"gained"}
    if not outcomes or ((fail_on or found.interleaved) and outcomes <= {"unreliable", *comparing.OTHER_DEVICE}):
        why = "the devices differ in every case" if found.other_device else "no case is reliable"
        note(f"the runs cannot be compared: {why if outcomes else 'no case has a result on both sides'}")
        sys.exit(NOT_COMPARABLE)
    return found


@contextmanager
def _checkout(revision: str) -> Iterator[Path]:
    commit, error = run_git(ROOT, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    if error:
        raise UserError(f"{revision}: is not a revision of this checkout: {error}")
    with tempfile.TemporaryDirectory(prefix="ttt-bench-ab-") as folder:
        root = Path(folder) / commit[:10]
        no_hooks = ("-c", f"core.hooksPath={os.devnull}")  # a user's hooks may fail in a worktree
        try:
            _, error = run_git(ROOT, *no_hooks, "worktree", "add", "--detach", str(root), commit, timeout_s=None)
            if error:
                raise UserError(f"{revision}: git cannot create a worktree in {folder}: {error}")
            yield root
        finally:
            run_git(ROOT, "worktree", "remove", "--force", str(root))


@dataclass
class _Side:
    run: Run
    launches: Mapping[tuple[str, str], Launch]
    commit: str

    @classmethod
    def create(cls, folder: Path, root: Path, work: Plan, file: RunFile) -> "_Side":
        commit, dirty = commit_and_dirty(root)
        file = replace(file, requests=tuple(replace(each, commit=commit, dirty=dirty) for each in file.requests))
        launches = {pair: replace(launch, root=root) for pair, launch in work.worker_launches.items()}
        return cls(Run.create(folder, file), launches, commit)

    def measure(self, job: Job, number: int, work: Plan, progress: Progress) -> set[str]:
        """Run round `number` of a job in a fresh process; return the keys of cases with a result.

        Raises UserError if a worker ran the code of another commit.
        """
        turn = f"round {number + 1}, {self.run.folder.name} {self.commit[:10]}"

        def show(event: Event) -> None:
            if event.kind != "plan":  # `_measure_interleaved` shows one plan for all rounds
                progress(replace(event, slot=turn) if event.kind == "record" else event)

        options = Options(jobs=[job], repeat=number, limits=work.request.limits, on_event=show, skip=work.skip)
        records = run_jobs(self.run, self.launches, options)
        keys = {planned.case.key for planned in job.cases}
        ok = [each for each in records if each.case.key in keys and each.repeat == number and each.status == "ok"]
        for record in ok:
            if (ran := record.environment.get("commit") or "") != self.commit:  # as in a container without PYTHONPATH
                raise UserError(
                    f"{record.case.system_backend}: its worker ran the code of {ran[:10] or 'an unknown commit'}, "
                    f"not of {self.commit[:10]}; the command in systems.toml must pass PYTHONPATH"
                )
        return {record.case.key for record in ok}


def _measure_interleaved(sides: Sequence[_Side], work: Plan) -> None:
    """Measure jobs with both commits per round; later rounds keep only cases with both results."""
    jobs, rounds = list(work.jobs), work.request.rounds
    with Progress("ab") as progress:
        progress(Event("plan", total=2 * rounds * len(work.keys)))
        for number in range(rounds):
            for at, job in enumerate(jobs):
                order = sides if number % 2 == 0 else list(reversed(sides))
                finished = [side.measure(job, number, work, progress) for side in order if job.cases]
                left = tuple(each for each in job.cases if all(each.case.key in keys for keys in finished))
                progress.total -= 2 * (len(job.cases) - len(left)) * (rounds - number - 1)
                jobs[at] = replace(job, cases=left)
