"""Fuzz records, record files and run.json: each file is read whole or fails with one sentence."""

import json
import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from harness.schema.record import Record, RecordError, RecordFile
from harness.schema.run import Run
from harness.schema.run_file import PastRequest, RunError
from harness.workers.machine_load import is_loaded, load_note
from harness.workers.progress import outcome
from tests.harness.harness_helpers import case, new_run

H100 = Path(__file__).resolve().parents[2] / "reports" / "results" / "h100"
with (H100 / "records" / "ttt-linear-thunderkittens.jsonl").open() as lines:
    RECORD = Record.from_dict(json.loads(lines.readline()))
TIMES = int(os.environ.get("FUZZ", "1"))

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 1 << 64, 10**400, 1e308, 5e-324, -0.0, float("nan"), float("inf")]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", "\ud800", "\x00", "\x1b[2J", "../x", "a/b", "ok", "measure", "x" * 3000, "<script>"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


def examples(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator: hypothesis runs the same `count` x FUZZ examples each time, without a database."""
    chosen = settings(
        max_examples=count * TIMES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: seed(0)(chosen(test))


@st.composite
def mutations(draw: Callable[[Any], Any], original: Any) -> Any:
    value = deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        value = mutated(draw, value)
    return value


def mutated(draw: Callable[[Any], Any], value: Any) -> Any:
    holder, key = None, None
    at = value
    while isinstance(at, dict | list) and at and (holder is None or draw(st.integers(0, 3))):
        holder = at
        key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        at = holder[key]
    if holder is None:
        return draw(VALUES)
    kind = draw(st.sampled_from(["replace", "replace", "remove", "add", "wrap", "repeat"]))
    if kind == "remove":
        del holder[key]
    elif kind == "add" and isinstance(holder, dict):
        holder[draw(st.text(max_size=6))] = draw(VALUES)
    elif kind == "wrap":
        holder[key] = [at]
    elif kind == "repeat" and isinstance(holder, list):
        holder.append(deepcopy(at))
    else:
        holder[key] = draw(VALUES)
    return value


def assert_sentence(error: Exception) -> None:
    text = str(error)
    assert text
    assert "\n" not in text
    assert len(text) < 4000, f"{len(text)} characters"
    text.encode()


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@examples(200)
@given(mutations(RECORD.to_dict()))
def test_a_mutated_record_reads_back_as_written_or_fails_with_a_sentence(values: Any) -> None:
    try:
        record = Record.from_dict(values)
    except RecordError as error:
        assert_sentence(error)
        return
    text = record.to_json()
    assert Record.from_dict(json.loads(text)).to_json() == text
    assert outcome(record).isprintable()
    if is_loaded(record.environment):
        load_note(record.environment)


def test_a_corrupt_record_file_appends_or_fails_with_a_sentence(tmp_path: Path) -> None:
    whole = (RECORD.to_json() + "\n").encode() * 2
    file = RecordFile(tmp_path / "records.jsonl")

    @examples(200)
    @given(st.integers(0, len(whole)), st.integers(0, 40), st.binary(max_size=40))
    def check(start: int, removed: int, added: bytes) -> None:
        changed = whole[:start] + added + whole[start + removed :]
        file.path.write_bytes(changed)
        try:
            before = file.read()
        except RecordError as error:
            assert_sentence(error)
            assert file.path.read_bytes() == changed
            return
        file.append(RECORD)
        assert file.read() == [*before, RECORD]

    check()


def test_a_mutated_run_file_saves_as_read_or_fails_with_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    request = PastRequest("2025-01-01T00:00:00+00:00", ("run",), "abc", None, {"cpu": {"model": "y"}})
    new_run(folder, [case()], requests=(request,))
    original = json.loads((folder / "run.json").read_text())

    @examples(200)
    @given(mutations(original))
    def check(values: Any) -> None:
        (folder / "run.json").write_text(json.dumps(values))
        try:
            run = Run.open(folder)
            asdict(run.file.policy)
            [run.record_file(job).path.relative_to(folder) for job in run.jobs]
            run.records()
        except RunError as error:
            assert_sentence(error)
            return
        run.save()
        assert Run.open(folder).file == run.file

    check()
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "Run wrote outside its folder"
