"""`ttt-bench profile` from the command line, on a CPU."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import called, one_sentence, ttt_bench

from bench.commands.profile import of_few_layers
from harness.profiling.jobs import Profiler
from harness.schema.case import Case
from harness.schema.run import Run

SMALL = ["quick", "--systems", "transformer/torch", "--batch", "1", "--context", "32", "--device", "cpu"]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("profile")
    return folder, ttt_bench("profile", *SMALL, "--out", "run", cwd=folder)


def test_a_new_run_has_a_profile_of_each_case(profiled: Any) -> None:
    folder, done = profiled
    assert done.returncode == 0, done.stderr
    run = Run.open(folder / "run")
    profiles = list(run.profiles().values())
    assert [(each.case.phase, each.status) for each in profiles] == [("forward", "ok"), ("generate", "ok")]
    assert profiles[1].units == 16
    assert ("forward", "layer 0") in [each.path for each in profiles[0].ranges]
    assert any(kernel.name == "aten::mm" for kernel in profiles[0].kernels)
    assert [record.status for record in run.records()] == ["ok", "ok"]
    assert str(folder) not in "".join(path.read_text() for path in (folder / "run" / "profiles").glob("*.json"))


def test_profile_prints_the_profiler_and_each_bottleneck(profiled: Any) -> None:
    _, done = profiled
    assert "torch.profiler" in done.stderr.splitlines()[0]
    assert "a new run, without latencies to compare its profiles with" in done.stderr.splitlines()[1]
    assert done.stdout.count("ms of kernels and idle time; the run has no recorded latency for this case") == 2
    assert "of the time" in done.stdout


def test_resuming_keeps_finished_profiles(profiled: Any) -> None:
    folder, _ = profiled
    before = {path.name: path.read_bytes() for path in (folder / "run" / "profiles").glob("*.json")}
    done = called("profile", *SMALL, "--out", "run", "--resume", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "run: 2 profiles finished earlier\n")
    assert {path.name: path.read_bytes() for path in (folder / "run" / "profiles").glob("*.json")} == before


def test_an_interrupt_prints_the_command_to_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Profiler, "jobs", interrupted)
    done = called("profile", "--resume", "--out", "run", *SMALL, cwd=tmp_path)
    command = f"ttt-bench profile {' '.join(SMALL)} --resume --out run"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (130, f"ttt-bench: interrupted; to continue: {command}")


def test_profiles_join_a_run_that_measured(profiled: Any, tmp_path: Path) -> None:
    folder, _ = profiled
    values = json.loads((folder / "run" / "run.json").read_text())
    (tmp_path / "measured" / "records").mkdir(parents=True)
    (tmp_path / "measured" / "run.json").write_text(json.dumps(values | {"mode": "measure"}))
    other = called("profile", *SMALL[:4], "7", *SMALL[5:], "--out", "measured", cwd=tmp_path)
    assert other.returncode == 2
    assert "has none of the requested cases" in other.stderr
    run = Run.open(tmp_path / "measured")
    for options, count in ((["--phase", "generate"], 1), ([], 2)):
        done = called("profile", *options, "--out", "measured", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert len(run.profiles()) == count
    assert run.records() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--with", "vtune"], "--with vtune: must be one of auto, ncu, nsys, torch"),
        (["--with", "ncu"], "no GPU was found; use --with torch"),
        ([], "resume it (--resume) or name another folder"),
    ],
)
def test_a_mistake_is_one_sentence(profiled: Any, arguments: list[str], words: str) -> None:
    folder, _ = profiled
    done = called("profile", *SMALL, "--out", "run", *arguments, cwd=folder)
    assert words in one_sentence(done)


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, "1.3b/2"),
        ({"size": "tiny"}, "tiny"),
        ({"size": "350m"}, "350m"),  # two layers of 350m would fit into the L2
        ({"size": "7b"}, "7b"),
        ({"options": (("scope", "layer"),)}, "1.3b"),
        ({"options": (("checkpoint", "mine@12"),)}, "1.3b"),
    ],
)
def test_two_layers_stand_in_for_a_model(changes: dict[str, Any], size: str) -> None:
    case = replace(Case("ttt-mlp", "triton-dual", "1.3b", "generate", 512, 2048), **changes)
    assert of_few_layers(case) == replace(case, size=size)
