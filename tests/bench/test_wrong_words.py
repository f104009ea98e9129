"""A user error is one sentence with exit status 2, whatever the command."""

import os
import re

import pytest
from command_line import ROOT, SMALL, assert_one_sentence, called, one_sentence, ttt_bench


@pytest.mark.parametrize(
    "command", [["run", "quick", "--device", "cpu", "--out"], ["site", ROOT / "reports/results/h100", "--output"]]
)
def test_a_name_that_is_too_long_is_one_sentence(tmp_path, command):
    name = "x" * 300
    assert_one_sentence(called(*command, name, cwd=tmp_path), name, "name too long")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["compare", "a"], "Missing argument 'B'; usage: ttt-bench compare [OPTIONS] {A} {B}"),
        (["report", "a", "b"], "unexpected extra argument(s) (b); usage: ttt-bench report [OPTIONS] {RUN}"),
        (["run", "--bogus"], "No such option: --bogus"),
    ],
)
def test_a_missing_or_extra_argument_shows_the_usage(tmp_path, command, said):
    assert said in one_sentence(called(*command, cwd=tmp_path))


def test_a_terminal_without_an_arrow_shows_a_question_mark(tmp_path):
    runs = [ROOT / "reports/results" / name for name in ("h100", "h100-second")]
    done = ttt_bench("compare", *runs, cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "commit 853cb8a15d ? 1144bc6198" in done.stdout


def test_one_is_no_plural(tmp_path):
    one = ("run", "quick", *SMALL, "--dry-run", "--out", "out")
    done = called(*one, cwd=tmp_path)
    assert re.match(r"2 cases in 1 job: .*(?<!jobs)$", done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "latency"], ["suite 'latency': unknown; there are quick, fig15-forward, ", "fig15, paper, all"]),
        (["run", "quik"], ["suite 'quik': unknown; did you mean quick?"]),
        (["run", "quick", "--systems", "ttt-liner"], ["--systems ttt-liner: unknown; did you mean ttt-linear?"]),
        (["generate", "--checkpoint", ".", "--prompt", "a"], ["--checkpoint .: holds no config.json"]),
        (["run", "quick", "--systems", "gpt"], ["gpt", "there are ttt-linear, ttt-mlp, transformer", "SYSTEM/BACKEND"]),
        (["run", "quick", "--systems", "ttt-mlp mamba"], ["--systems 'ttt-mlp mamba': separate names by commas"]),
        (["run", "quick,paper"], ["suite 'quick,paper': separate suites by spaces"]),
        (["run", "quick", "ttt-mlp/torch"], ["'ttt-mlp/torch' is a system, not a suite; use --systems ttt-mlp/torch"]),
        (["run", "quick", "--systems", ","], ["--systems ',': is an empty list"]),
        (["run", "quick", "--systems", ""], ["--systems '': is an empty list"]),
        (["run", "quick", "--out", ""], ["--out '': is empty"]),
        (["site", "none", "-o", ""], ["-o '': is empty"]),
        (
            ["report", ".", "--png", "x.svg"],
            ["x.svg: a picture is a PNG or a PDF; name a file that ends in .png or .pdf"],
        ),
        (["run", "quick", "--batch", "0"], ["--batch 0: must be greater than or equal to 1"]),
        (["run", "quick", "--budget", "inf"], ["--budget inf: must be less than or equal to 86400"]),
        (["run", "quick", "--out", "/dev/null"], ["/dev/null: is not a folder"]),
        (["run", "quick", "--context", "2048", "--context=8192"], ["--context is given twice", "commas"]),
        (["run", "quick", "--gpus", "0", "--gpus", "1", "--dry-run"], ["--gpus is given twice"]),
        (["run", "quick", "-o", "a", "--out=b", "--dry-run"], ["--out is given twice"]),
        (["run", "quick", "--phase", "decode"], ["--phase decode: must be 'forward', 'generate' or 'request'"]),
        (
            ["run", "fig20-throughput", "--device", "cuda", "--dry-run", "--systems", "mamba", "--phase", "request"],
            ["suite fig20-throughput: no case matches --systems mamba --phase request"],
        ),
        (["run", "quick", "--context", "many"], ["--context many: must be a valid integer"]),
        (["run", "quick", "--context", "10000000000000"], ["GB"]),
        (["run", "quick", "--batch", "9223372036854775808"], ["must be less than or equal to 9223372036854775807"]),
        (["run", "quick", "--time-limit", "0"], ["--time-limit"]),
        (["run", "quick", "--budget", "-1"], ["--budget"]),
        (["run", "quick", "--device", "tpu"], ["--device tpu: must be 'auto', 'cpu' or 'cuda'"]),
        (["run", "fig15-forward", "--device", "cpu"], ["suite fig15-forward: needs a CUDA GPU"]),
        (
            ["run", "fig15-forward", "--device", "cpu", "--dry-run"],
            ["or plan with `ttt-bench run fig15-forward --device cuda --dry-run`"],
        ),
        (["run", "generate-fidelity", "--device", "cpu"], ["needs a CUDA GPU", "without a GPU run quick"]),
        (["run", "quick", "--retry", "failed"], ["--resume: name the run by --out"]),
        (["run", "quick", "--retry", "all"], ["--retry all: must be 'lost', 'failed' or 'flagged'"]),
        (["run", "quick", "--bogus"], ["--bogus"]),
        (["table", "none"], ["none: no such folder"]),
        (["compare", "none", "other"], ["none: no such folder"]),
        (["run", "--gpus", "all", "--slurm", "gpus=1"], ["--gpus --slurm: use one of them"]),
        (["run", "--slurm", "gpus=1,array=7"], ["--slurm array=7: is set by the run itself"]),
        (["table", "."], ["is not a run"]),
        (["table", "none", "--csv", "--json"], ["--csv --json: one format at a time"]),
        (["build", "gru"], ["build LEARNER: needs --tune"]),
        (["build", "--tune", "gru"], ["LEARNER gru: unknown; there are linear, mlp"]),
        (["nothing"], ["nothing"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_sentence(tmp_path, arguments, words):
    assert_one_sentence(called(*arguments, cwd=tmp_path), *words)
    assert not list(tmp_path.iterdir())


def test_no_gpu_where_one_is_asked_for(tmp_path):
    done = called("run", "quick", "--device", "cuda", cwd=tmp_path)
    if done.returncode == 0:
        pytest.fail("a GPU was found: run this test on a machine without one")
    assert_one_sentence(done, "no CUDA GPU was found")
    done = called("build", "--tune", "linear", cwd=tmp_path)
    assert_one_sentence(done, "cannot be tuned", "no CUDA GPU")


@pytest.mark.parametrize("command", [["table", "run"], ["report", "run"], ["compare", "run", "other"]])
def test_a_run_that_cannot_be_used(tmp_path, command):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("garbage\n{}\n")
    assert_one_sentence(called(*command, cwd=tmp_path), "run.json", "not JSON")


@pytest.mark.parametrize("call", [["run", "--resume"], ["profile", "--resume"], ["run"]])
def test_records_without_a_run_json_cannot_be_resumed(tmp_path, call):
    (tmp_path / "out" / "records").mkdir(parents=True)
    (tmp_path / "out" / "records" / "transformer-torch.jsonl").touch()
    done = called(*call, "quick", "--systems", "transformer", "--device", "cpu", "--out", "out", cwd=tmp_path)
    assert_one_sentence(done, "out: has records but no run.json; restore run.json or name another folder")


def test_an_output_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    done = called("run", "quick", *SMALL, "--out", "file/out", cwd=tmp_path)
    assert_one_sentence(done, "file/out")
