"""Records of schema 1 become a run: keys without suite and defaults, timings that say what happened."""

import json

import pytest

from bench.catalogue.suites import find_suite
from bench.import_records import imported
from harness.schema.record import RecordError
from harness.schema.run import Run


def line(**changes):
    """A record as schema 1 had it; changes by the names of its fields, those of its case in `case`."""
    case = {
        "suite": "quick",
        "system": "transformer",
        "backend": "torch",
        "size": "tiny",
        "phase": "forward",
        "batch": 2,
        "context": 64,
        "dtype": "float32",
        "state_dtype": "float32",
        "timing": "eager",
        "l2": "warm",
        "options": {"scope": "model", "steps": 128},
    } | changes.pop("case", {})
    record = {
        "schema": 1,
        "case": case,
        "status": "ok",
        "reason": "",
        "samples_ms": [1.0, 2.0],
        "throttled": [False, False],
        "stop": "count",
        "settings": {"mode": "measure", "launch": "eager", "attention": "x"},
        "metrics": {"parameters": 7},
        "started_at": "2026-01-02T03:04:05+00:00",
        "wall_s": 1.0,
    }
    return record | changes


def folder(tmp_path, *lines, name="quick.jsonl"):
    old = tmp_path / "old"
    old.mkdir(exist_ok=True)
    (old / name).write_text("".join(json.dumps(each) + "\n" for each in lines))
    return old


def run_of(tmp_path, *lines):
    imported([folder(tmp_path, *lines)], tmp_path / "new")
    return Run.open(tmp_path / "new")


def test_an_old_record_is_the_case_that_is_measured_today(tmp_path):
    run = run_of(tmp_path, line())
    (record,) = run.records()
    assert record.samples_ms == [1.0, 2.0]
    assert record.case.options == ()
    assert "suite" not in record.case.to_dict()
    assert record.settings == {"attention": "x"}
    (suite,) = run.catalogue.suites
    assert (suite.name, suite.cases) == ("quick", (record.case.key,))
    assert suite.figures == find_suite("quick").figures
    assert [job.name for job in run.jobs] == ["transformer-torch"]
    assert run.file.device == "cuda"  # as nothing says


def test_a_run_is_of_the_device_that_its_records_say(tmp_path):
    odd = line(environment={"device_kind": ["cpu"]}, case={"batch": 1})
    assert run_of(tmp_path, odd, line(environment={"device_kind": "cpu"})).file.device == "cpu"


def test_the_timing_says_what_happened(tmp_path):
    engine = line(stop="engine", case={"backend": "vllm", "timing": "eager"})
    replayed = line(
        settings={"launch": "the prefill is replayed from a CUDA graph"}, case={"backend": "sdpa-flash", "batch": 4}
    )
    records = {record.case.backend: record for record in run_of(tmp_path, engine, replayed).records()}
    assert (records["vllm"].case.timing, records["vllm"].stop) == ("engine", "")
    assert (records["sdpa-flash"].case.timing, records["sdpa-flash"].settings) == ("graph", {})


def test_a_case_of_an_engine_is_timed_by_it_whatever_became_of_it(tmp_path):
    lost = {"samples_ms": [], "throttled": [], "stop": "", "started_at": "2026-03-02T03:04:05+00:00"}
    measured = line(stop="engine", case={"backend": "vllm", "timing": "graph"})
    skipped = line(
        status="skipped", reason="no room", case={"backend": "vllm", "timing": "graph", "suite": "fig"}, **lost
    )
    [record] = run_of(tmp_path, measured, skipped).records()
    assert (record.case.timing, record.status) == ("engine", "ok")  # though it was skipped later, in another suite


def test_a_line_that_was_being_written_when_its_process_ended_is_left_out(tmp_path):
    old = folder(tmp_path, line())
    with (old / "quick.jsonl").open("a") as file:
        file.write('{"schema": 1, "case": {"sui')
    assert len(imported([old], tmp_path / "new").records()) == 1


def test_of_a_case_that_two_suites_measured_the_later_record_stands_in_both(tmp_path):
    later = line(case={"suite": "mine"}, started_at="2026-02-02T03:04:05+00:00", samples_ms=[5.0, 5.0])
    run = run_of(tmp_path, later, line())
    (record,) = run.records()
    assert record.samples_ms == [5.0, 5.0]
    assert [each.name for each in run.catalogue.suites if record.case.key in each.cases] == ["mine", "quick"]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"schema": 2}, "line 2: is no record of schema 1"),
        ([1], "line 2: is no record of schema 1"),
        (line(case={"phase": "sideways"}), "line 2: case: field 'phase' is 'sideways'"),
        (line(bogus=1), "line 2: .*bogus"),
        (line(settings={"mode": "verify"}, samples_ms=[], throttled=[]), "line 2: is of mode 'verify'"),
        (line(samples_ms=[-1.0, 1.0]), "line 2: "),
        ({**line(), "case": "x"}, "line 2: its case or its settings are no object"),
        ({**line(), "settings": "x"}, "line 2: its case or its settings are no object"),
        ({**line(), "case": {**line()["case"], "options": "x"}}, "line 2: the options of its case are no object"),
    ],
    ids=["schema", "list", "case", "field", "mode", "samples", "case text", "settings text", "options text"],
)
def test_a_bad_line_is_one_sentence_and_nothing_is_written(tmp_path, bad, words):
    old = folder(tmp_path, line(), bad)
    with pytest.raises(RecordError, match=words):
        imported([old], tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([line(case={"system": "a b"})], "'a b"),
        ([line(case={"system": "a-b", "backend": "c"}), line(case={"system": "a", "backend": "b-c"})], "called a-b-c"),
        ([line(repeat=1)], "repeat 1 of a run of 1"),
        ([line(samples_ms=[], throttled=[])], "status 'ok' without samples"),
        (
            [
                line(environment={"device_kind": kind}, case={"batch": batch})
                for batch, kind in ((1, "cpu"), (2, "cuda"))
            ],
            "records of a CPU and of a GPU are two runs",
        ),
    ],
    ids=["name", "one name", "repeat", "no samples", "two devices"],
)
def test_records_that_no_run_can_hold_are_one_sentence_and_nothing_is_written(tmp_path, bad, words):
    with pytest.raises(RecordError, match=words):
        imported([folder(tmp_path, *bad)], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_file_that_is_not_there_and_a_folder_without_records(tmp_path):
    with pytest.raises(RecordError, match="no such file or folder"):
        imported([tmp_path / "none"], tmp_path / "new")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordError, match="no records in"):
        imported([tmp_path / "empty"], tmp_path / "new")


def test_a_run_is_not_imported_into(tmp_path):
    run_of(tmp_path, line())
    with pytest.raises(RecordError, match="holds a run already"):
        imported([tmp_path / "old"], tmp_path / "new")
    with pytest.raises(RecordError, match="new: is a run already; import makes one of records"):
        imported([tmp_path / "new"], tmp_path / "newer")
