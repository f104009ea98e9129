"""Interrupted runs: their records, and the cases that a resumption runs again."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness_helpers import (
    HERE,
    ROOT,
    SHORT_LIMITS,
    alive,
    case,
    file_of,
    measured,
    new_run,
    statuses,
    systems,
    wait_for,
)

from harness.schema.run import Run
from harness.schema.run_file import Planned, RunError
from harness.workers.scheduler import Event


def test_never_overwrites(folder: Path) -> None:
    measured(folder, [case()])
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=r"holds a run already; resume it \(--resume\) or name another folder"):
        new_run(folder, [case(batch=9)])
    assert all(path.read_bytes() == held for path, held in before.items())


def test_a_resumption_retries_skipped_cases(folder: Path) -> None:
    cases = [case(do, batch=batch) for batch, do in enumerate(["work", "hang", "skip"], start=1)]
    assert statuses(measured(folder, cases, launches=systems("fake_systems:Unavailable"))) == ["skipped"] * 3
    records = measured(folder, **SHORT_LIMITS)
    assert statuses(records) == ["ok", "timeout", "skipped"]
    assert records[2].reason == "context 8 is beyond what this system holds"
    assert len(file_of(folder).read()) == 6
    before = file_of(folder).path.read_bytes()
    events: list[Event] = []
    assert measured(folder, on_event=events.append) == records
    assert (events[0].total, events[0].kept) == (1, 2)
    assert file_of(folder).path.read_bytes() == before  # skipped again, for the same reason


def test_a_killed_case_runs_again_at_each_resumption(folder: Path) -> None:
    for lines in (2, 3, 4):
        records = measured(folder, [case("kill"), case("work")])
        assert (statuses(records), len(file_of(folder).read())) == (["killed", "ok"], lines)


def test_retry_failed_retries_every_status_except_ok(folder: Path) -> None:
    cases = [case("raise"), case("miss"), case("oom"), case("work")]
    measured(folder, cases)
    assert measured(folder)[0].status == "failed"
    assert len(file_of(folder).read()) == 4
    assert statuses(measured(folder, retry=lambda record: record.status != "ok")) == [
        "failed",
        "incorrect",
        "oom",
        "ok",
    ]
    assert len(file_of(folder).read()) == 7
    again = measured(folder, retry=lambda record: True, skip=lambda of, earlier: "no checkpoint")
    assert statuses(again) == ["skipped", "skipped", "skipped", "ok"]  # a skip replaces no "ok"


def test_skip_sees_the_new_record_of_a_retried_case(folder: Path, tmp_path: Path) -> None:
    def too_large(of: Planned, earlier: Any) -> str:
        return "one was killed" if any(each.status == "killed" for each in earlier if each.case != of.case) else ""

    launches = systems("fake_systems:DiesInRun", FAKE_NOTE=str(tmp_path / "runs"), FAKE_DEATHS="1")
    cases = [case(batch=1), case(batch=2)]
    assert statuses(measured(folder, cases, launches=launches, skip=too_large)) == ["killed", "skipped"]
    assert statuses(measured(folder, launches=launches, skip=too_large)) == ["ok", "ok"]


def test_skip_sees_the_cases_of_a_job_that_another_call_ran(folder: Path) -> None:
    measured(
        folder, [case("oom", batch=1), case(batch=2)], skip=lambda of, earlier: "later" if of.case.batch > 1 else ""
    )
    whole = Run.open(folder).jobs[0]
    only = replace(whole, cases=whole.cases[1:])
    records = measured(folder, jobs=[only], skip=lambda of, earlier: " ".join(statuses(earlier)))
    assert (records[1].status, records[1].reason) == ("skipped", "oom skipped")


class Stopped(BaseException):
    """Raised by `on_event` to end a run inside the test's process."""


def test_stopped_after_any_event_and_resumed_each_case_is_there_once(tmp_path: Path) -> None:
    cases = [case(batch=i + 1) for i in range(4)]
    skip = lambda planned, earlier: "no worker needed"  # noqa: E731
    for moment in range(2 * len(cases) + 1):
        folder = tmp_path / f"{moment}"
        left = moment

        def stop(event: Event) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Stopped

        with pytest.raises(Stopped):
            measured(folder, cases, on_event=stop, skip=skip)
        finished = file_of(folder).read()
        assert len(finished) == moment // 2
        with file_of(folder).path.open("ab") as file:  # an incomplete line, as a killed writer leaves it
            file.write(b'{"schema":2,"case":{"sys')
        records = measured(folder, skip=skip)
        assert records[: len(finished)] == finished
        assert Counter(r.case.key for r in file_of(folder).read()) == Counter(c.key for c in cases)


PARENT = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us with SIGINT ignored
sys.path.insert(0, {here!r})
from harness_helpers import case, measured
from pathlib import Path
cases = [case("work", batch=1), case("work", batch=2), case("hang", batch=3), case("work", batch=4)]
def show(event):
    print(json.dumps([event.kind, event.record.settings if event.record else {{}}]), flush=True)
try:
    measured(Path(sys.argv[1]), cases, on_event=show)
except KeyboardInterrupt as error:
    print(json.dumps([type(error).__name__, {{}}]), flush=True)
"""


@pytest.mark.parametrize(
    ("number", "ignored"),
    [(number, signal.SIG_DFL) for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    + [(signal.SIGINT, signal.SIG_IGN)],  # as a shell starts it in the background
)
def test_a_signal_in_mid_case_kills_the_worker_and_loses_nothing(folder: Path, number: int, ignored: Any) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(here=str(HERE)), str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: [signal.signal(signal.SIGINT, ignored), signal.signal(signal.SIGHUP, signal.SIG_DFL)],
    )
    assert parent.stdout is not None
    pid, starts = 0, 0
    for line in parent.stdout:
        kind, settings = json.loads(line)
        pid, starts = int(settings.get("pid", pid)), starts + (kind == "start")
        if starts == 3:
            break
    assert alive(pid)
    parent.send_signal(number)
    output, errors = parent.communicate()
    assert ("KeyboardInterrupt" in output) is (number != signal.SIGKILL)
    assert errors == ""
    assert wait_for(lambda: not alive(pid))
    assert [r.case.batch for r in file_of(folder).read()] == [1, 2]
    if number == signal.SIGKILL:
        assert statuses(measured(folder, **SHORT_LIMITS)) == ["ok", "ok", "timeout", "ok"]
        assert len(file_of(folder).read()) == 4


def test_sigterm_handling_ends_with_the_run(folder: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        measured(folder, [case()], on_event=lambda event: os.kill(os.getpid(), signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_hangup_that_is_ignored_ends_no_run(folder: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        records = measured(folder, [case()], on_event=lambda event: os.kill(os.getpid(), signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert statuses(records) == ["ok"]
