import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness_helpers import HERE, QUICK, ROOT, case, launch, ok_record, systems

from harness.case import Case
from harness.record import Record, RecordError, RecordFile
from harness.runner import Event, Launch, Terminated, probe, run_cases


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "records.jsonl"


def run(cases: list[Case], path: Path, **changes: Any) -> list[Record]:
    arguments: dict[str, Any] = {"systems": systems(), "policy": QUICK, "time_limit_s": 20.0} | changes
    return run_cases(cases, arguments.pop("systems"), path, **arguments)


def statuses(records: list[Record]) -> list[str]:
    return [record.status for record in records]


def test_measures_with_one_worker_while_it_is_healthy(path: Path) -> None:
    cases = [case(do, batch=i + 1) for i, do in enumerate(["work", "miss", "skip", "print", "engine", "work"])]
    records = run(cases, path)
    assert [record.case for record in records] == cases
    assert statuses(records) == ["ok", "gate", "skipped", "ok", "ok", "ok"]
    assert len({r.settings["pid"] for r in records if r.status == "ok"}) == 1
    first = records[0]
    assert 3 <= len(first.samples_ms) == len(first.throttled) <= 4
    assert min(first.samples_ms) == pytest.approx(2.0, rel=0.3)
    assert first.tokens == 1
    assert first.peak_memory_bytes is not None
    assert first.metrics == {"parameters": 7, "unknown": None}
    assert first.environment["software"]["fake"] == "1.0"
    assert first.started_at.endswith("+00:00")
    assert first.wall_s > 0
    assert RecordFile(path).read() == records


FAILURES = [
    ("raise", "failed", "RuntimeError: first line of kernel.cu"),
    ("read", "failed", "RuntimeError: stdin holds ''"),
    ("exit", "failed", "the worker exited with status 3; its last words: EngineError: the engine is on fire"),
    ("kill", "killed", "the worker was killed by SIGKILL (by hand, or by the system when memory ended)"),
    ("segfault", "killed", "the worker was killed by SIGSEGV"),
    ("allocate", "oom", "MemoryError"),
    ("oom", "oom", "OutOfMemoryError: CUDA out of memory"),
]


def test_each_failure_is_a_record_and_the_run_goes_on(path: Path) -> None:
    cases = [case(do) for do, _, _ in FAILURES] + [case("work")]
    records = run(cases, path)
    assert [(r.case.option("do"), r.status, r.reason) for r in records[:-1]] == FAILURES
    assert records[-1].status == "ok"
    for record in records[:-1]:
        assert record.samples_ms == []
        assert record.environment["software"]["fake"] == "1.0"
        assert record.environment["cpu"]["before"].keys() == {"load_1m"}
        assert record.started_at


def test_a_case_that_failed_leaves_no_worker_to_the_next(path: Path) -> None:
    records = run([case("work"), case("raise"), case("work", batch=9)], path)
    assert records[0].settings["pid"] != records[2].settings["pid"]


def test_a_case_that_needs_a_fresh_process_gets_one(path: Path) -> None:
    kinds = ["a", "a", "b", "none", "b"]
    cases = [case(batch=i + 1, options={"kind": kind}) for i, kind in enumerate(kinds)]
    records = run(cases, path, systems=systems("fake_systems:OneKind"))
    assert statuses(records) == ["ok", "ok", "ok", "failed", "ok"]
    assert records[3].reason == "a new worker of the system asked for another one"
    first, second, third, last = (record.settings["pid"] for record in records if record.status == "ok")
    assert first == second
    assert len({first, third, last}) == 3


