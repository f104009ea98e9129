import json
import random
from pathlib import Path

import pytest
from harness_helpers import case, ok_record

from harness.schema.record import Record, RecordError, RecordFile


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
        check={"passed": True, "checks": []},
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
    assert RecordFile(file.path.parent / "none").read() == []
    first = json.loads(file.path.read_text().splitlines()[0])
    assert list(first)[:3] == ["schema", "case", "status"]


def test_every_truncation_loses_only_the_last_record(file: RecordFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)  # hundreds of calls would take long
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


def test_no_damage_of_the_file_loses_a_complete_record(file: RecordFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)
    rng, record = random.Random(0), ok_record()
    whole = (record.to_json() + "\n").encode() * 2
    file.path.parent.mkdir()
    for _ in range(300):
        start = rng.randrange(len(whole))
        damaged = whole[:start] + rng.randbytes(rng.randrange(40)) + whole[start + rng.randrange(40) :]
        file.path.write_bytes(damaged)
        try:
            before = file.read()
        except RecordError:
            assert file.path.read_bytes() == damaged
            continue
        file.append(record)
        assert file.read() == [*before, record]


@pytest.mark.parametrize("content", [b"my notes", b"my notes\n", b"\x00\x01", b'{"a": 1}', b"[]\n", b"\n"])
def test_foreign_files_are_refused(file: RecordFile, content: bytes) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(content)
    with pytest.raises(RecordError, match=r"records\.jsonl, line 1: "):
        file.read()


def test_two_records_on_one_line_are_refused_and_stay(file: RecordFile) -> None:
    file.append(ok_record())
    file.path.write_bytes(file.path.read_bytes().strip() * 2)
    before = file.path.read_bytes()
    file.append(ok_record())
    assert file.path.read_bytes().startswith(before + b"\n")
    with pytest.raises(RecordError, match=r"records\.jsonl, line 1: is not JSON"):
        file.read()


def test_garbage_in_the_middle_names_its_line(file: RecordFile) -> None:
    lines = [ok_record(each).to_json() for each in cases(3)]
    file.path.parent.mkdir()
    file.path.write_text("\n".join([lines[0], lines[1][:40], lines[2]]) + "\n")
    with pytest.raises(RecordError, match=r"records\.jsonl, line 2: is not JSON.*delete that line.*--resume"):
        file.read()


def test_unwritable_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    for path in (tmp_path, tmp_path / "plain" / "records.jsonl", Path("/proc/records.jsonl")):
        with pytest.raises(RecordError) as error:
            RecordFile(path).append(ok_record())
        assert str(error.value).startswith(f"{path}: cannot be written: ")
