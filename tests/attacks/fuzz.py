"""Records and runs that a stranger or a disk has changed: what reads them ends in a sentence or in a record."""

import json
import os
import tempfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from harness.schema.case import Case
from harness.schema.catalogue import (
    AxisEntry,
    BackendEntry,
    Catalogue,
    FigureEntry,
    MetricEntry,
    SuiteEntry,
    SystemEntry,
)
from harness.schema.policy import Policy
from harness.schema.record import Record, RecordError, RecordFile
from harness.schema.run import Run
from harness.schema.run_file import Job, PastRequest, Planned, RunError, RunFile
from harness.workers.machine_load import is_loaded, load_note
from harness.workers.progress import outcome

CASE = Case("sys", "cpu", "1.3b", "generate", 16, 2048, timing="graph", options=(("form", "dual"), ("steps", 128)))
RECORD = Record(
    CASE,
    "ok",
    samples_ms=[0.5, 0.25],
    throttled=[True, False],
    tokens=16,
    stop="interval",
    peak_memory_bytes=1 << 30,
    gate={"passed": True, "checks": [{"name": "error", "value": 0.001, "limit": 0.01, "passed": True}]},
    metrics={"flops": 10**12, "unknown": None},
    settings={"attention": "fa3"},
    environment={
        "device": "x",
        "gpu": {"name": "x", "before": {"power_w": 1.5}, "after": {"throttle_reasons": ["sw_power_cap"]}},
        "cpu": {"model": "y", "others_share": 0.2, "idle_share": 0.05, "before": {}, "after": {"load_1m": 0.5}},
        "software": {"torch": "2.9"},
        "commit": "abc",
    },
    started_at="2025-01-01T00:00:00+00:00",
    wall_s=2.5,
)
RUN_FILE = RunFile(
    "measure",
    "cpu",
    (Job("sys", "cpu", (Planned(CASE, 6, grows=True),)),),
    Catalogue(
        systems=(SystemEntry("sys", "System", "TTT", 0, "circle"),),
        backends=(BackendEntry("cpu", "CPU", "solid"),),
        metrics=(MetricEntry("us_per_token", "time a token", "us", "lower"),),
        axes=(AxisEntry("context", "context", "{} tokens"),),
        phases=(("generate", "generate"),),
        suites=(SuiteEntry("quick", "How fast?", (FigureEntry("generate", "Time"),), (CASE.key,)),),
    ),
    Policy(),
    3,
    (PastRequest("2025-01-01T00:00:00+00:00", ("run",), "abc", None, {"cpu": {"model": "y"}}),),
)

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


@st.composite
def mutations(draw: Callable[[Any], Any], original: Any) -> Any:
    """The value with one to three of its parts replaced, removed, added, wrapped or repeated."""
    value = deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        value = _mutated(draw, value)
    return value


def _mutated(draw: Callable[[Any], Any], value: Any) -> Any:
    holder, key = None, None
    at = value
    while isinstance(at, dict | list) and at and (holder is None or draw(st.integers(0, 3))):
        holder, key = (
            at,
            draw(st.sampled_from(sorted(at))) if isinstance(at, dict) else draw(st.integers(0, len(at) - 1)),
        )
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


def _examples(count: int, number: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`count` examples, always the same, which no database remembers."""
    chosen = settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: seed(number)(chosen(test))


def fuzz_records(count: int, number: int = 0) -> int:
    """How many changed records were read; what is read must be shown, written and read again as it was."""
    done = 0

    @_examples(count, number)
    @given(mutations(RECORD.to_dict()))
    def check(values: Any) -> None:
        nonlocal done
        done += 1
        try:
            record = Record.from_dict(values)
        except RecordError as error:
            _is_sentence(error)
            return
        text = record.to_json()
        assert Record.from_dict(json.loads(text)).to_json() == text
        assert outcome(record).isprintable()
        if is_loaded(record.environment):
            load_note(record.environment)

    check()
    return done


def fuzz_record_files(count: int, number: int = 0) -> int:
    """How many record files with changed bytes were read, and written to where they could be."""
    done = 0
    whole = (RECORD.to_json() + "\n").encode() * 2
    with tempfile.TemporaryDirectory() as folder:
        file = RecordFile(Path(folder) / "records.jsonl")

        @_examples(count, number)
        @given(st.integers(0, len(whole)), st.integers(0, 40), st.binary(max_size=40))
        def check(start: int, removed: int, added: bytes) -> None:
            nonlocal done
            done += 1
            changed = whole[:start] + added + whole[start + removed :]
            file.path.write_bytes(changed)
            try:
                before = file.read()
            except RecordError as error:
                _is_sentence(error)
                assert file.path.read_bytes() == changed
                return
            fsync, os.fsync = os.fsync, lambda descriptor: None  # thousands of waits for the disk show nothing
            try:
                file.append(RECORD)
            finally:
                os.fsync = fsync
            assert file.read() == [*before, RECORD]

        check()
    return done


def fuzz_runs(count: int, number: int = 0) -> int:
    """How many changed run.json were opened; one that opens must be saved and opened again as it was."""
    done = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "out"
        original = json.loads((Run.create(folder, RUN_FILE).folder / "run.json").read_text())

        @_examples(count, number)
        @given(mutations(original))
        def check(values: Any) -> None:
            nonlocal done
            done += 1
            (folder / "run.json").write_text(json.dumps(values))
            try:
                run = Run.open(folder)
                asdict(run.file.policy)
                [run.record_file(job).path.relative_to(folder) for job in run.jobs]
                run.records()
            except RunError as error:
                _is_sentence(error)
                return
            fsync, os.fsync = os.fsync, lambda descriptor: None
            try:
                run.save()
            finally:
                os.fsync = fsync
            assert Run.open(folder).file == run.file

        check()
        assert sorted(path.name for path in Path(name).iterdir()) == ["out"], "written outside of the folder"
    return done


def _is_sentence(error: Exception) -> None:
    text = str(error)
    assert text
    assert "\n" not in text
    assert len(text) < 4000, f"{len(text)} characters"
    text.encode()