def test_time_limit_kills_the_worker_and_its_children(path: Path, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    hung = systems("fake_systems:WithChild", FAKE_CHILD=str(note))
    start = time.monotonic()
    records = run([case(batch=1)], path, systems=hung, time_limit_s=1.0)
    assert time.monotonic() - start < 10
    assert records[0].status == "timeout"
    assert records[0].reason.startswith("no answer within 1 s")
    assert records[0].wall_s >= 1
    assert wait_for(lambda: not any(alive(int(pid)) for pid in note.read_text().split()))


def test_after_a_timeout_the_run_goes_on(path: Path) -> None:
    assert statuses(run([case("hang"), case("work")], path, time_limit_s=1.5)) == ["timeout", "ok"]


@pytest.mark.parametrize(
    ("entry", "status", "reason"),
    [
        ("fake_systems:Unavailable", "skipped", "needs a GPU of the next century"),
        ("fake_systems:HangsAtProbe", "timeout", "the system could not be started: no answer within 1 s"),
        (
            "fake_dead:System",
            "failed",
            "the system could not be started: the worker exited with status 1; its last words: "
            "ImportError: no module named 'cuda_of_tomorrow'",
        ),
        ("fake_systems:Nothing", "failed", "the system could not be started: the worker exited with status 1"),
    ],
)
def test_a_system_that_does_not_start_gives_its_reason_to_every_case(
    path: Path, entry: str, status: str, reason: str
) -> None:
    both = systems(entry) | {("other", "cpu"): launch()}
    cases = [case(batch=1), case(batch=2), case(system="other")]
    limit = 1.0 if "Hangs" in entry else 20.0
    *refused, other = run(cases, path, systems=both, start_limit_s=limit) if limit > 1 else hanging(cases, path, both)
    assert [r.status for r in refused] == [status] * 2
    assert all(r.reason.startswith(reason) for r in refused)
    assert other.status == "ok"


def hanging(cases: list[Case], path: Path, both: dict) -> list[Record]:
    """The healthy system of the same run may take longer than a second to start on a busy machine."""
    refused = run(cases[:2], path, systems=both, start_limit_s=1.0)
    return refused + run(cases[2:], path, systems=both, resume=True)


def test_a_command_that_does_not_exist(path: Path) -> None:
    launches = {("fake", "cpu"): Launch(["/no/such/python"], "fake_systems:Fake")}
    record = run([case()], path, systems=launches)[0]
    assert record.status == "failed"
    assert record.reason == "the system could not be started: python could not be started: No such file or directory"


def test_a_command_may_print_before_the_worker_does(path: Path) -> None:
    shell = ["/bin/sh", "-c", 'echo "container ready"; echo 3; exec "$@"', "sh", sys.executable]
    launches = {("fake", "cpu"): Launch(shell, "fake_systems:Fake", launch().env)}
    assert statuses(run([case()], path, systems=launches)) == ["ok"]


def test_a_shell_reports_a_signal_by_its_status(path: Path) -> None:
    shell = ["/bin/sh", "-c", '"$@"; exit $?', "sh", sys.executable]
    launches = {("fake", "cpu"): Launch(shell, "fake_systems:Fake", launch().env)}
    assert statuses(run([case("kill")], path, systems=launches)) == ["killed"]


def test_probe() -> None:
    found = probe(launch())
    assert found.available
    assert found.versions == {"fake": "1.0"}
    assert found.environment["software"]["fake"] == "1.0"
    refused = probe(launch("fake_systems:Unavailable"))
    assert (refused.available, refused.reason) == (False, "needs a GPU of the next century")


def test_verify_only(path: Path) -> None:
    records = run([case("work"), case("miss"), case("kill")], path, verify_only=True)
    assert statuses(records) == ["ok", "gate", "ok"]  # what kills only when it runs is not run
    assert all(not record.samples_ms and record.settings["mode"] == "verify" for record in records)


def test_skip_sees_what_came_before(path: Path) -> None:
    def too_large(of: Case, earlier: Any) -> str:
        failed = [r.case.batch for r in earlier if r.status == "oom" and r.case.batch < of.batch]
        return f"batch {failed[0]} did not fit" if failed else ""

    cases = [case("work", batch=1), case("oom", batch=2), case("work", batch=4)]
    records = run(cases, path, skip=too_large)
    assert statuses(records) == ["ok", "oom", "skipped"]
    assert records[2].reason == "batch 2 did not fit"
    resumed = run([*cases, case("work", batch=8)], path, skip=too_large, resume=True)
    assert resumed[:3] == records
    assert resumed[3].reason == "batch 2 did not fit"


def test_events_tell_the_story(path: Path) -> None:
    events: list[Event] = []
    run([case("work"), case("skip")], path, on_event=events.append)
    assert [(e.kind, e.done, e.total) for e in events] == [
        ("plan", 0, 2),
        ("start", 0, 2),
        ("record", 1, 2),
        ("start", 1, 2),
        ("record", 2, 2),
    ]
    assert events[2].record is not None
    assert events[3].case == case("skip")


def test_cases_are_grouped_by_system_and_run_once(path: Path) -> None:
    both = systems() | {("other", "cpu"): launch("fake_systems:Unavailable")}
    a, b, c = case(), case(system="other"), case(batch=5)
    records = run([a, b, c, a], path, systems=both)
    assert [record.case for record in records] == [a, c, b]


def test_refuses_a_system_without_a_launch(path: Path) -> None:
    with pytest.raises(ValueError, match="system other/cpu: unknown; there are fake/cpu"):
        run([case(system="other")], path)
    assert not path.exists()


def test_never_overwrites(path: Path) -> None:
    RecordFile(path).append(ok_record())
    before = path.read_bytes()
    with pytest.raises(RecordError, match=r"already holds 1 record; resume it \(--resume\) or name another file"):
        run([case(batch=9)], path)
    assert path.read_bytes() == before


def test_resume_does_not_mix_kinds_of_runs(path: Path) -> None:
    RecordFile(path).append(ok_record())
    with pytest.raises(RecordError, match="holds records of a measuring run, not of a verify run"):
        run([case(batch=9)], path, resume=True, verify_only=True)


def test_resume_keeps_every_finished_case_whatever_its_status(path: Path) -> None:
    failed = Record(case("raise"), "failed", "x")
    RecordFile(path).append(failed)
    events: list[Event] = []
    records = run([case("raise"), case("work")], path, resume=True, on_event=events.append)
    assert records[0] == failed
    assert statuses(records) == ["failed", "ok"]
    assert (events[0].total, events[0].kept) == (1, 1)


def test_resume_tries_anew_what_was_skipped(path: Path) -> None:
    """Its system may have been installed; what else came of a case stays."""
    batches = {1: "work", 2: "kill", 3: "hang", 4: "skip"}
    cases = [case(do, batch=batch) for batch, do in batches.items()]
    assert statuses(run(cases, path, systems=systems("fake_systems:Unavailable"))) == ["skipped"] * 4
    records = run(cases, path, resume=True, time_limit_s=1.5)
    assert statuses(records) == ["ok", "killed", "timeout", "skipped"]
    assert records[3].reason == "context 8 is beyond what this system holds"
    assert RecordFile(path).read() == records
    before = path.read_bytes()
    events: list[Event] = []
    again = run(cases, path, resume=True, on_event=events.append)
    assert sorted(again, key=lambda record: record.case.batch) == records
    assert (events[0].total, events[0].kept) == (1, 3)
    assert path.read_bytes() == before  # skipped again, for the same reason


class Stopped(BaseException):
    """The end of the parent, at the moment of an event."""


def test_stopped_after_any_event_and_resumed_each_case_is_there_once(tmp_path: Path) -> None:
    cases = [case(batch=i + 1) for i in range(4)]
    skip = lambda case, earlier: "no worker is needed to ask this"  # noqa: E731
    for moment in range(2 * len(cases) + 1):
        path = tmp_path / f"{moment}.jsonl"
        left = moment

        def stop(event: Event) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Stopped

        with pytest.raises(Stopped):
            run(cases, path, on_event=stop, skip=skip)
        finished = RecordFile(path).read()
        assert len(finished) == moment // 2
        with path.open("ab") as file:  # and the line that was being written
            file.write(b'{"schema":1,"case":{"sui')
        records = run(cases, path, resume=True, skip=skip)
        assert records[: len(finished)] == finished
        assert Counter(r.case.key for r in RecordFile(path).read()) == Counter(c.key for c in cases)


PARENT = """
import json, sys
sys.path.insert(0, {here!r})
from harness_helpers import QUICK, case, systems
from harness.runner import run_cases
cases = [case("work", batch=1), case("work", batch=2), case("hang", batch=3), case("work", batch=4)]
def show(event):
    print(json.dumps([event.kind, event.done, event.record.settings if event.record else {{}}]), flush=True)
try:
    run_cases(cases, systems(), sys.argv[1], policy=QUICK, on_event=show)
except KeyboardInterrupt as error:
    print(json.dumps(["interrupted", type(error).__name__, {{}}]), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_mid_case_kills_the_worker_and_loses_nothing(path: Path, number: int) -> None:
    code = PARENT.format(here=str(HERE))
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = 0
    for line in parent.stdout:
        kind, done, settings = json.loads(line)
        pid = int(settings.get("pid", pid))
        if kind == "start" and done == 2:
            break
    time.sleep(0.2)
    assert alive(pid)
    parent.send_signal(number)
    said, complaint = parent.communicate(timeout=20)
    expected = {signal.SIGTERM: "Terminated", signal.SIGINT: "KeyboardInterrupt"}.get(signal.Signals(number))
    assert (expected in said) if expected else not said
    assert complaint == ""
    assert wait_for(lambda: not alive(pid))
    assert [r.case.batch for r in RecordFile(path).read()] == [1, 2]
    resumed = run([case("work", batch=b) for b in (1, 2, 4)], path, resume=True)
    assert [r.case.batch for r in resumed] == [1, 2, 4]
    assert len(RecordFile(path).read()) == 3


def test_sigterm_handling_ends_with_the_run(path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def terminate(event: Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Terminated):
        run([case()], path, on_event=terminate)
    assert signal.getsignal(signal.SIGTERM) is before


def test_two_runs_on_one_file(path: Path) -> None:
    with RecordFile(path), pytest.raises(RecordError, match="another run is writing to it"):
        run([case()], path, resume=True)


def test_the_parent_stays_light(path: Path) -> None:
    code = """
import sys
sys.path.insert(0, {here!r})
from harness_helpers import QUICK, case, systems
import harness.progress
from harness.runner import run_cases
run_cases([case()], systems(), sys.argv[1], policy=QUICK, on_event=harness.progress.Progress())
print(*sorted({{"torch", "pandas", "numpy", "rich"}} & set(sys.modules)))
# Not ru_maxrss, which a process inherits from the one that started it.
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""
    command = [sys.executable, "-c", code.format(here=str(HERE)), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    *heavy, kilobytes = done.stdout.split()
    assert heavy == []
    assert int(kilobytes) < 200_000


def alive(pid: int) -> bool:
    """Whether the process runs; one that only awaits its parent's notice does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()
