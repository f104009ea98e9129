"""A user error is one sentence with exit status 2, whatever the command."""

import os

import pytest
from command_line import ROOT, called, one_sentence, ttt_bench

H100 = ROOT / "reports/results/h100"


@pytest.mark.parametrize("words", [("run", "quick", "--device", "cpu"), ("report", H100), ("site", H100)])
def test_a_name_that_is_too_long_is_one_sentence(tmp_path, words):
    name = "x" * 300
    one_sentence(called(*words, "-o", name, cwd=tmp_path), name, "name too long")


def test_a_terminal_without_an_arrow_shows_a_question_mark(tmp_path):
    runs = [H100, ROOT / "reports/results/h100-second"]
    done = ttt_bench("compare", *runs, cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "commit 853cb8a15d ? 1144bc6198" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "quik"], ["suite 'quik': unknown; did you mean quick?"]),
        (["run", "quick", "ttt-mlp/torch"], ["'ttt-mlp/torch' is a system, not a suite; use --systems ttt-mlp/torch"]),
        (["run", "quick", "--systems", "gpt"], ["gpt", "there are ttt-linear, ttt-mlp, transformer", "SYSTEM/BACKEND"]),
        (["run", "quick", "--batch", "0"], ["--batch 0: must be greater than or equal to 1"]),
        (["run", "quick", "-o", "a", "--out=b", "--dry-run"], ["--out is given twice"]),
        (["run", "quick", "--context", "2048", "--context=8192"], ["--context is given twice; separate its values by"]),
        (["run", "quick", "--context", "many"], ["--context many: must be a valid integer"]),
        (["run", "quick", "--time-limit", "0"], ["--time-limit 0.0: must be greater than 0"]),
        (["run", "quick", "--budget", "inf"], ["--budget inf: must be less than or equal to 86400"]),
        (["run", "quick", "--budget", "700"], ["--budget 700: must end before --time-limit 600"]),
        (["run", "quick", "--phase", "decode"], ["--phase decode: must be 'forward', 'generate' or 'request'"]),
        (
            ["run", "fig20-throughput", "--device", "cuda", "--dry-run", "--systems", "mamba", "--phase", "request"],
            ["run fig20-throughput --systems mamba --phase request --device cuda: no case matches"],
        ),
        (
            ["run", "fig15-forward", "--device", "cpu"],
            ["suite fig15-forward: needs a CUDA GPU, and this run is on the CPU; without a GPU run quick, or plan"],
        ),
        (["run", "quick", "--retry", "failed"], ["--retry: name the run with --out"]),
        (["run", "quick", "--resume"], ["--resume: name the run with --out"]),
        (["run", "quick", "--retry", "failed", "--out", "a"], ["a: holds no run whose cases --retry could repeat"]),
        (["run", "--gpus", "all", "--slurm", "gpus=1"], ["--gpus --slurm: use one of them"]),
        (["run", "--slurm", "nonsense", "--dry-run"], ["--slurm nonsense"]),
        (["table", "none"], ["none: no such folder"]),
        (["table", "none", "--csv", "--json"], ["--csv --json: one format at a time"]),
        (["report", "a", "--inches", "5", "--figures", "b"], ["--inches, --figures: only with --png or --pdf"]),
        (["report", "a", "--png", "b.pdf"], ["--png b.pdf: name a file that ends in .png"]),
        (["generate", "--checkpoint", ".", "--prompt", "a"], [".: holds no config.json"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_sentence(tmp_path, arguments, words):
    one_sentence(called(*arguments, cwd=tmp_path), *words)
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_is_requested_and_missing(tmp_path):
    done = called("run", "quick", "--device", "cuda", cwd=tmp_path)
    if done.returncode == 0:
        pytest.fail("a GPU was found: run this test on a machine without one")
    one_sentence(done, "no CUDA GPU was found")
    done = called("build", "--tune", cwd=tmp_path)
    one_sentence(done, "cannot be tuned", "no CUDA GPU")


@pytest.mark.parametrize("call", [["run", "--resume"], ["profile", "--resume"], ["run"]])
def test_records_without_a_run_json_cannot_be_resumed(tmp_path, call):
    (tmp_path / "out" / "records").mkdir(parents=True)
    (tmp_path / "out" / "records" / "transformer-torch.jsonl").touch()
    done = called(*call, "quick", "--systems", "transformer", "--device", "cpu", "--out", "out", cwd=tmp_path)
    one_sentence(done, "out: holds no run.json, but records; name another folder")
