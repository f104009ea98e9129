import io
from typing import Any

import pytest
from harness_helpers import case, ok_record

from harness.schema.record import Record
from harness.schema.run_file import Planned
from harness.workers.progress import Progress, outcome
from harness.workers.scheduler import Event


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


EVENTS = [
    Event("plan", total=2, kept=3),
    Event("start", Planned(case())),
    Event("record", Planned(case()), ok_record(case(batch=7), (12.0, 12.5, 13.0))),
    Event("start", Planned(case("oom"))),
    Event("record", Planned(case("oom")), Record(case("oom"), "oom", "CUDA out of [memory] at a.cu:100: x")),
]


def shown(stream: Any) -> str:
    with Progress("quick", stream) as progress:
        for event in EVENTS:
            progress(event)
    return stream.getvalue()


def test_plain_lines() -> None:
    lines = shown(io.StringIO()).splitlines()
    assert lines == [
        "quick: 2 cases to run, 3 finished earlier",
        f"[1/2] ok      {case(batch=7).label}: 12.5 ms, median of 3 samples",
        f"[2/2] oom     {case('oom').label}: CUDA out of [memory] at a.cu:100: x",
    ]


def test_a_terminal_gets_a_bar_and_the_same_outcomes() -> None:
    text = shown(Terminal())
    for event in EVENTS:
        if event.record is not None:
            assert outcome(event.record) in text
    assert "2/2" in text
    assert "CUDA out of [memory]" in text


def test_outcome_notes_a_contended_machine() -> None:
    loaded = ok_record(environment={"cpu": {"others_share": 0.5, "idle_share": 0.02}})
    assert outcome(loaded).endswith(", contended: other programs used 50% of the CPU")
    quiet = ok_record(environment={"cpu": {"others_share": 0.5, "idle_share": 0.4}})
    assert "contended" not in outcome(quiet)
    late = Record(case(), "incorrect", "error is 5, limit 2.5", environment=loaded.environment)
    assert outcome(late).endswith("limit 2.5, contended: other programs used 50% of the CPU")


@pytest.mark.parametrize(
    ("reasons", "note"),
    [
        ([], ""),
        (["sw_power_cap"], ", power-capped"),
        (["sw_power_cap", "hw_thermal_slowdown"], ", thermally throttled, at 88 °C"),
    ],
)
def test_outcome_names_the_cause_of_lower_clocks(reasons: list[str], note: str) -> None:
    after = {"throttle_reasons": reasons, "temperature_c": 88}
    record = ok_record(samples=(0.0123, 0.0123), environment={"gpu": {"after": after}})
    record.throttled[1] = bool(reasons)
    assert outcome(record) == f"ok      {case().label}: 12.3 µs, median of 2 samples{note}"


def test_each_outcome_names_its_gpu() -> None:
    stream = io.StringIO()
    with Progress("quick", stream) as progress:
        progress(Event("plan", total=1))
        progress(Event("record", planned=Planned(case()), record=ok_record(), slot="GPU 0"))
    assert "[1/1] GPU 0: ok" in stream.getvalue()
