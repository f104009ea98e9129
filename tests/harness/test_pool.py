"""Jobs run on four fake GPUs, which exist only as values of CUDA_VISIBLE_DEVICES."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from harness_helpers import SHORT_LIMITS, alive, case, lines_of, new_run, statuses, wait_for
from pool_helpers import GPUS, SYSTEMS, cases_of, pooled, program, slot, worker_launches

from harness.measure import nvml
from harness.schema.record import RecordError
from harness.schema.run_file import PastRequest, RunError
from harness.workers import pool, process
from harness.workers.pool import on_free_slots, shares, slots_of
from harness.workers.process import GpuSlot, Launch
from harness.workers.scheduler import Event, run_jobs
from tests.two_gpus import TwoGpus


def test_every_job_runs_on_one_gpu_and_all_gpus_run(tmp_path: Path) -> None:
    events: list[Event] = []
    run = new_run(tmp_path / "out", cases_of(SYSTEMS))
    records = pooled(run, worker_launches(*SYSTEMS), on_event=events.append)
    assert statuses(records) == ["ok"] * 18
    assert records == run.records()
    used = {(record.case.system, record.settings["gpu"]) for record in records}
    assert sorted(system for system, _ in used) == sorted(SYSTEMS)
    assert {gpu for _, gpu in used} == set(GPUS)
    assert {event.slot for event in events if event.record} == {f"GPU {gpu}" for gpu in GPUS}
    assert [event.total for event in events if event.kind == "plan"] == [18]
    assert {len(lines_of(run.folder, f"{system}-cpu")) for system in SYSTEMS} == {3}


def test_jobs_begin_in_the_order_in_which_they_are_handed_over(tmp_path: Path) -> None:
    started: list[str] = []

    def note(event: Event) -> None:
        if event.kind == "start" and event.planned:
            started.append(event.planned.case.system)

    run = new_run(tmp_path / "out", cases_of(SYSTEMS[:4], count=1))
    longest_first = sorted(run.jobs, key=lambda job: job.name, reverse=True)
    pooled(run, worker_launches(*SYSTEMS[:4]), [slot("0")], jobs=longest_first, on_event=note)
    assert started == list(reversed(SYSTEMS[:4]))


def test_each_worker_has_its_share_of_the_cores(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    run = new_run(tmp_path / "out", cases_of(("a", "b"), count=1))
    records = pooled(run, worker_launches("a", "b"), [slot("0"), slot("1")])
    first, second = (set(record.settings["cores"].split(",")) for record in records)
    assert first
    assert second
    assert not first & second
    assert sorted(os.sched_getaffinity(0)) == cores


@pytest.mark.parametrize(
    ("sockets_and_cores", "count", "expected"),
    [
        ([(0, 0), (1, 0), (0, 1), (1, 1)], 2, [{0, 2}, {1, 3}]),  # one socket each
        ([(0, 0), (0, 1), (0, 2), (0, 3)] * 2, 2, [{0, 1, 4, 5}, {2, 3, 6, 7}]),  # whole cores
        ([(0, 0), (0, 1), (0, 2)], 2, [{0}, {1}]),
        ([(0, 0), (0, 1)], 3, [{0}, {1}, {0}]),
    ],
)
def test_shares_are_adjacent_cores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sockets_and_cores: list[tuple[int, int]],
    count: int,
    expected: list[set[int]],
) -> None:
    for cpu, (socket, core) in enumerate(sockets_and_cores):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{socket}\n")
        (folder / "core_id").write_text(f"{core}\n")
    monkeypatch.setattr(pool, "_TOPOLOGY", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: set(range(len(sockets_and_cores))))
    assert shares(count) == expected


@pytest.mark.parametrize(("do", "status"), [("kill", "killed"), ("hang", "timeout")])
def test_a_lost_worker_does_not_affect_other_gpus(tmp_path: Path, do: str, status: str) -> None:
    bad = case(do, system="b", batch=9)
    run = new_run(tmp_path / "out", [*cases_of(SYSTEMS[:4], count=2), bad])
    records = pooled(run, worker_launches(*SYSTEMS[:4]), **SHORT_LIMITS)
    assert Counter(statuses(records)) == {"ok": 8, status: 1}
    assert [record.case for record in records if record.status == status] == [bad]


def test_a_lost_gpu_ends_the_run_which_resumes(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    run = new_run(tmp_path / "out", cases_of(SYSTEMS[:3]))
    slots = [slot("0"), slot("1", is_there=lambda: not gone.exists())]
    with pytest.raises(RunError, match="GPU 1 does not respond any more"):
        pooled(run, worker_launches(*SYSTEMS[:3], FAKE_GONE=f"1:{gone}"), slots)
    assert set(statuses(run.records())) == {"ok"}
    assert statuses(pooled(run, worker_launches(*SYSTEMS[:3]))) == ["ok"] * 9


def test_a_record_of_another_gpu_than_the_jobs_is_refused(tmp_path: Path) -> None:
    run = new_run(tmp_path / "out", cases_of(("a",), count=1))
    (record,) = pooled(run, worker_launches("a", FAKE_DEVICE_ID="0badcafe"), [slot("0", device_id="12345678")])
    assert record.status == "failed"
    assert record.reason.endswith("it ran on the GPU 0badcafe, not on 12345678")


def test_a_record_of_the_cpu_is_refused_in_a_run_on_gpus(tmp_path: Path) -> None:
    run = new_run(tmp_path / "out", cases_of(("a",), count=1))
    run.file = replace(run.file, requests=(PastRequest("", (), "", None, {"device_kind": "cuda"}),))
    (record,) = pooled(run, worker_launches("a"), [slot("0")])
    assert record.status == "failed"
    assert "it was measured on the CPU: the worker's packages see no GPU, but this run is for a GPU" in record.reason
    run.file = replace(run.file, requests=(PastRequest("", (), "", None, {"device_kind": "cpu"}),))
    assert statuses(pooled(run, worker_launches("a"), [slot("0")], retry=lambda each: each.status != "ok")) == ["ok"]


def test_an_error_of_one_job_ends_all_and_is_raised(tmp_path: Path) -> None:
    run = new_run(tmp_path / "out", cases_of(SYSTEMS[:4], count=1, do="hang"))
    path = run.record_file(run.jobs[2]).path
    path.mkdir()  # no file can be there
    with pytest.raises(RecordError, match=r"c-cpu\.jsonl"):
        pooled(run, worker_launches(*SYSTEMS[:4]))


def test_no_job_begins_after_the_error_of_another() -> None:
    both, begun = threading.Barrier(2), list[str]()

    def do(job: str, at: GpuSlot, stopped: Callable[[], bool]) -> None:
        begun.append(job)
        if len(begun) > 2:
            return
        both.wait()
        if job == "a":
            raise RunError("no more")
        while not stopped():
            time.sleep(0.01)

    with pytest.raises(RunError, match="no more"):
        on_free_slots("abc", [slot("0"), slot("1")], do)
    assert sorted(begun) == ["a", "b"]


def test_the_gpus_that_may_be_used(two_gpus: TwoGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    assert nvml.visible_gpus() == ["0", "1"]
    for visible, expected in (("1", ["1"]), ("GPU-bb,0, 0", ["GPU-bb", "0"]), ("7", []), ("", []), ("-1", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert nvml.visible_gpus() == expected


def test_a_slot_knows_whether_its_gpu_answers(two_gpus: TwoGpus) -> None:
    first, second = slots_of(["0", "1"], "cuda")
    assert first.env == {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert first.device_id != second.device_id
    gpu = nvml.open_gpu("1")
    assert gpu.constants()["device_id"] == second.device_id
    del two_gpus.there["1"]
    assert first.is_there()
    assert not second.is_there()


def test_a_run_of_one_gpu_ends_when_it_does_not_answer(two_gpus: TwoGpus, tmp_path: Path) -> None:
    [slot] = slots_of([], "cuda")
    assert (slot.name, slot.env, slot.device_id, slot.is_there()) == ("", {}, "", True)
    two_gpus.there.clear()
    run = new_run(tmp_path / "out", cases_of(("a",), count=2))
    with pytest.raises(RunError, match="the GPU does not respond any more"):
        run_jobs(run, {("a", "cpu"): Launch(["/no/such/python"])}, slots=[slot])
    assert run.records() == []
    assert slots_of([], "cuda") == slots_of([], "cpu") == [process.DEFAULT_SLOT]


def test_a_record_without_a_worker_names_the_slots_gpu(two_gpus: TwoGpus, tmp_path: Path) -> None:
    run = new_run(tmp_path / "out", cases_of(("a",), count=1))
    (record,) = pooled(run, {("a", "cpu"): Launch(["/no/such/python"])}, slots_of(["1"], "cuda"))
    assert record.status == "unstarted"
    assert record.environment["gpu"]["name"] == "name of GPU-bb"


STUBBORN = """
import os, signal, sys, threading, time
from pool_helpers import slot
from harness.workers.pool import on_free_slots
ended = []
both, first = threading.Barrier(2), threading.Event()
def do(job, at, stopped):
    both.wait()
    if job == "last":
        os.kill(os.getpid(), signal.SIGINT)
        first.wait()
        time.sleep(0.5)
    while not stopped():
        time.sleep(0.01)
    ended.append(job)
    first.set()
