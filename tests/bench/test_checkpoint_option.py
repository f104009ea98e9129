"""`--checkpoint FOLDER` runs the folder's weights; cases store its name and a hash of its content, never its path."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.cases import suite_cases
from bench.catalogue.suites import find_suite
from bench.commands import measure
from bench.errors import UserError
from bench.memory import skip_reason
from bench.models.case_model import VARIABLE, checkpoint_folder, config_of, read_checkpoint, register_checkpoint
from bench.models.checkpoint import save
from bench.models.config import CheckpointError, model_config
from bench.models.factory import from_seed
from bench.plan import plan
from bench.request import RunRequest
from bench.run_folder import request_of
from bench.systems.ttt.model import TTTLanguageModel, TTTTorch
from harness.measure.measured_case import CaseRun
from harness.schema.case import Case
from harness.schema.policy import Policy
from harness.schema.run import Run
from harness.schema.run_file import Planned

pytestmark = pytest.mark.usefixtures("one_thread")
RATE, THETA = 0.25, 50.0  # base_lr and RoPE's theta; no model of SIZES has these values


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after each test the checkpoints that the test passed to workers."""
    monkeypatch.setenv(VARIABLE, "{}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    base = model_config("ttt-mlp", "tiny", backbone="transformer", mini_batch=8)
    config = replace(base, base_lr=RATE, rope_theta=THETA, width=64, heads=1)
    folder = tmp_path / "my secret" / "my-model"
    folder.mkdir(parents=True)
    save(from_seed(config, 7, "cpu", torch.float32), folder)
    return folder


def case_of(folder: Path, phase: str = "forward", **changes: object) -> Case:
    checkpoint = read_checkpoint(folder)
    options = {name: value for name, (value,) in checkpoint.options.items()}
    return Case("ttt-mlp", "torch", checkpoint.size, phase, 2, 20, "float32", options=tuple(options.items()), **changes)  # type: ignore[arg-type]


def test_a_case_names_a_checkpoint_by_folder_name_and_content(folder: Path, tmp_path: Path) -> None:
    found = read_checkpoint(folder)
    name, _, digest = found.name.partition("@")
    assert (name, len(digest), found.system, found.size) == ("my-model", 16, "ttt-mlp", "2x64")
    moved = tmp_path / "elsewhere" / "my-model"
    shutil.copytree(folder, moved)
    assert read_checkpoint(moved).name == found.name
    content = bytearray((moved / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (moved / "model.safetensors").write_bytes(content)
    assert read_checkpoint(moved).name != found.name
    (folder / "config.json").write_text((folder / "config.json").read_text().replace(str(RATE), "0.5"))
    assert read_checkpoint(folder).name != found.name


def test_a_checkpoint_runs_only_on_its_system_with_its_options(folder: Path) -> None:
    checkpoint = register_checkpoint(folder)
    planned = suite_cases(find_suite("quick"), RunRequest(batch="2"), "cpu", checkpoint)
    assert {each.case.system_backend for each in planned} == {"ttt-mlp/torch"}
    assert {each.case.size for each in planned} == {"2x64"}
    own = (("backbone", "transformer"), ("checkpoint", checkpoint.name), ("mini_batch", 8))
    assert {each.case.options for each in planned} == {own}
    assert config_of(planned[0].case) == checkpoint.config
    assert suite_cases(find_suite("kernel-forward"), RunRequest(), "cuda", checkpoint) == []


def test_another_system_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="describes ttt-mlp, which transformer/torch of --systems does not run"):
        plan(RunRequest(suites=("quick",), systems="transformer", checkpoint=folder, device="cpu"))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_git_lfs_pointer_is_found_before_any_case(folder: Path, name: str) -> None:
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(UserError, match=rf"^{folder / name}: .*Is a Git LFS pointer; run `git lfs pull`"):
        plan(RunRequest(suites=("quick",), checkpoint=folder, device="cpu"))


def test_a_case_with_an_unregistered_checkpoint_is_skipped(folder: Path) -> None:
    case = case_of(folder)
    with pytest.raises(CheckpointError, match="name its folder with --checkpoint DIR"):
        checkpoint_folder(case)
    for memory_bytes in (None, int(80e9)):
        assert "name its folder with --checkpoint DIR" in skip_reason(Planned(case), [], memory_bytes)
    register_checkpoint(folder)
    assert skip_reason(Planned(case), [], None) == ""


@pytest.mark.parametrize("phase", ["forward", "generate"])
def test_verify_runs_the_checkpoint_and_compares_generated_tokens(folder: Path, phase: str) -> None:
    register_checkpoint(folder)
    adapter = TTTTorch()
    record = CaseRun(case_of(folder, phase), Policy(), "verify").record(adapter)
    assert record.status == "ok", record.reason
    names = {check["name"] for check in record.check["checks"]}
    assert names >= {"timed_logits_relative_error", "generated_logits_relative_error", "generated_choice_below_best"}
    assert "parameters_off_transformer" not in names
    model = adapter._model(case_of(folder, phase))
    assert torch.equal(
        model.weights()["model.norm.weight"], from_seed(model.config, 7, "cpu").weights()["model.norm.weight"]
    )
    assert model.config.base_lr == RATE


def test_generated_tokens_have_the_limits_of_the_coarser_state(folder: Path) -> None:
    register_checkpoint(folder)
    case = replace(case_of(folder), dtype="float32", state_dtype="bfloat16")
    checks = {check.name: check.limit for check in TTTLanguageModel().build(case).check().checks}
    assert checks["generated_logits_relative_error"] == checks["logits_relative_error"] == 0.05


def test_an_error_late_in_the_generated_tokens_is_found(folder: Path) -> None:
    register_checkpoint(folder)
    adapter, case = TTTTorch(), case_of(folder)
    model = adapter._model(case)
    step, layers, calls = model.operator.generate_step, 2, [0]

    def late(*arguments: Any) -> torch.Tensor:
        calls[0] += 1
        out = step(*arguments)
        return out * torch.linspace(0.9, 1.1, 64) if calls[0] > 60 * layers else out

    assert all(check.passed for check in adapter._compare(model, case).checks)
    model.operator.generate_step = late
    missed = {check.name for check in adapter._compare(model, case).checks if not check.passed}
    assert missed >= {"generated_logits_relative_error", "generated_total_variation"}
    assert "logits_relative_error" not in missed


def test_a_run_stores_the_checkpoints_name_and_never_its_path(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "secret" / "out"
    request = RunRequest(
        suites=("quick",), batch="1", context="16", device="cpu", budget_s=0.05, checkpoint=folder, out=out
    )
    measure.run(request, out)
    run = Run.open(out)
    assert {record.status for record in run.records()} == {"ok"}
    expected = "run quick --batch 1 --context 16 --checkpoint my-model --device cpu --budget 0.05 --out out"
    assert run.file.requests[0].arguments == tuple(expected.split())
    assert run.file.requests[0].request["checkpoint"] == "my-model"
    texts = [path.read_text() for path in out.rglob("*") if path.is_file()]
    assert texts
    assert not any("secret" in text for text in texts)
    found = read_checkpoint(folder)
    assert json.loads(os.environ[VARIABLE]) == {found.name: str(folder)}


def test_a_stored_request_has_no_path_and_no_account() -> None:
    request = RunRequest(
        suites=("quick",), device="cpu", slurm="account=secret,nodelist=n7,tasks=1", out=Path("/home/alice/x")
    )
    expected = "run quick --device cpu --slurm account=...,nodelist=...,tasks=1 --out x"
    assert request_of(plan(request)).arguments == tuple(expected.split())


def test_a_broken_file_is_named_without_its_path(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\0" * 64)
    register_checkpoint(folder)
    record = CaseRun(case_of(folder), Policy(), "verify").record(TTTTorch())
    assert record.status == "failed"
    assert "my-model: model.safetensors: not a complete" in record.reason
    assert "secret" not in record.reason
