"""`make bench` and `make install` have the right Python commands; these tests print the commands and run none."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.harness_helpers import fake_command

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # `make test` sets these variables: with them, make is a sub-make, which prints its folder.
    command = ["env", "-u", "MAKEFLAGS", "-u", "MAKELEVEL", "-u", "MFLAGS", "make", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)


def bench(folder: Path, *settings: str) -> str:
    output = make(folder, "bench", "TARGET=cuda", "PY=echo RUN", "OUT=out", *settings).stdout
    return "\n".join(line for line in output.splitlines() if line.startswith("RUN -m bench run"))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
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
    assert {path.name for path in clone.glob(".venv-*.log")} == {".venv-vllm.log", ".venv-mamba.log"}


def test_an_environment_that_is_there_has_them_itself(clone: Path) -> None:
    assert bench(clone, "VENV=", "SUITES=all") == "RUN -m bench run all --out out --resume"


def test_a_folder_and_a_run_may_have_spaces(clone: Path) -> None:
    spaced = clone.rename(clone.with_name("my clone"))
    fake_command(spaced / ".venv" / "bin", "python", 'printf "[%s]" "$@"\necho')
    output = make(spaced, "bench", "TARGET=cuda", "OUT=out/my run").stdout
    assert "\n[-m][bench][run][--out][out/my run][--resume]" in output
    assert "\n[-m][bench][report][out/my run]\n" in output


@pytest.mark.parametrize(("status", "target"), [(0, "cuda"), (9, "cpu")])
def test_nvidia_smis_exit_status_decides_between_cuda_and_cpu(
    clone: Path, monkeypatch: pytest.MonkeyPatch, status: int, target: str
) -> None:
    fake_command(clone, "nvidia-smi", f"echo NVIDIA-SMI has failed\nexit {status}")
    monkeypatch.setenv("PATH", str(clone), prepend=":")
    output = make(clone, "--dry-run", "--always-make", "VENV=new", "install").stdout
    assert f"--requirement bench/requirements/{target}.txt" in output


def test_a_machine_without_a_gpu_keeps_the_packages_of_one_with_a_gpu(clone: Path) -> None:
    assert "Nothing to be done" in make(clone, "--dry-run", "TARGET=cpu", "install").stdout


def test_an_existing_environment_keeps_its_python(clone: Path) -> None:
    (clone / ".venv" / "bin").mkdir()
    (clone / ".venv" / "bin" / "python").touch()
    lines = make(clone, "--dry-run", "--always-make", "TARGET=cuda", "install").stdout.splitlines()
    assert re.match(".venv/bin/python -c .*exit.0 if v == 12 else 'make: this needs Python 3.12, and .venv", lines[0])
    assert lines[1] == ".venv/bin/python -m venv .venv"


def test_every_environment_installs_the_pinned_pip_first(clone: Path) -> None:
    stamps = [".venv-vllm/.installed", ".venv-mamba/.installed"]
    command = ["--dry-run", "--always-make", "TARGET=cuda", "NVCC=nvcc", "install", *stamps]
    lines = make(clone, *command).stdout.splitlines()
    after = [lines[i + 1].split(" ", 1)[1] for i, line in enumerate(lines) if " -m venv " in line]
    assert after == ["-m pip install --quiet --require-hashes --requirement bench/requirements/pip.txt"] * 3


@pytest.mark.parametrize("name", ["vllm", "mamba"])
def test_an_environment_that_fails_leaves_its_log_and_no_stamp(clone: Path, name: str) -> None:
    (clone / f".venv-{name}" / ".installed").unlink()
    settings = ["PYTHON=echo no venv$$PIP_CONSTRAINT:", "PIP_CONSTRAINT=/etc/pip/constraint.txt", "NVCC=nvcc"]
    done = make(clone, "bench", "TARGET=cuda", "PY=echo RUN", "OUT=out", *settings)
    assert "no venv: -m venv" in (clone / f".venv-{name}.log").read_text()
    assert not (clone / f".venv-{name}" / ".installed").exists()
    assert f"make: no {name}: its environment failed to install (log: .venv-{name}.log)" in done.stderr.splitlines()
    assert done.stdout.splitlines()[-1] == "RUN -m bench report out"
