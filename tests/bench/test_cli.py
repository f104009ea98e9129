"""What the command line says: help, listings, checks, what is missing here; and that it starts at once."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from command_line import ROOT, SMALL, assert_one_sentence, called, ttt_bench

from bench import plan
from bench.catalogue.suites import BUDGETS_S, SUITES, Suite, find_group
from bench.catalogue.systems import ADAPTERS
from bench.commands import build as build_command
from bench.commands import listing, measure, verify
from bench.errors import FOR_A_CPU
from bench.request import RunRequest
from harness.measure.environment import snapshot
from harness.measure.gate import Check, Verdict
from harness.measure.measured_case import NO_REFERENCE
from harness.schema.case import Case
from harness.schema.record import Record
from harness.workers.protocol import Probe
from tk_kernels import build
from tk_kernels.build import NO_GPU, OTHER_GPU

CASE = Case("ttt-linear", "torch", "tiny", "forward", 2, 64)


def test_version_and_short_help(tmp_path):
    assert ttt_bench("--version", cwd=tmp_path).stdout.split()[0] == "ttt-bench"
    assert called("-h", cwd=tmp_path).stdout == called("--help", cwd=tmp_path).stdout
    assert "--dry-run" in called("run", "-h", cwd=tmp_path).stdout
    assert "<bool>" not in called("run", "-h", cwd=tmp_path).stdout
    bare = ttt_bench(cwd=tmp_path)
    assert (bare.returncode, bare.stderr.strip()) == (2, "")
    assert "Usage:" in bare.stdout


def test_the_help_of_twelve_commands_fits_80_columns_without_cutting_words(tmp_path):
    narrow = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    command = [sys.executable, "-m", "bench", "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=narrow, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    commands = lines[lines.index("Commands:") + 1 :]
    assert len(commands) == 12
    options = [line for line in called("run", "--help", cwd=tmp_path).stdout.splitlines() if re.match(" +-", line)]
    assert len(options) == 15  # --help among them
    assert all(len(line) <= 80 and line.endswith(".") and not line.endswith("...") for line in commands)


def test_verify_prints_the_checks(tmp_path):
    done = ttt_bench("verify", "quick", *SMALL[:-2], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *cases, last = done.stdout.splitlines()
    assert last == "2 cases: 2 ok"
    assert len(cases) == 2
    for line in cases:
        assert re.fullmatch(r"ok      transformer/torch tiny .*: \d+ checks passed, the worst \S+ \S+ of \S+", line)
    assert not list(tmp_path.iterdir())


def test_verify_for_a_gpu_does_not_pass_where_the_worker_sees_none(monkeypatch, capsys):
    gpu = {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 << 30}
    there = {**snapshot("cpu"), "device": gpu["name"], "device_kind": "cuda", "gpu": gpu}
    monkeypatch.setattr(plan, "snapshot", lambda *_: there)
    request = RunRequest(
        suites=("quick",), systems="transformer/torch", batch="1", context="64", phase="forward", device="cuda"
    )
    with pytest.raises(SystemExit):
        verify.verify(request)
    said = capsys.readouterr().out
    assert "it was measured on the CPU: the worker's packages see no GPU" in said
    assert not re.search(r"^ok ", said, re.MULTILINE)


def verified(monkeypatch, capsys, *records):
    """What `verify` prints of these records, and how it exits."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(verify, "run_jobs", lambda *_, **__: list(records))
    request = RunRequest(suites=("quick",), systems="ttt-linear", batch="2", context="64", device="cpu")
    try:
        verify.verify(request)
    except SystemExit as end:
        return capsys.readouterr().out, end.code
    return capsys.readouterr().out, None


def test_verify_prints_a_distance_that_is_not_finite(monkeypatch, capsys):
    verdict = Verdict([Check.at_most("error", float("nan"), 0.01), Check.at_most("other", 0.5, float("inf"))])
    missed = Record.from_dict(json.loads(Record(CASE, "incorrect", verdict.reason, gate=verdict.to_dict()).to_json()))
    said, status = verified(monkeypatch, capsys, missed)
    assert "incorrect ttt-linear/torch tiny" in said
    assert said.endswith(": 1 of 2 checks missed: error not finite (limit 0.01)\n1 case: 1 incorrect\n")
    assert status == 1


def test_verify_prints_a_reason_as_it_is_and_what_was_not_checked(monkeypatch, capsys):
    said, status = verified(monkeypatch, capsys, Record(CASE, "failed", "cannot open [/tmp/x] of [bold]"))
    assert "cannot open [/tmp/x] of [bold]" in said
    assert status == 1
    verdict = Verdict([Check.at_most("error", 0.0, 0.01)], "of 9 tokens the first 3 were compared")
    said, status = verified(monkeypatch, capsys, Record(CASE, "ok", gate=verdict.to_dict()))
    assert ": 1 check passed, error 0 of 0.01; of 9 tokens the first 3 were compared\n" in said
    assert status is None
    verdict = Verdict([Check.at_most("near", 2e-5, 1e-4), Check.at_most("far", 0.01, 0.1), Check.at_most("rows", 1, 1)])
    assert (
        "3 checks passed, the worst near 2e-05 of 0.0001\n"
        in verified(monkeypatch, capsys, Record(CASE, "ok", gate=verdict.to_dict()))[0]
    )


