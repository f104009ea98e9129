"""`ttt-bench compare` and `ttt-bench ab` on small checkouts whose adapters return fixed samples."""

import itertools
import json
import shutil
import sys

import pytest
from command_line import ROOT, called, one_sentence

from bench import estimate
from bench.commands import compare as commands
from harness.schema.case import Case
from harness.schema.run import Run
from reports.compare.comparison import compare
from tests.harness.harness_helpers import fake_command, git
from tests.reports import small_runs

# The adapter returns fixed samples, which no machine load changes.
ADAPTER = """
import os
from itertools import repeat

from harness.measure.system import Workload

FORWARD, GENERATE = {forward}, {generate}

class TorchTransformer:
    packages = ()

    def unavailable(self):
        with open(os.environ["STARTED"], "a") as file:
            file.write("{name} ")
        return ""

    def build(self, case):
        ms = (FORWARD if case.phase == "forward" else GENERATE) / 100
        with open(os.environ["STARTED"]) as file:  # another time in each process
            jitter = 1 + len(file.read().split()) % 5 / 1000
        samples = [ms * jitter * (1 + at / 1000) for at in range(9)]
        tokens = case.batch * (case.context if case.phase == "forward" else 1)
        return Workload(run=lambda: None, tokens=tokens, engine_samples=lambda: repeat(samples))
"""
ONE = ("quick", "--systems", "transformer/torch", "--context", "64", "--batch", "1", "--device", "cpu")


def commit(folder, name, forward=1.0, generate=1.0):
    adapter = folder / "bench" / "systems" / "transformer" / "pytorch.py"
    adapter.parent.mkdir(parents=True, exist_ok=True)
    adapter.write_text(ADAPTER.format(forward=forward, generate=generate, name=name))
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", name)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    hours = itertools.count()
    monkeypatch.setattr("bench.run_folder.utc_now", lambda: f"2026-01-01T{next(hours):02}:00:00+00:00")
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "harness", folder / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".gitignore").write_text("__pycache__/\n")
    git(folder.parent, "init", "-q", str(folder))
    monkeypatch.setattr(commands, "ROOT", folder)
    monkeypatch.setattr("reports.compare.side.is_loaded", lambda environment: False)  # whatever else runs here
    monkeypatch.setenv("STARTED", str(tmp_path / "started"))
    monkeypatch.delenv("PYTHONPATH", raising=False)  # or workers would run this program's code
    monkeypatch.chdir(tmp_path)
    return folder


def ttt_bench(*arguments):
    return called(*arguments, cwd=".")


def test_ab_finds_the_case_that_one_commit_made_slower(checkout, tmp_path, monkeypatch):
    old, new = commit(checkout, "old"), commit(checkout, "new", forward=1.05)
    monkeypatch.setattr(estimate, "past_durations", lambda *_: {Case("a", "b", "tiny", "forward", 1, 8): 5.0})
    done = ttt_bench("ab", "HEAD~1", "HEAD", *ONE, "--rounds", 3)
    assert done.returncode == commands.REGRESSION
    assert done.stdout.startswith("1 slower, 1 same.\n")
    assert done.stdout.count("1 slower, 1 same.") == 1
    assert f": {estimate.on_one_device(2 * 3 * 2 * 5.0)}\n" in done.stderr
    runs = [Run.open(tmp_path / "out" / "ab" / side) for side in ("old", "new")]
    found = compare(*runs)
    forward, generate = (row.result for row in found.rows)
    assert (forward.outcome, forward.regressed) == ("slower", True)
    assert forward.ratio == pytest.approx(1.05, abs=0.01)
    assert (generate.outcome, generate.regressed) == ("same", False)
    assert (found.a.commit, found.b.commit) == (old[:10], new[:10])
    assert [run.file.requests[0].commit for run in runs] == [old, new]
    for run, ran in zip(runs, (old, new), strict=True):
        assert {record.environment["commit"] for record in run.records()} == {ran}
    turns = [line.partition("] ")[2].partition(":")[0] for line in done.stderr.splitlines() if " ok " in line]
    first, second = (f"round 1, old {old[:10]}", f"round 1, new {new[:10]}"), (f"round 2, new {new[:10]}",)
    assert list(dict.fromkeys(turns))[:3] == [*first, *second]
    assert (tmp_path / "started").read_text().split() == ["old", "new", "new", "old", "old", "new"]
    assert len(git(checkout, "worktree", "list").splitlines()) == 1

    # Comparing the two runs again gives the same result; a higher bar gives another.
    sides = ("out/ab/old", "out/ab/new")
    assert ttt_bench("compare", *sides, "--fail-on", "3%").returncode == commands.REGRESSION
    assert ttt_bench("compare", *sides, "--fail-on", "10%").returncode == 0
    done = ttt_bench("compare", *sides)
    assert (done.returncode, "1 slower, 1 same" in done.stdout) == (0, True)
    done = ttt_bench("ab", "HEAD", "HEAD", *ONE)
    assert "out/ab: holds a comparison already; name another folder" in one_sentence(done)


