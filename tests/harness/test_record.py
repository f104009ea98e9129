import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness_helpers import ROOT, case, ok_record

from harness.record import SCHEMA_VERSION, Record, RecordError, RecordFile, read_records


def cases(count: int) -> list:
    return [case(batch=i + 1) for i in range(count)]


@pytest.fixture
def file(tmp_path: Path) -> RecordFile:
    return RecordFile(tmp_path / "new" / "records.jsonl")


def test_round_trip(file: RecordFile) -> None:
    full = Record(
        case(),
        "ok",
        samples_ms=[0.1 + 0.2, 1e-9],
        throttled=[True, False],
        tokens=3,
        stop="interval",
        peak_memory_bytes=1 << 40,
        gate={"passed": True, "checks": []},
        metrics={"flops": 10**15, "ratio": 0.5, "unknown": None},
        settings={"attention": "fa3"},
        environment={"gpu": {"before": {"power_w": 1.5}}},
        started_at="2025-01-01T00:00:00+00:00",
        wall_s=2.5,
    )
    skipped = Record(case(batch=9), "skipped", "needs ü GPU")
    file.append(full)
    file.append(skipped)
    assert file.read() == [full, skipped]
    first = json.loads(file.path.read_text().splitlines()[0])
    assert list(first)[:3] == ["schema", "case", "status"]


def test_appending_leaves_what_is_there(file: RecordFile) -> None:
    file.append(ok_record())
    before = file.path.read_bytes()
    file.append(ok_record(case(batch=7)))
    assert file.path.read_bytes().startswith(before)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_not_finite_becomes_null_except_in_samples() -> None:
    record = Record(
        case(),
        "ok",
        metrics={"a": math.nan, "b": -math.inf, "c": np.float32(math.inf)},
        gate={"checks": [{"name": "error", "value": math.nan, "limit": 0.1}]},
        environment={"cpu": {"load_1m": math.inf}},
    )
    values = json.loads(record.to_json(), parse_constant=refuse_constant)
    assert values["metrics"] == {"a": None, "b": None, "c": None}
    assert values["gate"]["checks"][0]["value"] is None
    assert values["environment"]["cpu"]["load_1m"] is None


def test_numpy_numbers_are_numbers() -> None:
    record = Record(case(), "ok", metrics={"a": np.int64(3), "b": np.float32(0.5)})
    assert json.loads(record.to_json())["metrics"] == {"a": 3, "b": 0.5}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"status": "fine"}, "status 'fine'"),
        ({"status": "oom"}, "without a reason"),
        ({"status": "gate", "reason": "x", "samples_ms": [1.0], "throttled": [False]}, "only 'ok' may be timed"),
        ({"status": "ok", "samples_ms": [math.nan], "throttled": [False]}, "sample nan"),
        ({"status": "ok", "samples_ms": [math.inf], "throttled": [False]}, "sample inf"),
        ({"status": "ok", "samples_ms": [-1.0], "throttled": [False]}, "sample -1.0"),
        ({"status": "ok", "samples_ms": ["1"], "throttled": [False]}, "sample '1'"),
        ({"status": "ok", "samples_ms": [1.0]}, "0 throttle marks for 1 samples"),
        ({"status": "ok", "stop": "bored"}, "stop 'bored'"),
        ({"status": "ok", "metrics": {"a": "many"}}, "metric 'a' is 'many'"),
        ({"status": "ok", "metrics": {"a": 10**400}}, "must be a number below 2^64"),
        ({"status": "ok", "tokens": 1.5}, "tokens is 1.5, must be a whole number, at least 0"),
        ({"status": "ok", "tokens": True}, "tokens is True"),
        ({"status": "ok", "tokens": -1}, "tokens is -1"),
        ({"status": "ok", "tokens": 10**400}, "tokens is 1000"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError) as error:
        Record(case(), **fields)
    assert message in str(error.value)


def test_a_record_spoiled_later_is_not_written(file: RecordFile) -> None:
    record = ok_record()
    record.samples_ms[0] = math.nan
    with pytest.raises(RecordError, match="sample nan"):
        file.append(record)
    assert file.read() == []


