import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness_helpers import SHORT_LIMITS, case, file_of, launch, measured, new_repository, statuses, systems

from harness.schema.policy import Policy
from harness.schema.run_file import Planned
from harness.workers.process import Launch, Limits
from harness.workers.scheduler import Event


def test_measures_with_one_worker_while_it_is_healthy(folder: Path) -> None:
    cases = [case(do, batch=i + 1) for i, do in enumerate(["work", "miss", "skip", "print", "engine", "work"])]
    records = measured(folder, cases)
    assert [record.case for record in records] == cases
    assert statuses(records) == ["ok", "incorrect", "skipped", "ok", "ok", "ok"]
    assert len({r.settings["pid"] for r in records if r.status == "ok"}) == 1
    first = records[0]
    assert 3 <= len(first.samples_ms) == len(first.throttled) <= 4
    assert min(first.samples_ms) > 1.9  # a call runs for 2 ms
    assert first.tokens == 8
    assert first.peak_memory_bytes is not None
    assert first.metrics == {"parameters": 7, "unknown": None}
    assert first.environment["software"]["pytest"] == pytest.__version__
    assert first.environment["cpu"].keys() >= {"others_share", "idle_share"}
    assert first.started_at.endswith("+00:00")
    assert first.wall_s > 0
    assert file_of(folder).read() == records


FAILURES = [
    ("raise", "failed", "RuntimeError: first line of kernel.cu"),
    ("read", "failed", "RuntimeError: stdin holds ''"),
    ("exit", "failed", "the worker exited with status 3; its last error output: EngineError: the engine is on fire"),
    ("kill", "killed", "the worker was killed by SIGKILL (by a user, or by the system for lack of memory)"),
    ("segfault", "killed", "the worker was killed by SIGSEGV"),
    ("allocate", "oom", "MemoryError"),
    ("oom", "oom", "OutOfMemoryError: CUDA out of memory"),
]


def test_each_failure_is_a_record_and_the_run_goes_on(folder: Path) -> None:
    cases = [case(do) for do, _, _ in FAILURES] + [case("work")]
    records = measured(folder, cases)
    reasons = [re.sub(r" \(fake_systems\.py, line \d+\)", "", record.reason) for record in records[:-1]]
    assert [(r.case.option("do"), r.status, why) for r, why in zip(records, reasons, strict=False)] == FAILURES
    assert records[-1].status == "ok"
    for record in records[:-1]:
        assert record.samples_ms == []
        assert record.environment["software"]["pytest"] == pytest.__version__
        assert record.environment["cpu"]["before"].keys() == {"load_1m"}
        assert record.started_at


def test_a_case_that_failed_leaves_no_worker_to_the_next(folder: Path) -> None:
    records = measured(folder, [case("work"), case("raise"), case("work", batch=9)])
    assert records[0].settings["pid"] != records[2].settings["pid"]


def test_a_reason_quotes_no_output_of_earlier_cases(folder: Path) -> None:
    records = measured(folder, [case("print"), case("kill")])
    assert (statuses(records), "error output" in records[1].reason) == (["ok", "killed"], False)


def test_a_case_that_needs_a_fresh_process_runs_after_its_workers_other_cases(folder: Path) -> None:
    kinds = ["a", "b", "a", "none", "b"]
    cases = [case(batch=i + 1, options={"kind": kind}) for i, kind in enumerate(kinds)]
    records = measured(folder, cases, launches=systems("fake_systems:OneKindPerProcess"))
    assert statuses(records) == ["ok", "ok", "ok", "failed", "ok"]
    assert records[3].reason == "the case needs a fresh process, but a fresh worker refused it"
    first, second, *others = (record.settings.get("pid") for record in records)
    assert (others, first == second) == ([first, None, second], False)


def test_after_a_timeout_the_run_goes_on(folder: Path) -> None:
    hung, well = measured(folder, [case("hang"), case("work")], **SHORT_LIMITS)
    assert (hung.status, well.status) == ("timeout", "ok")
    assert hung.reason.startswith("no answer within 0.5 s")
    assert hung.wall_s >= 0.5


@pytest.mark.parametrize(
    ("entry", "status", "reason"),
    [
        ("fake_systems:Unavailable", "skipped", "needs a GPU of the next century"),
        (
            "fake_dead:System",
            "unstarted",
            "the system could not be started: the worker exited with status 1; its last error output: "
            "ImportError: no module named 'cuda_of_tomorrow'",
        ),
    ],
)
def test_a_system_that_does_not_start_gives_its_reason_to_every_case(
    folder: Path, entry: str, status: str, reason: str
) -> None:
    both = systems(entry) | {("other", "cpu"): launch()}
    cases = [case(batch=1), case(batch=2), case(system="other")]
    *refused, other = measured(folder, cases, launches=both)
    assert [r.status for r in refused] == [status] * 2
    assert all(r.reason.startswith(reason) for r in refused)
    assert other.status == "ok"