def test_a_case_that_the_new_commit_lost_is_a_regression_and_is_not_tried_again(checkout, tmp_path):
    commit(checkout, "old")
    commit(checkout, "new", forward="1 / 0", generate=1.0)
    done = ttt_bench("ab", "HEAD~1", "HEAD", *ONE, "--rounds", 2)
    assert done.returncode == commands.REGRESSION
    assert "no result in B: unstarted" in done.stdout
    assert [
        f"{letter}: {side}, commit {git(checkout, 'rev-parse', revision)[:10]}" in done.stdout
        for letter, side, revision in (("A", "old", "HEAD~1"), ("B", "new", "HEAD"))
    ] == [True, True]
    assert (tmp_path / "started").read_text().split() == ["old"]


def test_an_interpreter_that_runs_other_code_is_refused(checkout, tmp_path):
    """An interpreter in a container with its own ttt-bench would run that code for both commits."""
    old, new = commit(checkout, "old"), commit(checkout, "new")
    command = ["/usr/bin/env", f"PYTHONPATH={checkout}", sys.executable]
    (tmp_path / "systems.toml").write_text(f'["transformer/torch"]\ncommand = {json.dumps(command)}\n')
    done = ttt_bench("ab", "HEAD~1", "HEAD", *ONE, "--rounds", 2)
    assert done.returncode == 2
    assert f"transformer/torch: its worker ran the code of {new[:10]}, not of {old[:10]}" in done.stderr


def test_a_mistake_in_ab_is_one_sentence(checkout, tmp_path):
    commit(checkout, "old")
    for arguments, message in (
        (("HEAD", "nowhere"), "nowhere: is not a revision of this checkout: fatal: Needed a single revision"),
        (("HEAD", "--output=x"), "No such option"),
        (("HEAD", "HEAD", "--rounds", "1"), "--rounds 1: must be from 2 to 99"),
        (("HEAD", "HEAD", "--fail-on", "3"), "--fail-on 3: must be a percentage from 1% to 1000%, such as 5%"),
        (("HEAD", "HEAD", "--fail-on", "nan%"), "--fail-on nan%: must be a percentage"),
        (("HEAD", "HEAD", "--fail-on", "0.5%"), "--fail-on 0.5%: must be a percentage from 1%"),
    ):
        assert message in one_sentence(ttt_bench("ab", *arguments, *ONE))
    assert not (tmp_path / "started").exists()


def test_a_tree_with_changes_is_refused(checkout):
    commit(checkout, "old")
    (checkout / "new_file.py").write_text("")
    done = ttt_bench("ab", "HEAD", "HEAD", *ONE)
    assert "new_file.py: differs from the commit; commit it or `git stash -u`" in one_sentence(done)


def test_hooks_of_a_checkout_do_not_run_in_its_worktrees(checkout, tmp_path, monkeypatch):
    commit(checkout, "old")
    fake_command(checkout / ".git" / "hooks", "post-checkout", f"touch {tmp_path}/hooked\nexit 1")
    monkeypatch.setattr(commands, "_measure_interleaved", lambda *_: None)
    done = ttt_bench("ab", "HEAD", "HEAD", *ONE)
    assert one_sentence(done) == "ttt-bench: out/ab/old: has no records to compare"
    assert not (tmp_path / "hooked").exists()
    assert git(checkout, "worktree", "list").count("\n") == 0


