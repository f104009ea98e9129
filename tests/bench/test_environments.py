"""Workers run in their system's .venv-NAME if it exists. systems.toml overrides this; errors in it are user errors."""

import sys
import tomllib
from pathlib import Path

import pytest

from bench.catalogue.systems import ADAPTERS
from bench.environments import launch_notes, worker_launches
from bench.errors import UserError
from bench.plan import plan
from bench.request import RunRequest


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "systems.toml"


def test_a_system_can_have_its_own_interpreter_or_container(file):
    file.write_text('["mamba/torch"]\npython = "/opt/mamba/bin/python"\nenv = { A = "1" }\n')
    launch = worker_launches()["mamba", "torch"]
    assert (launch.command, launch.env) == (["/opt/mamba/bin/python"], {"A": "1"})
    assert launch.entry.startswith("bench.systems.")
    assert worker_launches()["ttt-mlp", "torch"].command == [sys.executable]
    file.write_bytes(b'\xef\xbb\xbf["mamba/torch"]\ncommand = ["docker", "run", "-i", "image", "python"]\n')
    assert worker_launches()["mamba", "torch"].command == ["docker", "run", "-i", "image", "python"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mamba\n", "cannot be read as TOML"),
        ('["mamba/cuda"]\npython = "p"\n', r"system \[mamba/cuda\]: unknown; did you mean mamba/torch"),
        ('["mamba/torch"]\npyhton = "p"\n', r"mamba/torch.pyhton: Extra inputs are not permitted"),
        ("[mamba/torch]\n", "a name with a slash needs quotes"),
        ('["mamba/torch"]\npython = 3\n', "mamba/torch.python: Input should be a valid string, not 3"),
        ('["mamba/torch"]\ncommand = []\n', "mamba/torch.command: List should have at least 1 item"),
        ("mamba = 3\n", r"system \[mamba\]: unknown"),
    ],
)
def test_a_broken_file_is_one_sentence(file, text, message):
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        worker_launches()


def test_a_worker_on_a_cpu_sees_no_gpu():
    assert {launch.env["CUDA_VISIBLE_DEVICES"] for launch in worker_launches(device="cpu").values()} == {""}
    assert not any("CUDA_VISIBLE_DEVICES" in launch.env for launch in worker_launches(device="cuda").values())


def test_openmp_threads_of_a_worker_on_a_cpu_soon_sleep(file, monkeypatch):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert {launch.env["GOMP_SPINCOUNT"] for launch in worker_launches(device="cpu").values()} == {"30000"}
    assert not any("GOMP_SPINCOUNT" in launch.env for launch in worker_launches(device="cuda").values())
    assert plan(RunRequest(suites=("quick",), device="cpu")).worker_launches == worker_launches("cpu")
    file.write_text('["mamba/torch"]\nenv = { GOMP_SPINCOUNT = "7" }\n')
    assert worker_launches("cpu")["mamba", "torch"].env["GOMP_SPINCOUNT"] == "7"
    file.unlink()
    monkeypatch.setenv("GOMP_SPINCOUNT", "9")  # the user's own setting takes precedence
    assert not any("GOMP_SPINCOUNT" in launch.env for launch in worker_launches(device="cpu").values())


@pytest.mark.parametrize("exists", [False, True])
def test_cases_without_an_interpreter_are_skipped(file, exists):
    file.write_text('["mamba/torch"]\npython = ".venv-vllm/bin/python"\n')
    if exists:
        Path(".venv-vllm/bin").mkdir(parents=True)
        Path(".venv-vllm/bin/python").touch()
    work = plan(RunRequest(suites=("quick",), systems="mamba/torch,ttt-mlp/torch", device="cpu"))
    [first, other] = [job.cases[0] for job in sorted(work.jobs, key=lambda job: job.pair)]
    why = "" if exists else "its interpreter does not exist; recreate it: `make baselines`"
    assert (work.skip(first, []), work.skip(other, [])) == (why, "")
    assert work.notes[1:] == ([] if exists else [f"no mamba/torch: {why} (.venv-vllm/bin/python)"])


@pytest.mark.parametrize("name", ["vllm", "mamba"])
def test_an_environment_that_exists_starts_its_systems(file, name):
    assert {launch.command[0] for launch in worker_launches().values()} == {sys.executable}
    python = Path(f".venv-{name}/bin/python")
    python.parent.mkdir(parents=True)
    python.symlink_to("missing")  # a broken link is reported, not replaced by this interpreter
    own = [each.label for each in ADAPTERS if each.install == f"make venv-{name}"]
    commands = {"/".join(pair): launch.command for pair, launch in worker_launches().items()}
    assert commands == {each.label: [str(python) if each.label in own else sys.executable] for each in ADAPTERS}
    first, second, *_ = own
    file.write_text(f'["{first}"]\nenv = {{ A = "1" }}\n["{second}"]\npython = "p"\n')
    assert [worker_launches()[*label.split("/")].command for label in (first, second)] == [[str(python)], ["p"]]
    sentence = f"systems.toml in this folder configures {first}, {second}; {python} runs {first}"
    assert launch_notes((first, second, "ttt-mlp/torch")) == [sentence]


def test_each_environment_has_its_own_lock(monkeypatch):
    monkeypatch.setattr("bench.environments.visible_gpus", lambda: ["0"])
    found = {pair: launch.locked for pair, launch in worker_launches().items()}
    own, vllm, mamba = (found[pair] for pair in (("ttt-mlp", "triton"), ("ttt-mlp", "vllm"), ("mamba", "mamba-ssm")))
    assert "vllm" in vllm.keys() - own.keys()
    assert vllm["numpy"] != own["numpy"]
    assert mamba == own | {name: mamba[name] for name in mamba.keys() - own.keys()}
    assert "mamba-ssm" in mamba.keys() - own.keys()
    monkeypatch.setattr("bench.environments.visible_gpus", list)
    assert "nvidia-cublas" in own.keys() - worker_launches()["ttt-mlp", "triton"].locked.keys()


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_the_packages_of_the_tests_are_locked_for_either_machine(target):
    root = Path(__file__).parents[2]
    wanted = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    locked = {line.removesuffix(" \\") for line in (root / f"bench/requirements/{target}.txt").read_text().splitlines()}
    assert set(wanted) <= locked