try:
    on_free_slots(["last", "first"], [slot("0"), slot("1")], do)
except KeyboardInterrupt:
    sys.exit(str(ended))
"""


def test_an_interrupted_pool_waits_for_every_thread() -> None:
    assert program(STUBBORN).communicate()[1] == "['first', 'last']\n"


ENDLESS = """
import os, signal, sys, threading, time
from pool_helpers import slot
from harness.workers.pool import on_free_slots
both = threading.Barrier(2)
def do(job, at, stopped):
    both.wait()
    if job == "a":
        os.kill(os.getpid(), signal.SIGINT)
        while not stopped():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()
try:
    on_free_slots("ab", [slot("0"), slot("1")], do)
except KeyboardInterrupt:
    sys.exit("interrupted")
"""


def test_a_second_interrupt_ends_the_program_while_a_job_goes_on() -> None:
    assert program(ENDLESS).communicate(timeout=60)[1] == "interrupted\n"


PARENT = """
import sys
from pathlib import Path
from pool_helpers import SYSTEMS, cases_of, worker_launches, pooled
from harness.schema.run import Run
pooled(Run.open(Path(sys.argv[1])), worker_launches(*SYSTEMS[:4], FAKE_PIDS=sys.argv[2]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_every_worker_and_the_run_resumes(tmp_path: Path, number: signal.Signals) -> None:
    run = new_run(tmp_path / "out", [*cases_of(SYSTEMS[:4], 1), *cases_of(SYSTEMS[:4], 1, do="hang-once")])
    pids = tmp_path / "pids"
    pids.mkdir()
    parent = program(PARENT, run.folder, pids)
    assert wait_for(lambda: len(list(pids.iterdir())) == 4)
    parent.send_signal(number)
    assert parent.wait() != 0
    workers = [int(path.stem) for path in pids.iterdir()]
    assert wait_for(lambda: not any(map(alive, workers)))
    assert Counter(statuses(run.records())) == {"ok": 4}
    assert statuses(pooled(run, worker_launches(*SYSTEMS[:4], FAKE_PIDS=str(pids)))) == ["ok"] * 8