def test_every_truncation_loses_only_the_last_record(file: RecordFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)  # hundreds of waits for the disk show nothing
    for each in cases(2):
        file.append(ok_record(each))
    whole = file.path.read_bytes()
    first_ends = whole.index(b"\n") + 1
    for end in [*range(first_ends, len(whole), 5), *range(len(whole) - 4, len(whole))]:
        file.path.write_bytes(whole[:end])
        complete = 2 if end == len(whole) - 1 else 1  # only the newline is missing
        assert len(file.read()) == complete
        file.append(ok_record(case(batch=50)))
        assert [r.case.batch for r in file.read()] == [1, 2, 50] if complete == 2 else [1, 50]


def test_torn_line_ended_by_a_newline_is_cut(file: RecordFile) -> None:
    file.append(ok_record())
    with file.path.open("ab") as raw:
        raw.write(b'{"schema":1,"case":{"sui\n')
    file.append(ok_record(case(batch=3)))
    assert [r.case.batch for r in file.read()] == [2, 3]


def test_long_torn_line_is_cut(file: RecordFile) -> None:
    file.append(ok_record())
    with file.path.open("ab") as raw:
        raw.write(b'{"schema":1,"case":' + b"x" * 200_000)
    file.append(ok_record(case(batch=3)))
    assert [r.case.batch for r in file.read()] == [2, 3]


@pytest.mark.parametrize("content", [b"my notes", b"my notes\n", b"\x00\x01", b'{"a": 1}', b"[]\n", b"\n"])
def test_what_is_not_ours_is_refused_and_left_alone(file: RecordFile, content: bytes) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(content)
    with pytest.raises(RecordError, match=r"records\.jsonl, line 1: "):
        file.read()
    if not content.endswith(b"\n"):
        with pytest.raises(RecordError, match=r"records\.jsonl, last line: "):
            file.append(ok_record())
        assert file.path.read_bytes() == content


def test_garbage_in_the_middle_names_its_line(file: RecordFile) -> None:
    lines = [ok_record(each).to_json() for each in cases(3)]
    file.path.parent.mkdir()
    file.path.write_text("\n".join([lines[0], lines[1][:40], lines[2]]) + "\n")
    with pytest.raises(RecordError, match=r"records\.jsonl, line 2: is not JSON"):
        file.read()


def nested(value: Any, levels: int) -> dict[str, Any]:
    for _ in range(levels):
        value = {"in": value}
    return value


