"""Does the command line do what it says, and is every mistake one sentence with exit status 2?"""

import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import commands
from harness.case import Case
from harness.gate import Check, Verdict
from harness.record import Record
from tk_kernels import build

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = """
    suite system backend size phase batch context status reason latency_ms latency_ms_low latency_ms_high
    us_per_token tokens_per_s peak_memory_gb dtype state_dtype timing l2 device commit
""".split()  # noqa: SIM905
SMALL = ["--systems", "transformer", "--batch", "1", "--context", "32", "--device", "cpu", "--budget", "0.05"]
CASE = Case("ttt-linear", "torch", "tiny", "forward", 2, 64)


def ttt_bench(*arguments, cwd, **options):
    return subprocess.run(
        [sys.executable, "-m", "bench", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
        **options,
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A finished run of two cases, and what it printed."""
    folder = tmp_path_factory.mktemp("run")
    return folder, ttt_bench("run", "quick", *SMALL, "--out", folder / "out", cwd=folder)


def test_a_run_leaves_records_that_the_table_shows(measured):
    folder, done = measured
    assert done.returncode == 0, done.stderr
    assert "2 ok" in done.stdout
    printed = ttt_bench("table", folder / "out", "--csv", cwd=folder)
    rows = list(csv.DictReader(io.StringIO(printed.stdout)))
    assert list(rows[0])[: len(COLUMNS)] == COLUMNS
    assert {row["phase"] for row in rows} == {"forward", "generate"}
    for row in rows:
        assert row["status"] == "ok"
        assert float(row["latency_ms_low"]) <= float(row["latency_ms"]) <= float(row["latency_ms_high"])
        tokens = int(row["batch"]) * (int(row["context"]) if row["phase"] == "forward" else 1)
        assert float(row["us_per_token"]) == pytest.approx(float(row["latency_ms"]) * 1000 / tokens)


def test_the_table_is_json_too(measured):
    folder, _ = measured
    rows = json.loads(ttt_bench("table", folder / "out", "--json", cwd=folder).stdout)
    assert [row["system"] for row in rows] == ["transformer", "transformer"]


def test_the_records_hold_raw_samples_and_the_gate(measured):
    folder, _ = measured
    lines = (folder / "out" / "quick.jsonl").read_text().splitlines()
    for record in map(json.loads, lines):
        assert record["samples_ms"]
        assert record["gate"]["passed"]
        assert {check["name"] for check in record["gate"]["checks"]} >= {"logits_relative_error", "total_variation"}


def test_a_report_is_one_page(measured):
    folder, _ = measured
    done = ttt_bench("report", folder / "out", "-o", folder / "page.html", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "<html" in (folder / "page.html").read_text()[:200]


def test_resuming_a_finished_run_measures_nothing(measured):
    folder, _ = measured
    before = (folder / "out" / "quick.jsonl").read_bytes()
    done = ttt_bench("run", "quick", *SMALL, "--out", folder / "out", "--resume", cwd=folder)
    assert (done.returncode, (folder / "out" / "quick.jsonl").read_bytes()) == (0, before)


def test_without_resume_a_finished_run_is_not_overwritten(measured):
    folder, _ = measured
    before = (folder / "out" / "quick.jsonl").read_bytes()
    done = ttt_bench("run", "quick", *SMALL, "--out", folder / "out", cwd=folder)
    assert_one_sentence(done, "--resume")
    assert (folder / "out" / "quick.jsonl").read_bytes() == before


def test_verify_prints_the_checks(tmp_path):
    done = ttt_bench("verify", "quick", *SMALL[:-2], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "logits_relative_error" in done.stdout
    assert not list(tmp_path.iterdir())


def verified(monkeypatch, capsys, *records):
    """What `verify` prints of these records, and how it exits."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(commands, "plan", lambda request: commands.Plan("cpu", {"quick": [CASE]}, {}, 0))
    monkeypatch.setattr(commands, "run_cases", lambda *_, **__: list(records))
    try:
        commands.verify(commands.Request(None, None, None, None, None, "cpu", None), time_limit_s=1)
    except SystemExit as end:
        return capsys.readouterr().out, end.code
    return capsys.readouterr().out, None


def test_verify_prints_a_distance_that_is_not_finite(monkeypatch, capsys):
    verdict = Verdict([Check.at_most("error", float("nan"), 0.01), Check.at_most("other", 0.5, float("inf"))])
    missed = Record.from_dict(json.loads(Record(CASE, "gate", verdict.reason, gate=verdict.to_dict()).to_json()))
    said, status = verified(monkeypatch, capsys, missed)
    assert "error not finite (limit 0.01), other 0.5 (limit not finite)" in said
    assert status == 1


def test_verify_prints_a_reason_as_it_is(monkeypatch, capsys):
    said, status = verified(monkeypatch, capsys, Record(CASE, "failed", "cannot open [/tmp/x] of [bold]"))
    assert "cannot open [/tmp/x] of [bold]" in said
    assert status == 1


def test_verify_of_some_is_a_success_and_of_none_a_failure(monkeypatch, capsys):
    skipped = Record(CASE, "skipped", "vllm is not installed")
    assert verified(monkeypatch, capsys, skipped, Record(CASE, "ok"))[1] is None
    said, status = verified(monkeypatch, capsys, skipped)
    assert "vllm is not installed" in said
    assert status.startswith("ttt-bench: nothing was verified: every case was skipped")


def test_verify_of_an_unavailable_system_verifies_nothing(tmp_path):
    done = ttt_bench("verify", "quick", "--systems", "transformer/vllm", *SMALL[2:-2], cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1][:34]) == (1, "ttt-bench: nothing was verified: e")


def test_build_prints_names_as_they_are(monkeypatch, capsys):
    resources = [build.KernelResources("run<[/a]>(float [16])", 40, 0, 0, 0, 0)]
    built = type("Built", (), {"name": "forward", "compiled": True, "resources": resources})
    monkeypatch.setattr(build, "find_nvcc", lambda: None)
    monkeypatch.setattr(build, "build_all", lambda: [built])
    monkeypatch.setenv("COLUMNS", "200")
    commands.build_kernels()
    assert "run<[/a]>(float [16])" in capsys.readouterr().out


def test_suites_print_questions_as_they_are(monkeypatch, capsys):
    monkeypatch.setattr(commands, "SUITES", (commands.Suite("new", "Is [/it] so?", ()),))
    commands.list_suites()
    assert "Is [/it] so?" in capsys.readouterr().out


def assert_one_sentence(done, *words):
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("ttt-bench: ")
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "fig16"], ["fig16", "fig15-forward"]),
        (["run", "quick", "--systems", "gpt"], ["gpt", "ttt-linear/torch"]),
        (["run", "quick", "--systems", ","], ["empty"]),
        (["run", "quick", "--sizes", "7b"], ["7b", "1.3b"]),
        (["run", "quick", "--batch", "0"], ["--batch 0: must be at least 1"]),
        (["run", "quick", "--context", "-5"], ["--context -5: must be at least 1"]),
        (["run", "quick", "--context", "many"], ["--context many: not a whole number"]),
        (["run", "quick", "--context", "10000000000000"], ["GB"]),
        (["run", "quick", "--time-limit", "soon"], ["--time-limit", "number"]),
        (["run", "quick", "--time-limit", "0"], ["--time-limit 0"]),
        (["run", "quick", "--budget", "-1"], ["--budget -1"]),
        (["run", "quick", "--device", "tpu"], ["tpu"]),
        (["run", "fig15-forward", "--device", "cpu"], ["fig15-forward", "needs a CUDA GPU"]),
        (["run", "quick", "--systems-file", "none.toml"], ["none.toml", "no such file"]),
        (["run", "quick", "--bogus"], ["--bogus"]),
        (["table", "none.jsonl"], ["none.jsonl"]),
        (["report", "none.jsonl"], ["none.jsonl"]),
        (["table", "."], ["no records in ."]),
        (["report", ".", "-o", "page.html"], ["no records in ."]),
        (["table", "none.jsonl", "--csv", "--json"], ["--csv --json: one format at a time"]),
        (["nothing"], ["nothing"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_sentence(tmp_path, arguments, words):
    assert_one_sentence(ttt_bench(*arguments, cwd=tmp_path), *words)
    assert not list(tmp_path.iterdir())


def test_no_gpu_where_one_is_asked_for(tmp_path):
    done = ttt_bench("run", "quick", "--device", "cuda", cwd=tmp_path)
    if done.returncode == 0:
        pytest.fail("a GPU was found: run this test on a machine without one")
    assert_one_sentence(done, "no CUDA GPU was found")


@pytest.mark.parametrize("command", ["table", "report"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"schema": 99, "case": {}}\n', ["99", "1"]),
        ("garbage\n{}\n", ["line 1"]),
        ("\x00\xff\xfe\n\n", ["line 1"]),
        (json.dumps(Record(CASE, "ok").to_dict() | {"environment": [1]}), ["line 1", "environment is [1]"]),
        ("[" * 100_000, ["line 1", "nested too deep"]),
    ],
    ids=["another schema", "garbage", "bytes", "wrong type", "deep"],
)
def test_a_record_file_that_cannot_be_used(tmp_path, command, content, words):
    (tmp_path / "bad.jsonl").write_bytes(content.encode("latin-1"))
    assert_one_sentence(ttt_bench(command, "bad.jsonl", cwd=tmp_path), "bad.jsonl", *words)


def test_a_folder_with_records_of_another_schema_is_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "quick.jsonl").write_text('{"schema": 99, "case": {}}\n')
    done = ttt_bench("run", "quick", *SMALL, "--out", "out", "--resume", cwd=tmp_path)
    assert_one_sentence(done, "quick.jsonl", "99")
    assert (tmp_path / "out" / "quick.jsonl").read_text() == '{"schema": 99, "case": {}}\n'


