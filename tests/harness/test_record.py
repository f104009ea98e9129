import json
import math
from typing import Any

import numpy as np
import pytest
from harness_helpers import case

from harness.schema.record import Record, RecordError


def test_numbers_are_numbers_of_json() -> None:
    record = Record(
        case(),
        "ok",
        metrics={"a": math.nan, "b": np.float32(-math.inf), "c": np.int64(3), "d": np.float32(0.5)},
        check={"passed": True, "checks": [{"name": "error", "value": math.nan, "limit": 0.1}]},
        environment={"cpu": {"load_1m": math.inf}},
    )
    values = json.loads(record.to_json(), parse_constant=pytest.fail)
    assert values["metrics"] == {"a": None, "b": None, "c": 3, "d": 0.5}
    assert isinstance(values["metrics"]["c"], int)
    assert values["check"]["checks"][0]["value"] is None
    assert values["environment"]["cpu"]["load_1m"] is None


def test_escaped_control_characters_are_made_printable() -> None:
    line = Record(case(), "failed", "REASON").to_json().replace("REASON", "\\u001b[2J gone")
    assert "\x1b" not in Record.from_json(line.encode()).reason


SAMPLE = {"samples_ms": [1.0], "throttled": [False]}


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"status": "fine"}, "status"),
        ({"status": "oom"}, "without a reason"),
        ({"status": "incorrect", "reason": "x", **SAMPLE}, "only 'ok' may be timed"),
        ({"samples_ms": [math.inf]}, "samples_ms.0"),
        ({"samples_ms": [1.0, -1.0]}, "samples_ms.1"),
        ({"samples_ms": [1.0]}, "0 throttle flags for 1 samples"),
        ({"stop": "bored"}, "stop"),
        ({"metrics": {"a": "many"}}, "metrics.a"),
        ({"check": {"passed": False, "checks": []}}, "failed check"),
        ({"check": {"passed": "no", "checks": []}}, "failed check"),
        ({"wall_s": math.nan}, "wall_s"),
        ({"colour": "red"}, "colour"),
        ({"case": {}}, "case.system"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], where: str) -> None:
    line = json.dumps({"case": case().to_dict(), "status": "ok"} | fields)
    with pytest.raises(RecordError) as error:
        Record.from_json(line)
    assert where in str(error.value).split(", not")[0]


def test_a_newer_schema_asks_for_an_update_and_an_older_one_does_not() -> None:
    values = {"case": case().to_dict(), "status": "ok"}
    with pytest.raises(RecordError, match=r"^schema: .*, not 5; update ttt-bench"):
        Record.from_json(json.dumps({"schema": 5, "news": 1} | values))
    with pytest.raises(RecordError) as error:
        Record.from_json(json.dumps({"schema": 1} | values))
    assert "update" not in str(error.value)


def test_older_schemas_are_read_under_todays_names() -> None:
    second = {"schema": 2, "case": case().to_dict(), "status": "gate", "reason": "error is 2, limit 1"}
    assert Record.from_json(json.dumps(second)) == Record(case(), "incorrect", "error is 2, limit 1")
    outcome = {"passed": True, "checks": []}
    third = {"schema": 3, "case": case().to_dict(), "status": "ok", "gate": outcome}
    older = Record.from_json(json.dumps(third | {"settings": {"gated": "all", "gate_limits": "2", "dtype": "x"}}))
    assert older == Record(case(), "ok", check=outcome, settings={"checked": "all", "check_limits": "2", "dtype": "x"})
    fourth = json.loads(older.to_json()) | {"metrics": {"floor_ms": 2.0, "flops": 3}}
    assert Record.from_json(json.dumps(fourth)).metrics == {"lower_bound_ms": 2.0, "flops": 3}
    assert json.loads(older.to_json())["schema"] == 4


def test_control_characters_are_removed() -> None:
    bad = "a\x1b[2J\rb\0\ud800"
    record = Record(
        case(),
        "failed",
        bad,
        settings={bad: bad},
        metrics={bad: 1.0},
        environment={bad: [bad, {bad: bad}]},
        check={"passed": False, "checks": [{"name": bad, "value": 1, "limit": 0}]},
        started_at=bad,
    )
    text = json.dumps(json.loads(record.to_json()), ensure_ascii=False)
    assert text.isprintable()
    text.encode()
    assert record.reason == "a [2J b ?"
