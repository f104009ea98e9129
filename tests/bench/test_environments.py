"""A systems.toml says which interpreter runs a system where it is asked for, and a broken one is explained."""

import sys
import tomllib
from pathlib import Path

import pytest

from bench.catalogue.systems import ADAPTERS
from bench.commands.planning import plan
from bench.environments import launches
from bench.errors import UserError
from bench.selection import Asked


def write(tmp_path, text):
    file = tmp_path / "systems.toml"
    file.write_text(text)
    return file


def test_every_system_runs_in_this_interpreter_unless_a_file_is_named(tmp_path, monkeypatch):
    write(tmp_path, '["mamba/torch"]\npython = "/opt/mamba/bin/python"\n')  # a file that lies there is not asked for
    monkeypatch.chdir(tmp_path)
    assert {launch.command[0] for launch in launches().values()} == {sys.executable}
    assert set(launches()) == {(each.system, each.backend) for each in ADAPTERS}


def test_an_interpreter_of_its_own(tmp_path):
    file = write(tmp_path, '["mamba/torch"]\npython = "/opt/mamba/bin/python"\nenv = { A = "1" }\n')
    launch = launches(file)["mamba", "torch"]
    assert (launch.command, launch.env) == (["/opt/mamba/bin/python"], {"A": "1"})
    assert launch.entry.startswith("bench.systems.")
    assert launches(file)["ttt-mlp", "torch"].command == [sys.executable]


def test_a_byte_order_mark_before_it_is_passed_over(tmp_path):
    (tmp_path / "systems.toml").write_bytes(b'\xef\xbb\xbf["mamba/torch"]\npython = "/opt/python"\n')
    assert launches(tmp_path / "systems.toml")["mamba", "torch"].command == ["/opt/python"]


def test_a_container_command(tmp_path):
    file = write(tmp_path, '["mamba/torch"]\ncommand = ["docker", "run", "-i", "image", "python"]\n')
    assert launches(file)["mamba", "torch"].command == ["docker", "run", "-i", "image", "python"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mamba\n", "cannot be read as TOML"),
        ('["mamba/cuda"]\npython = "p"\n', r"system \[mamba/cuda\]: unknown; did you mean mamba/torch"),
        ('["mamba/torch"]\npyhton = "p"\n', r"\[mamba/torch\] pyhton: unknown; did you mean python"),
        ("[mamba/torch]\n", "a name with a slash needs quotes"),
        ('["mamba/torch"]\npython = 3\n', r"\[mamba/torch\] python"),
        ('["mamba/torch"]\npython = "p"\ncommand = ["c"]\n', "both python and command"),
        ('["mamba/torch"]\ncommand = []\n', "command is empty"),
        ("mamba = 3\n", r"system \[mamba\]: unknown"),
    ],
)
def test_a_broken_file_is_one_sentence(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        launches(write(tmp_path, text))


def test_a_worker_on_a_cpu_sees_no_gpu():
    """Or it would measure on the GPU of this machine, and call it a CPU's."""
    assert {launch.env["CUDA_VISIBLE_DEVICES"] for launch in launches(device="cpu").values()} == {""}
    assert not any("CUDA_VISIBLE_DEVICES" in launch.env for launch in launches(device="cuda").values())


def test_the_threads_of_a_worker_on_a_cpu_soon_wait_asleep(tmp_path, monkeypatch):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert {launch.env["GOMP_SPINCOUNT"] for launch in launches(device="cpu").values()} == {"30000"}
    assert not any("GOMP_SPINCOUNT" in launch.env for launch in launches(device="cuda").values())
    own = write(tmp_path, '["mamba/torch"]\nenv = { GOMP_SPINCOUNT = "7" }\n')
    assert launches(own, "cpu")["mamba", "torch"].env["GOMP_SPINCOUNT"] == "7"
    assert plan(Asked(("quick",), device="cpu")).launches == launches(device="cpu")
    monkeypatch.setenv("GOMP_SPINCOUNT", "9")  # what the user set holds
    assert not any("GOMP_SPINCOUNT" in launch.env for launch in launches(device="cpu").values())


def test_a_file_that_is_named_must_exist(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        launches(tmp_path / "none.toml")
    with pytest.raises(UserError, match="Is a directory"):
        launches(tmp_path)


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "#" * ((1 << 20) + 1)], ids=["deep", "huge"])
def test_a_file_that_is_too_much_is_one_sentence(tmp_path, text):
    with pytest.raises(UserError, match=r"cannot be read as TOML|Larger than 1 MB"):
        launches(write(tmp_path, text))


def test_what_make_baselines_writes_names_systems_that_exist():
    file = Path(__file__).parents[2] / "bench/requirements/systems.toml"
    found = launches(file)
    assert found["transformer", "vllm"].command == [".venv-vllm/bin/python"]
    own = {pair for pair, launch in found.items() if launch.command != [sys.executable]}
    assert own == {(each.system, each.backend) for each in ADAPTERS if each.install != "make bench"}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_what_the_tests_need_is_locked_for_either_machine(target):
    root = Path(__file__).parents[2]
    wanted = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    locked = {line.removesuffix(" \\") for line in (root / f"bench/requirements/{target}.txt").read_text().splitlines()}
    assert set(wanted) <= locked