def test_an_output_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    done = ttt_bench("run", "quick", *SMALL, "--out", "file/out", cwd=tmp_path)
    assert_one_sentence(done, "file/out")


def test_the_table_of_a_system(measured):
    folder, _ = measured
    everything, same = (
        ttt_bench("table", folder / "out", "--json", *more, cwd=folder).stdout
        for more in ((), ("--systems", "transformer/torch"))
    )
    assert json.loads(same) == json.loads(everything)


@pytest.mark.parametrize("command", ["table", "report"])
def test_a_system_without_records(measured, tmp_path, command):
    done = ttt_bench(command, measured[0] / "out", "--systems", "transformer/vllm", cwd=tmp_path)
    assert_one_sentence(done, "transformer/vllm", "no records")
    assert not list(tmp_path.iterdir())


def test_a_page_that_cannot_be_written(measured, tmp_path):
    (tmp_path / "file").write_text("")
    assert_one_sentence(
        ttt_bench("report", measured[0] / "out", "-o", "file/page.html", cwd=tmp_path), "file/page.html"
    )


def test_a_crash_in_mid_write_loses_only_the_torn_line(measured, tmp_path):
    whole = (measured[0] / "out" / "quick.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "quick.jsonl").write_text(whole[0] + whole[1][:200])
    done = ttt_bench("run", "quick", *SMALL, "--out", "out", "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after = (tmp_path / "out" / "quick.jsonl").read_text().splitlines(keepends=True)
    assert after[0] == whole[0]
    assert json.loads(after[1])["case"] == json.loads(whole[1])["case"]


def test_help_starts_at_once(tmp_path):
    took = []
    for _ in range(3):
        start = time.perf_counter()
        assert ttt_bench("--help", cwd=tmp_path).returncode == 0
        took.append(time.perf_counter() - start)
    assert min(took) < 0.5


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
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