def test_verify_of_some_is_a_success_and_of_none_a_failure(monkeypatch, capsys):
    skipped = Record(CASE, "skipped", "vllm is not installed")
    assert verified(monkeypatch, capsys, skipped, Record(CASE, "ok"))[1] is None
    said, status = verified(monkeypatch, capsys, skipped)
    assert "vllm is not installed" in said
    assert status.startswith("ttt-bench: nothing was verified: every case was skipped")


def test_verify_fails_where_a_case_has_no_reference(monkeypatch, capsys):
    """Or a script would take a system without one for verified, beside another."""
    unknown = Record(CASE, "skipped", NO_REFERENCE)
    _, status = verified(monkeypatch, capsys, unknown, Record(CASE, "ok"))
    assert status == f"ttt-bench: 1 case not verified, as {NO_REFERENCE}"


def test_verify_of_an_unavailable_system_verifies_nothing(tmp_path):
    done = called("verify", "quick", "--systems", "transformer/vllm", *SMALL[2:-2], cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1][:34]) == (1, "ttt-bench: nothing was verified: e")


def test_build_prints_what_tells_kernels_apart_and_no_markup(monkeypatch, capsys):
    names = ("run<[/a]>(float [16])", "void ttt::run<ttt::layout<16, true> >(ttt::layout<16, true>::globals)")
    resources = [build.KernelResources(name, 40, 0, 0, 0, 0) for name in names]
    built = type("Built", (), {"name": "forward", "compiled": True, "resources": resources})
    monkeypatch.setattr(build, "find_nvcc", lambda: None)
    monkeypatch.setattr(build, "build_all", lambda: [built])
    monkeypatch.setenv("COLUMNS", "200")
    build_command.build_kernels()
    printed = capsys.readouterr().out
    assert "run<[/a]> " in printed
    assert "run<layout<16, true>> " in printed


def test_suites_print_questions_as_they_are_and_groups(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(listing, "SUITES", (Suite("new", "Is [/it] so?", ()),))
    listing.list_suites()
    printed = capsys.readouterr().out
    assert "Is [/it] so?" in printed
    assert "paper" in printed


def test_groups_say_what_they_hold():
    everything = find_group("all")
    assert "needs a GPU" not in everything.question
    assert {suite.name for suite in SUITES} - {*everything.suites} == {"quick", "peers", "vllm-settings"}


def test_systems_name_what_installs_a_package_and_nothing_that_would_install_a_gpu(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    reasons = {"thunderkittens": NO_GPU, "triton-dual": f"{OTHER_GPU} A100", "vllm": "vllm cannot be imported"}
    reasons["torch"] = f"it is {FOR_A_CPU}: use another"
    answers = [Probe("skipped", reasons.get(adapter.backend, "not here")) for adapter in ADAPTERS]
    monkeypatch.setattr(listing, "probe", lambda _: answers)
    listing.list_systems()
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if "GPU" in line and "install" in line]
    assert not [line for line in lines if FOR_A_CPU in line and "install" in line]
    assert len([line for line in lines if "(install: make venv-vllm)" in line and "vllm cannot" in line]) == 3


def test_without_a_gpu_no_system_asks_for_packages_first(tmp_path):
    lines = [line for line in called("list", cwd=tmp_path).stdout.splitlines() if line]
    gpu_only = [each.label for each in ADAPTERS if each.install != "make bench" or "triton-" in each.backend]
    named = {line.split()[0]: line for line in lines}
    assert all(named[label].rstrip().endswith(NO_GPU) for label in gpu_only)


def test_a_run_says_how_to_install_what_it_skipped_for_a_missing_package():
    def record(system, backend, status, reason):
        return Record(replace(CASE, system=system, backend=backend), status, reason)

    records = [
        record("transformer", "vllm", "skipped", "vllm cannot be imported: No module named 'vllm'"),
        record("mamba", "mamba-ssm", "skipped", "there is no CUDA GPU"),
        record("mamba", "vllm", "failed", "a tensor cannot be imported"),
    ]
    assert measure.missing_packages(records) == ["transformer/vllm was skipped; to install it: make venv-vllm"]


def test_the_budgets_that_the_help_names_are_those_of_the_catalogue(tmp_path):
    said = " ".join(called("run", "--help", cwd=tmp_path).stdout.replace("│", " ").split())
    assert f"{BUDGETS_S['cuda']:g} on a GPU" in said


@pytest.mark.parametrize("command", ["run", "profile"])
@pytest.mark.parametrize("written", [["-o", "mine"], ["-omine"], ["--out", "mine"], ["--out=mine"]])
def test_the_folder_of_a_run_can_be_told_shortly(tmp_path, written, command):
    arguments = [command, *written, "quick", "--device", "cpu"]
    (tmp_path / "mine").touch()
    assert_one_sentence(called(*arguments, cwd=tmp_path), "mine")


def test_help_imports_no_heavy_package(tmp_path):
    program = """
import sys
from bench.cli import app
app(["--help"], standalone_mode=False)
print(sorted({"torch", "numpy", "scipy", "pandas", "plotly", "jinja2", "transformers", "triton"} & set(sys.modules)))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_parent_process_stays_light(tmp_path):
    # A whole run in-process, its workers beside it. VmHWM and not ru_maxrss, which a child inherits from its parent.
    program = f"""
import sys
from pathlib import Path
from bench.cli import app
app(["run", "quick", *{SMALL!r}, "--out", "out"], standalone_mode=False)
heavy = {{"torch", "pandas", "plotly", "transformers", "triton"}} & set(sys.modules)
assert not heavy, heavy
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
assert int(peak.split()[1]) < 200_000, peak
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
