import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest
from fake_systems import Fake
from harness_helpers import QUICK, ROOT, case, launch

from harness.schema.record import Record
from harness.worker import load


def talk(text: str, entry: str = "fake_systems:Fake") -> subprocess.CompletedProcess:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), launch().env["PYTHONPATH"]])}
    command = [sys.executable, "-m", "harness.worker", *([entry] if entry else [])]
    return subprocess.run(command, input=text, capture_output=True, text=True, env=env)


def lines(*requests: dict[str, Any]) -> str:
    return "".join(json.dumps(request) + "\n" for request in requests)


def test_the_protocol_on_its_own() -> None:
    request = {"do": "case", "case": case("print").to_dict(), "policy": asdict(QUICK), "mode": "measure"}
    done = talk(lines({"do": "probe"}, request))
    probe, measured = (json.loads(line) for line in done.stdout.splitlines())
    assert (probe["reason"], probe["versions"]) == ("", {"pytest": pytest.__version__})
    assert Record.from_json(json.dumps(measured["record"])).status == "ok"
    assert measured["healthy"] is True
    assert "nor this" in done.stderr
    assert "RuntimeWarning" not in done.stderr
    assert done.returncode == 0


def test_a_worker_without_a_system_probes_others() -> None:
    named = {"do": "probe", "entry": "fake_systems:Unavailable"}
    done = talk(lines(named, {"do": "probe"}), entry="")
    (found,) = (json.loads(line) for line in done.stdout.splitlines())
    assert found["reason"] == "needs a GPU of the next century"
    assert "no system was named" in done.stderr


def test_load() -> None:
    assert isinstance(load("fake_systems:Fake"), Fake)
    assert load("pathlib:PurePath:argument").name == "argument"
    for entry in ("fake_systems", ":Fake", "fake_systems:"):
        with pytest.raises(ValueError, match="must be MODULE:ATTRIBUTE"):
            load(entry)
