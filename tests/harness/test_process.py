"""If a worker, its supervisor or the parent dies, the worker and its descendants end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from harness_helpers import HERE, QUICK, ROOT, alive, case, launch, measured, statuses, systems, wait_for

from harness.workers.process import Launch, WorkerProcess
from harness.workers.protocol import WorkerLost
from harness.workers.supervisor import descendants

CASE = {"do": "case", "case": case().to_dict(), "policy": asdict(QUICK), "mode": "measure"}


@pytest.fixture
def note(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "pids"
    path.touch()
    yield path
    for pid in pids_of(path).values():
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def pids_of(note: Path) -> dict[str, int]:
    return {name: int(pid) for name, pid in (line.split() for line in note.read_text().splitlines())}


def started(note: Path, **env: str) -> WorkerProcess:
    worker = WorkerProcess(launch("fake_systems:WithDescendants", FAKE_CHILD=str(note), **env))
    assert worker.ready().available
    worker._send(worker._process, CASE)
    assert wait_for(lambda: len(pids_of(note)) == 5)
    assert all(alive(pid) for pid in pids_of(note).values())
    return worker


def all_dead(note: Path) -> bool:
    return wait_for(lambda: not [name for name, pid in pids_of(note).items() if alive(pid)])


def test_kill_ends_all_descendants(note: Path) -> None:
    started(note).kill()
    assert not [name for name, pid in pids_of(note).items() if alive(pid)]  # at once: `kill` waits for it


def test_stop_ends_all_descendants(note: Path) -> None:
    worker = started(note, FAKE_THEN="return")
    answer = json.loads(worker._process.stdout.readline())  # type: ignore[union-attr]
    assert answer["healthy"]
    assert alive(pids_of(note)["session"])  # children may run while the worker lives
    worker.stop()
    assert not [name for name, pid in pids_of(note).items() if alive(pid)]


def test_a_worker_may_write_more_to_stderr_than_is_kept() -> None:
    worker = WorkerProcess(launch("fake_systems:FloodsStderrAtExit"))
    assert worker.ready().available
    assert worker.stop(60) == 0
    assert (worker.error_line, len(worker._errors)) == ("EngineError: the last line", 1 << 16)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_death_of_the_worker_ends_all_descendants(note: Path, number: int) -> None:
    worker = started(note)
    os.kill(pids_of(note)["worker"], number)
    assert all_dead(note)
    with pytest.raises(WorkerLost, match=signal.Signals(number).name) as lost:
        worker._answer({"do": "probe"}, 60)
    assert lost.value.status == "killed"
    worker.kill()


@pytest.mark.parametrize("which", [0, 1])
def test_the_death_of_a_supervisor_ends_all_descendants(note: Path, which: int) -> None:
    worker = started(note)
    outer = worker._process.pid
    [inner] = [pid for pid in descendants(outer) if pids_of(note)["worker"] in descendants(pid)]
    os.kill((outer, inner)[which], signal.SIGKILL)
    worker.kill()
    assert all_dead(note)


PARENT = """
import sys
sys.path.insert(0, {here!r})
from harness_helpers import case, measured, systems
from pathlib import Path
measured(Path({folder!r}), [case()], systems("fake_systems:WithDescendants", FAKE_CHILD={note!r}))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_death_of_the_parent_ends_all_descendants(tmp_path: Path, note: Path, number: int) -> None:
    code = PARENT.format(here=str(HERE), folder=str(tmp_path / "out"), note=str(note))
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL)
    assert wait_for(lambda: len(pids_of(note)) == 5)
    parent.send_signal(number)
    parent.wait()
    assert all_dead(note)


def test_code_in_the_current_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = f"open({str(tmp_path / 'sprung')!r}, 'w').close()\n"
    for name in ("json", "harness", "fake_systems"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(trap)
    for name in ("ctypes", "sitecustomize", "pynvml"):
        (tmp_path / f"{name}.py").write_text(trap)
    monkeypatch.chdir(tmp_path)
    assert statuses(measured(tmp_path / "out", [case()], systems())) == ["ok"]
    assert not (tmp_path / "sprung").exists()


def test_a_missing_command_is_named_after_it_ended() -> None:
    with WorkerProcess(Launch(["/no/such/python"], "")) as worker:
        worker._process = worker._start()
        worker._process.wait()  # it has printed the reason
        with pytest.raises(WorkerLost, match="python could not be started: No such file or directory"):
            worker._answer({"do": "probe"}, 60)