def test_a_start_has_a_limit_of_its_own(folder: Path) -> None:
    hung = systems("fake_systems:HangsAtProbe")
    records = measured(folder, [case(batch=1), case(batch=2)], launches=hung, limits=Limits(start_s=0.5))
    assert statuses(records) == ["unstarted"] * 2
    assert records[1].reason == "the system could not be started: no answer within 0.5 s"


def test_a_resumption_starts_a_system_again(folder: Path, tmp_path: Path) -> None:
    note = tmp_path / "starts"
    launches = systems("fake_systems:DiesAtStart", FAKE_NOTE=str(note), FAKE_DEATHS="1")
    records = measured(folder, [case(batch=1), case(batch=2)], launches=launches)
    assert statuses(records) == ["unstarted"] * 2
    assert ("SIGKILL" in records[0].reason, note.read_text()) == (True, "x")
    assert statuses(measured(folder, launches=launches)) == ["ok", "ok"]


def test_a_record_without_a_worker_has_the_commit_of_its_code(folder: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    head = new_repository(code)
    launches = {("fake", "cpu"): Launch(["/no/such/python"], "fake_systems:Fake", root=code)}
    [record] = measured(folder, [case()], launches=launches)
    assert (record.status, record.environment["commit"], record.environment["software"]) == ("unstarted", head, {})
    assert record.environment["cpu"]["model"]


def test_a_command_may_print_before_the_worker_does(folder: Path) -> None:
    shell = ["/bin/sh", "-c", 'echo 3; printf "container ready: "; exec "$@"', "sh", sys.executable]
    launches = {("fake", "cpu"): Launch(shell, "fake_systems:Fake", launch().env)}
    assert statuses(measured(folder, [case()], launches=launches)) == ["ok"]


def test_a_shell_reports_a_signal_by_its_status(folder: Path) -> None:
    shell = ["/bin/sh", "-c", '"$@"; exit $?', "sh", sys.executable]
    launches = {("fake", "cpu"): Launch(shell, "fake_systems:Fake", launch().env)}
    assert statuses(measured(folder, [case("kill")], launches=launches)) == ["killed"]


@pytest.mark.parametrize(
    ("locked", "expected"),
    [
        ({"pytest": pytest.__version__, "vllm": "0.33.0"}, "as locked"),
        ({"pytest": "1.0"}, f"pytest {pytest.__version__} (lock: 1.0)"),
        ({"vllm": "0.33.0"}, None),
    ],
)
def test_a_record_compares_versions_with_the_lock(folder: Path, locked: dict[str, str], expected: str | None) -> None:
    launches = {("fake", "cpu"): replace(launch(), locked=locked)}
    assert measured(folder, [case()], launches=launches)[0].environment["software"].get("versions") == expected


def test_verify_only(folder: Path) -> None:
    records = measured(folder, [case("work"), case("miss"), case("kill")], mode="verify")
    assert statuses(records) == ["ok", "incorrect", "ok"]  # verify does not call `run`
    assert all(not record.samples_ms for record in records)


def test_events_follow_the_cases(folder: Path) -> None:
    events: list[Event] = []
    measured(folder, [case("work"), case("skip")], on_event=events.append)
    assert [event.kind for event in events] == ["plan", "start", "record", "start", "record"]
    assert (events[0].total, events[0].kept) == (2, 0)
    assert events[2].record is not None
    assert events[3].planned == Planned(case("skip"))


def test_each_repeat_is_a_call_in_a_fresh_process(folder: Path) -> None:
    seen: list[list[int]] = []

    def skip(planned: Planned, earlier: Any) -> str:
        seen.append([record.repeat for record in earlier])
        return "too large" if planned.case.batch == 2 else ""

    cases = [case(batch=1), case(batch=2), case(batch=3)]
    for repeat in range(2):
        records = measured(folder, cases, repeats=2, repeat=repeat, skip=skip)
    assert [(r.case.batch, r.repeat, r.status) for r in records] == [
        (batch, repeat, "skipped" if batch == 2 else "ok") for batch in (1, 2, 3) for repeat in range(2)
    ]
    assert seen == [[], [0], [0, 0], [], [1], [1, 1]]
    pids = {(r.repeat, r.settings["pid"]) for r in records if r.status == "ok"}
    assert len(pids) == 2
    events: list[Event] = []
    measured(folder, repeat=1, on_event=events.append)
    assert (events[0].total, events[0].kept) == (1, 2)  # a skipped case runs again


@pytest.mark.parametrize(("least", "repeats", "each"), [(7, 3, 3), (6, 1, 6)])
def test_the_least_number_of_samples_is_spread_over_the_repeats(
    folder: Path, least: int, repeats: int, each: int
) -> None:
    policy = Policy(budget_s=0.0)
    records = measured(folder, [Planned(case(), least)], policy=policy, repeats=repeats)
    assert [len(record.samples_ms) for record in records] == [each]
