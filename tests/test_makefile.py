"""`make bench` on a machine with a GPU, with an interpreter that says what it is asked to run and runs nothing."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def bench(folder: Path, *settings: str) -> str:
    """What `make bench` runs in `folder`."""
    command = ["make", "bench", "TARGET=cuda", "PY=echo RUN", "OUT=out", *settings]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith("RUN -m bench run"))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A fresh clone, but that its environments are there already."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "bench" / "requirements", tmp_path / "bench" / "requirements")
    for stamp in (".venv/.installed-cuda", ".venv-vllm/.installed", ".venv-mamba/.installed"):
        path = tmp_path / stamp
        path.parent.mkdir()
        path.touch()
    return tmp_path


def test_the_first_run_has_the_baselines(clone: Path) -> None:
    assert bench(clone) == "RUN -m bench run --out out --resume"
    assert (clone / "systems.toml").read_text() == (ROOT / "bench/requirements/systems.toml").read_text()


def test_an_environment_that_is_there_has_them_itself(clone: Path) -> None:
    assert bench(clone, "VENV=", "SUITES=all") == "RUN -m bench run all --out out --resume"
