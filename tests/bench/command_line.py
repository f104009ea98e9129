"""Call the command line in a new process, as users do, or in this process, which is faster."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from bench import cli
from harness.measure.environment import commit_and_dirty

ROOT = Path(__file__).resolve().parents[2]
Done = subprocess.CompletedProcess[str]
# One small case on the CPU
SMALL = ["--systems", "transformer", "--batch", "1", "--context", "32", "--device", "cpu", "--budget", "0.05"]


def ttt_bench(*arguments: object, cwd: Path, env: Mapping[str, str] = os.environ) -> Done:
    """Run `ttt-bench` in a new process, which also tests a command's imports. Most tests use the faster `called`."""
    paths = os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH"))))
    environment = {**env, "PYTHONPATH": paths, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "bench", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)


def called(*arguments: object, cwd: Path, env: Mapping[str, str] = os.environ) -> Done:
    words, out, err = ["ttt-bench", *map(str, arguments)], io.StringIO(), io.StringIO()
    environment = {**env, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "argv", words),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = _status_of_main()
    commit_and_dirty.cache_clear()  # `env` may have hidden git, so the cached result may be wrong
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def _status_of_main() -> int:
    try:
        cli.main()
    except SystemExit as end:
        if isinstance(end.code, str):  # as the interpreter does at exit
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    raise AssertionError("the command line did not end by an exit status")


def one_sentence(done: Done, *words: str) -> str:
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("ttt-bench: ")
    assert not [word for word in words if word not in line], line
    return line
