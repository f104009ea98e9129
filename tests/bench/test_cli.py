"""Help, `list`, `verify` and `build` of the command line, which starts fast and keeps the parent process small."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from command_line import ROOT, SMALL, called, ttt_bench

from bench import plan
from bench.catalogue.suites import GROUPS, SUITES, Suite
from bench.catalogue.systems import ADAPTERS
from bench.commands import build as build_command
from bench.commands import listing, measure, verify
from bench.request import RunRequest
from harness.measure.correctness import Check, Checks
from harness.measure.environment import snapshot
from harness.measure.measured_case import NO_REFERENCE
from harness.schema.case import Case
from harness.schema.record import Record
from harness.workers.protocol import Probe
from tk_kernels import build
from tk_kernels.build import NO_GPU, OTHER_GPU

CASE = Case("ttt-linear", "torch", "tiny", "forward", 2, 64)


def python(program, cwd):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", program], cwd=cwd, env=environment, capture_output=True, text=True)


def help_lines(cwd, *command):
    return called(*command, "--help", cwd=cwd).stdout.splitlines()


def commands(cwd):
    lines = help_lines(cwd)
    return lines[lines.index("Commands:") + 1 :]


def test_version_and_short_help(tmp_path):
    assert ttt_bench("--version", cwd=tmp_path).stdout.split()[0] == "ttt-bench"
    assert called("-h", cwd=tmp_path).stdout == called("--help", cwd=tmp_path).stdout
    bare = ttt_bench(cwd=tmp_path)
    assert (bare.returncode, bare.stderr.strip()) == (2, "")
    assert "Usage:" in bare.stdout


def test_the_help_of_every_command_fits_80_columns(tmp_path):
    found = commands(tmp_path)
    assert len(found) == 12
    assert all(line.endswith(".") and not line.endswith("...") for line in found)
    for name in ("", *(line.split()[0] for line in found)):
        lines = help_lines(tmp_path, *name.split())
        assert max(map(len, lines)) <= 80
        assert "<bool>" not in "\n".join(lines)


def test_verify_prints_the_checks(tmp_path):
    done = ttt_bench("verify", "quick", *SMALL[:-2], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *cases, last = done.stdout.splitlines()
    assert last == "2 cases: 2 ok"
    assert len(cases) == 2
    for line in cases:
        assert re.fullmatch(r"ok      transformer/torch tiny .*: \d+ checks passed", line)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_torch")
def test_verify_for_a_gpu_fails_if_the_worker_sees_none(monkeypatch, capsys):
    gpu = {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 << 30}
    there = {**snapshot("cpu"), "device": gpu["name"], "device_kind": "cuda", "gpu": gpu}
    monkeypatch.setattr(plan, "snapshot", lambda **_: there)
    request = RunRequest(
        suites=("quick",), systems="transformer/torch", batch="1", context="64", phase="forward", device="cuda"
    )
    with pytest.raises(SystemExit):
        verify.verify(request)
    printed = capsys.readouterr().out
    assert "it was measured on the CPU: the worker's packages see no GPU" in printed
    assert not re.search(r"^ok ", printed, re.MULTILINE)


def checked(*checks, unchecked=""):
    return Record(CASE, "ok", check=Checks(list(checks), unchecked).to_dict())


FAILED = Checks([Check.at_most("error", 0.5, 0.01)])
SKIPPED = Record(CASE, "skipped", "vllm is not installed")


@pytest.mark.parametrize(
    ("records", "printed", "status"),
    [
        (
            [Record(CASE, "incorrect", FAILED.reason, check=FAILED.to_dict())],
            ": error is 0.5, limit 0.01\n1 case: 1 incorrect\n",
            1,
        ),
        ([Record(CASE, "failed", "cannot open [/tmp/x] of [bold]")], "cannot open [/tmp/x] of [bold]", 1),
        (
            [checked(Check.at_most("error", 0.0, 0.01), unchecked="of 9 tokens the first 3 were compared")],
            ": 1 check passed; of 9 tokens the first 3 were compared\n",
            None,
        ),
        ([SKIPPED, Record(CASE, "ok")], "vllm is not installed", None),
        ([SKIPPED], "vllm is not installed", "nothing was verified: every case was skipped"),
        (
            [Record(CASE, "skipped", f"{NO_REFERENCE}; x"), Record(CASE, "ok")],
            "",
            f"1 case not verified: {NO_REFERENCE}",
        ),
    ],
)
def test_verify_prints_what_failed_and_exits_accordingly(monkeypatch, capsys, records, printed, status):
    monkeypatch.setattr(verify, "run_jobs", lambda *_, **__: records)
    request = RunRequest(suites=("quick",), systems="ttt-linear", batch="2", context="64", device="cpu")
    code = None
    try:
        verify.verify(request)
    except SystemExit as end:
        code = end.code
    assert printed in capsys.readouterr().out
    assert code == status or str(code).startswith(f"ttt-bench: {status}")


def test_build_prints_template_arguments_and_no_markup(monkeypatch, capsys):
    names = ("run<[/a]>(float [16])", "void ttt::run<ttt::layout<16, true> >(ttt::layout<16, true>::globals)")
    resources = [build.KernelResources(name, 40, 0) for name in names]
    built = type("Built", (), {"name": "forward", "compiled": True, "resources": resources})
    monkeypatch.setattr(build, "find_nvcc", lambda: None)
    monkeypatch.setattr(build, "KERNELS", ("forward",))
    monkeypatch.setattr(build, "build", lambda name: built)
    monkeypatch.setenv("COLUMNS", "200")
    build_command.build_kernels()
    printed = capsys.readouterr().out
    assert "run<[/a]> " in printed
    assert "run<layout<16, true>> " in printed


def test_the_list_of_suites_has_questions_without_markup_and_groups(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(listing, "SUITES", (Suite("new", "Is [/it] so?", ()),))
    listing.list_suites()
    printed = capsys.readouterr().out
    assert "Is [/it] so?" in printed
    assert "paper" in printed
    apart = {"quick", "arrivals", "peers", "vllm-settings"}
    assert {*GROUPS["all"].suites} == {suite.name for suite in SUITES} - apart


def test_the_list_of_systems_names_the_install_command_of_a_missing_package_or_interpreter(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "systems.toml").write_text('["mamba/mamba-ssm"]\npython = "/missing/bin/python"\n')
    monkeypatch.setenv("COLUMNS", "300")
    reasons = {"thunderkittens": NO_GPU, "triton-dual": f"{OTHER_GPU} A100", "vllm": "vllm cannot be imported"}
    reasons["torch"] = "it is unavailable on CUDA: use another"
    answers = [Probe(reasons.get(adapter.backend, "not here")) for adapter in ADAPTERS]
    monkeypatch.setattr(listing, "probe", lambda _: answers)
    listing.list_systems()
    lines = capsys.readouterr().out.splitlines()
    hints = {line.split()[0]: line for line in lines if "install: " in line}
    assert "(install: make venv-mamba)" in hints.pop("mamba/mamba-ssm")
    assert len(hints) == 5
    assert all("vllm cannot" in line and "(install: make venv-vllm)" in line for line in hints.values())


def test_systems_that_run_here_come_first_and_keep_their_order(monkeypatch, capsys):
    runs = [at % 3 == 1 for at in range(len(ADAPTERS))]
    monkeypatch.setattr(listing, "probe", lambda _: [Probe("" if each else "not here") for each in runs])
    listing.list_systems()
    labels = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "/" in line.split()[0]]
    assert labels == [
        each.label for wanted in (True, False) for each, has in zip(ADAPTERS, runs, strict=True) if has == wanted
    ]


def test_without_a_gpu_no_system_asks_for_packages_first(tmp_path):
    lines = [line for line in called("list", cwd=tmp_path).stdout.splitlines() if line]
    gpu_only = [each.label for each in ADAPTERS if each.install != "make bench" or "triton-" in each.backend]
    named = {line.split()[0]: line for line in lines}
    assert all(named[label].rstrip().endswith(NO_GPU) for label in gpu_only)


def test_a_run_names_the_install_command_of_a_skipped_system():
    records = [
        Record(replace(CASE, system=system, backend=backend), status, reason)
        for system, backend, status, reason in (
            ("transformer", "vllm", "skipped", "vllm cannot be imported: No module named 'vllm'"),
            ("mamba", "mamba-ssm", "skipped", "there is no CUDA GPU"),
            ("mamba", "vllm", "failed", "a tensor cannot be imported"),
        )
    ]
    assert measure.missing_packages(records) == ["transformer/vllm was skipped; to install it: make venv-vllm"]


HEAVY = "torch numpy scipy pandas plotly jinja2 transformers triton"


@pytest.mark.parametrize(
    ("program", "unused"),
    [
        ("from bench.cli import app; app(['--help'], standalone_mode=False)", HEAVY),
        ("import bench.cost, bench.commands.measure, bench.commands.slurm", "torch pandas"),
        ("import harness.worker", "torch numpy"),
        (
            "import harness.profiling.block",
            "harness.schema.run harness.workers harness.profiling.jobs harness.profiling.under_profiler",
        ),
    ],
)
def test_imports_are_light(tmp_path, program, unused):
    done = python(f"import sys; {program}; print([name for name in {unused.split()} if name in sys.modules])", tmp_path)
    assert done.stdout.splitlines()[-1] == "[]"