def line_with(**changes: Any) -> str:
    return json.dumps(ok_record().to_dict() | changes)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (line_with(schema=2), f"has schema 2, this program reads schema {SCHEMA_VERSION}"),
        (line_with(colour="red"), "unknown field 'colour'"),
        (line_with(case={"suite": "x"}), "case: field 'backend' is missing"),
        (line_with(status="fine"), "status 'fine'"),
        (line_with(samples_ms=3), "samples_ms is 3, must be a list"),
        (line_with(samples_ms=[10**400] * 3), "sample 1000"),
        (line_with(throttled=None), "throttled is None, must be a list"),
        (line_with(metrics=[1]), "metrics is [1], must be an object"),
        (line_with(settings="x"), "settings is 'x', must be an object"),
        (line_with(environment=[1]), "environment is [1], must be an object"),
        (line_with(environment="x" * 99), f"environment is '{'x' * 58}…, must be an object"),
        (line_with(environment=nested({}, 16)), "environment is nested more than 16 levels deep"),
        (line_with(peak_memory_bytes="x"), "peak_memory_bytes is 'x', must be a whole number or null"),
        (line_with(tokens="abc"), "tokens is 'abc', must be a whole number, at least 0"),
        (line_with(started_at=None), "started_at is None, must be text"),
        (line_with(started_at=5), "started_at is 5, must be text"),
        (line_with(wall_s="1"), "wall_s is '1', must be a number"),
        (line_with(reason=["a"]), "reason is ['a'], must be text"),
        (line_with(gate=5), "gate is 5, must be an object or null"),
        (line_with(gate={}), "gate has the checks None, must be a list"),
        (line_with(gate={"checks": [3]}), "gate has the check 3, must be an object with a name"),
        (line_with(gate={"checks": [{"name": "a", "limit": 1}]}), "must be an object with a name and the numbers"),
        (line_with(gate={"checks": [{"name": "a", "value": "b", "limit": 1}]}), "the numbers value and limit"),
        (line_with(gate={"checks": [], "more": nested([], 16)}), "gate is nested more than 16 levels deep"),
        (line_with(case=case().to_dict() | {"options": [["a"]]}), "case: field 'options' is [['a']], must be"),
        (line_with(case=case().to_dict() | {"options": 5}), "case: field 'options' is 5, must be an object"),
        (line_with(case=case().to_dict() | {"options": [[["a"], 1]]}), "case: field 'options': ['a'] is 1"),
        (line_with(environment={})[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "is nested too deep"),
        ('{"schema": 1, "status": "ok"}', "lacks the field 'case'"),
        ("3", "is not a record"),
    ],
)
def test_a_wrong_line_is_one_clear_sentence(file: RecordFile, line: str, message: str) -> None:
    file.path.parent.mkdir()
    file.path.write_text(ok_record().to_json() + "\n" + line + "\n")
    with pytest.raises(RecordError) as error:
        file.read()
    assert str(error.value).startswith(f"{file.path}, line 2: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_last_line_too_deep_is_not_a_torn_one(file: RecordFile) -> None:
    file.append(ok_record())
    with file.path.open("ab") as raw:
        raw.write(b'{"schema":1,"case":' + b"[" * 100_000)
    before = file.path.read_bytes()
    with pytest.raises(RecordError, match=r"records\.jsonl, line 2: is nested too deep for a record"):
        file.read()
    with pytest.raises(RecordError, match=r"records\.jsonl, last line: is nested too deep for a record"):
        file.append(ok_record())
    assert file.path.read_bytes() == before


def test_what_was_skipped_counts_until_it_is_there_again(file: RecordFile) -> None:
    first, second, third = cases(3)
    skipped = [Record(each, "skipped", reason) for each, reason in ((first, "a"), (second, "a"), (first, "b"))]
    done = [ok_record(third), ok_record(first), ok_record(third)]
    for record in [*skipped[:2], done[0], skipped[2], *done[1:]]:
        file.append(record)
    assert file.read() == [skipped[1], *done]
    assert len(list(file)) == 6


def test_a_second_writer_is_refused(file: RecordFile) -> None:
    other = RecordFile(file.path)
    with file:
        file.append(ok_record())
        with pytest.raises(RecordError, match="another run is writing to it"):
            other.append(ok_record())
        assert len(other.read()) == 1
    other.append(ok_record())
    assert len(other.read()) == 2


def test_a_writer_in_another_process_is_refused(file: RecordFile) -> None:
    code = f"from harness.record import RecordFile\nwith RecordFile({str(file.path)!r}): print('in')"
    with file:
        other = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "another run is writing" in other.stderr
    assert "in" not in other.stdout.split()


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    for path in (tmp_path, tmp_path / "plain" / "records.jsonl", Path("/proc/records.jsonl")):
        with pytest.raises(RecordError) as error:
            RecordFile(path).append(ok_record())
        assert str(error.value).startswith(f"{path}: cannot be written: ")


def test_a_failed_write_is_undone(file: RecordFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.append(ok_record())

    def full(fd: int, data: bytes) -> None:
        import os

        os.write(fd, data[:20])
        raise OSError(28, "No space left on device")

    with file:
        with monkeypatch.context() as patch:
            patch.setattr("harness.record._write_all", full)
            with pytest.raises(RecordError, match="No space left on device"):
                file.append(ok_record(case(batch=4)))
        file.append(ok_record(case(batch=5)))
    assert [r.case.batch for r in file.read()] == [2, 5]


def test_read_records(tmp_path: Path) -> None:
    for i, name in enumerate(["b/two.jsonl", "a.jsonl", "b/one.jsonl"]):
        RecordFile(tmp_path / name).append(ok_record(case(batch=i + 1)))
    (tmp_path / "notes.txt").write_text("not records")
    assert [r.case.batch for r in read_records([tmp_path])] == [2, 3, 1]
    assert [r.case.batch for r in read_records([tmp_path / "a.jsonl", str(tmp_path / "b")])] == [2, 3, 1]
    with pytest.raises(RecordError, match="no such file or folder"):
        read_records([tmp_path / "none"])
    assert RecordFile(tmp_path / "none").read() == []


def test_paths_without_a_record_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "b.jsonl").touch()
    paths = [tmp_path / "empty", tmp_path / "b.jsonl"]
    with pytest.raises(RecordError) as error:
        read_records(paths)
    assert str(error.value) == f"no records in {paths[0]}, {paths[1]}"
    RecordFile(tmp_path / "a.jsonl").append(ok_record())
    assert len(read_records([*paths, tmp_path / "a.jsonl"])) == 1
