"""Workers report whether systems can run; systems with equal command, root and environment share a worker."""

import os
from pathlib import Path

import pytest
from harness_helpers import launch

from harness.workers.process import Launch, probe


def test_probe() -> None:
    entries = ["Fake", "Unavailable", "Nothing", "OneKindPerProcess"]
    found = probe([launch(f"fake_systems:{entry}") for entry in entries])
    assert [each.available for each in found] == [True, False, False, True]
    assert [each.status for each in found[1:3]] == ["skipped", "unstarted"]
    assert found[0].versions == {"pytest": pytest.__version__}
    assert found[0].environment["software"]["pytest"] == pytest.__version__
    assert found[1].reason == "needs a GPU of the next century"
    assert "the system could not be started" in found[2].reason


def test_systems_of_one_interpreter_share_a_process(tmp_path: Path) -> None:
    note = str(tmp_path / "starts")
    found = probe([launch("fake_systems:LogsItsPid", FAKE_NOTE=note) for _ in range(3)])
    assert [each.available for each in found] == [True] * 3
    assert len(set(Path(note).read_text().split())) == 1


def test_a_hanging_probe_does_not_affect_others() -> None:
    hung, well = launch("fake_systems:HangsAtProbe"), launch(FAKE_NOTE="another environment")
    found = probe([hung, well], limit_s=10.0)
    assert [each.available for each in found] == [False, True]
    assert "no answer within 10 s" in found[0].reason


def test_a_worker_that_answers_otherwise_cannot_run() -> None:
    (found,) = probe([Launch(["sh", "-c", "echo '{}'; cat"])])
    assert (found.available, found.status) == (False, "unstarted")
    assert "the worker's answer is unusable" in found.reason


def test_ctrl_c_ends_a_hanging_probe() -> None:
    hangs = Launch(["sh", "-c", f"kill -INT {os.getpid()}; sleep 600"])
    with pytest.raises(KeyboardInterrupt):
        probe([hangs], limit_s=3600.0)
