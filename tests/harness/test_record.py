import json
import math
from typing import Any

import numpy as np
import pytest
from harness_helpers import case

from harness.schema.record import REASON_LIMIT, Record, RecordError


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_not_finite_becomes_null_except_in_samples() -> None:
    record = Record(
        case(),
        "ok",
        metrics={"a": math.nan, "b": -math.inf, "c": np.float32(math.inf)},
        gate={"passed": True, "checks": [{"name": "error", "value": math.nan, "limit": 0.1}]},
        environment={"cpu": {"load_1m": math.inf}},
    )
    values = json.loads(record.to_json(), parse_constant=refuse_constant)
    assert values["metrics"] == {"a": None, "b": None, "c": None}
    assert values["gate"]["checks"][0]["value"] is None
    assert values["environment"]["cpu"]["load_1m"] is None


def test_a_line_is_read_as_it_was_written() -> None:
    """A clock may count nothing; whole numbers stay whole."""
    record = Record(case(), "ok", samples_ms=[0.0], throttled=[True], metrics={"registers": 168, "share": 0.5})
    line = record.to_json().encode()
    assert Record.from_json(line) == record
    assert b'"registers":168,' in line


def test_what_a_line_writes_as_an_escape_is_made_printable_too() -> None:
    line = json.dumps(Record(case(), "failed", "REASON").to_dict()).replace("REASON", "\\u001b[2J gone")
    assert "\x1b" not in Record.from_json(line.encode()).reason


def test_only_true_is_a_passed_gate_and_lists_are_levels_too() -> None:
    with pytest.raises(RecordError, match="gate that was not passed"):
        Record(case(), "ok", gate={"passed": "no", "checks": []})
    nested: Any = []
    for _ in range(16):
        nested = [nested]
    with pytest.raises(RecordError, match="environment is nested more than 16 levels deep"):
        Record(case(), "ok", environment={"other": nested})


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
        ({"status": "ok", "gate": {"passed": False, "checks": []}}, "status 'ok' with a gate that was not passed"),
        ({"status": "ok", "gate": {"checks": []}}, "status 'ok' with a gate that was not passed"),
        ({"status": "ok", "samples_ms": [1.0], "throttled": ["no"]}, "throttle mark 'no', must be true or false"),
        ({"status": "ok", "environment": {"gpu": "H100"}}, "environment has the gpu 'H100', must be an object"),
        ({"status": "ok", "environment": {"cpu": {"after": 3}}}, "environment has the cpu with the 'after' 3"),
        ({"status": "ok", "wall_s": -1.0}, "wall_s is -1.0, must be a number, at least 0"),
        ({"status": "ok", "wall_s": math.nan}, "wall_s is nan"),
        ({"status": "ok", "repeat": -1}, "repeat is -1"),
        ({"status": "ok", "calls": 0}, "calls is 0, must be a whole number, at least 1"),
        ({"status": "ok", "stop": "engine"}, "stop 'engine', must be one of interval, budget, count or empty"),
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


@pytest.mark.parametrize("letter", ["x", "ü", "😀"])
def test_a_reason_is_at_most_two_kilobytes(letter: str) -> None:
    reason = Record(case(), "failed", letter * 10_000).reason
    assert REASON_LIMIT - 4 < len(reason.encode()) <= REASON_LIMIT
    assert set(reason) == {letter}


def test_texts_that_a_terminal_would_obey_are_cleaned() -> None:
    bad = "a\x1b[2J\rb\0\ud800"
    record = Record(
        case(),
        "failed",
        bad,
        settings={bad: bad},
        metrics={bad: 1.0},
        environment={bad: [bad, {bad: bad}]},
        gate={"passed": False, "checks": [{"name": bad, "value": 1, "limit": 0}]},
        started_at=bad,
    )
    text = json.dumps(record.to_dict(), ensure_ascii=False)
    assert text.isprintable()
    text.encode()
    assert record.reason == "a [2J b ?"