def test_a_failed_worktree_is_reported_and_removed(checkout):
    (checkout / ".gitattributes").write_text("*.bin filter=broken\n")
    (checkout / "weights.bin").write_text("x")
    commit(checkout, "old")
    git(checkout, "config", "filter.broken.smudge", "echo no network >&2; false")
    git(checkout, "config", "filter.broken.required", "true")
    printed = one_sentence(ttt_bench("ab", "HEAD", "HEAD", *ONE))
    assert "HEAD: git cannot create a worktree in " in printed
    assert "no network" in printed
    assert git(checkout, "worktree", "list").count("\n") == 0


def test_revisions_need_a_git_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    assert "ttt-bench must be in a git checkout" in one_sentence(ttt_bench("ab", "HEAD", "HEAD", *ONE))


def a_run(folder, ms, context=64, **gpu):
    case = small_runs.a_case(context)
    measured = small_runs.timed(case, ms, small_runs.on_gpu(**gpu))
    small_runs.a_run(folder, measured if ms else small_runs.without(case))


def test_compare_reports_and_fails_only_with_fail_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a_run(tmp_path / "a", 10)
    a_run(tmp_path / "b", 12)
    done = ttt_bench("compare", "a", "b")
    assert (done.returncode, "slower   1.200" in done.stdout) == (0, True)
    done = ttt_bench("compare", "a", "b", "--fail-on", "5%")
    assert done.returncode == commands.REGRESSION
    assert "1 case slower by more than 5% and by more than the run-to-run spread" in done.stdout
    assert ttt_bench("compare", "b", "a", "--fail-on", "5%").returncode == 0
    error = one_sentence(ttt_bench("compare", "a", "b", "--fail-on", "3%"))
    assert error.startswith("ttt-bench: --fail-on 3%: ")
    assert "`ttt-bench ab`" in error
    a_run(tmp_path / "busy", 30, cpu={"others_share": 0.9, "idle_share": 0.0})
    done = ttt_bench("compare", "a", "busy", "--fail-on", "5%")
    assert (done.returncode, "no case is reliable" in done.stderr) == (commands.NOT_COMPARABLE, True)


def test_another_gpu_has_ratios_and_nothing_to_fail_on(tmp_path):
    a_run(tmp_path / "a", 10)
    a_run(tmp_path / "b", 12, name="H200")
    done = ttt_bench("compare", tmp_path / "a", tmp_path / "b")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Another GPU: b takes 1.20 times as long as a.\n")
    assert "differs: GPU H100 → H200" in done.stdout
    done = ttt_bench("compare", tmp_path / "a", tmp_path / "b", "--fail-on", "5%")
    assert done.returncode == commands.NOT_COMPARABLE
    assert "the devices differ in every case" in done.stderr


def test_another_driver_is_named_and_points_still_count(tmp_path):
    a_run(tmp_path / "a", 10)
    a_run(tmp_path / "b", 10.01, driver="570")
    done = ttt_bench("compare", tmp_path / "a", tmp_path / "b", "--fail-on", "5%")
    assert done.returncode == 0
    assert done.stdout.startswith("Confirmed: 1 of 1 reliable point within ")
    assert "differs: driver 580 → 570" in done.stdout


def test_no_case_in_common_is_exit_status_3(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a_run(a, 10)
    a_run(b, 10, context=128)
    done = ttt_bench("compare", a, b)
    assert (done.returncode, done.stdout) == (commands.NOT_COMPARABLE, "")
    assert done.stderr == f"ttt-bench: {a} and {b} have no case in common\n"


@pytest.mark.parametrize("options", [[], ["--fail-on", "10%"]])
def test_a_comparison_of_nothing_is_exit_status_3(tmp_path, options):
    a_run(tmp_path / "a", 0)
    a_run(tmp_path / "b", 10)
    done = ttt_bench("compare", tmp_path / "a", tmp_path / "b", *options)
    assert done.returncode == commands.NOT_COMPARABLE
    assert "no case has a result on both sides" in done.stderr
    assert "no result in A: failed, RuntimeError: no" in done.stdout
    # A case that only B lost is a regression.
    lost = ttt_bench("compare", tmp_path / "b", tmp_path / "a", *options)
    assert lost.returncode == (commands.REGRESSION if "--fail-on" in options else 0)
