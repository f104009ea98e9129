"""Each engine has a model folder of its own with a stable name; a folder left by a killed process is reused."""

import signal
import subprocess
import sys

import pytest

from bench.systems.vllm.model_folder import ModelFolder

HOLD = """
import sys, time
from pathlib import Path
from bench.systems.vllm.model_folder import ModelFolder
folder = ModelFolder(Path(sys.argv[1]))
(folder.path / "model.safetensors").write_text("weights")
print(folder.path.name, flush=True)
time.sleep(60)
"""


def test_the_next_folder_has_the_name_of_the_one_before_and_is_empty(tmp_path):
    folder = ModelFolder(tmp_path)
    path = folder.path
    (path / "inner").mkdir()
    (path / "inner" / "config.json").write_text("{}")
    (path / "link").symlink_to(tmp_path)
    assert path.stat().st_mode & 0o077 == 0
    del folder
    assert list(path.iterdir()) == []
    assert ModelFolder(tmp_path).path == path


def test_a_link_with_the_folders_name_is_not_followed(tmp_path):
    folder = ModelFolder(tmp_path)
    path, own = folder.path, tmp_path / "own"
    del folder
    own.mkdir()
    (own / "letter").touch()
    path.rmdir()
    path.symlink_to(own)
    with pytest.raises(OSError, match=path.name):
        ModelFolder(tmp_path)
    assert (own / "letter").exists()


def test_each_gpu_has_a_name(tmp_path, monkeypatch):
    paths = []
    for gpu in ("0", "1", "GPU-1a/2b"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpu)
        paths.append(ModelFolder(tmp_path).path)
    assert [path.name.rpartition("-vllm-")[2] for path in paths] == ["0", "1", "GPU-1a-2b"]


def test_two_engines_have_two_folders_and_a_killed_ones_is_taken_over(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        held = tmp_path / other.stdout.readline().strip()
        second = ModelFolder(tmp_path)
        assert (second.path.parent, second.path != held) == (tmp_path, True)
        assert (held / "model.safetensors").read_text() == "weights"
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
        other.stdout.close()
    again = ModelFolder(tmp_path)
    assert (again.path, list(held.iterdir())) == (held, [])
