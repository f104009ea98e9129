"""How does the parent talk to a worker that may crash, hang or be killed at any moment?"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.environment import COMMIT_VARIABLE, commit_and_dirty
from harness.reason import last_words, sentence

_STOP_S = 10.0  # for a worker that was told to stop; engines take a while to shut down
_POLL_S = 0.5
_TAIL_BYTES = 1 << 16
_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Launch:
    """How to start the worker of a system: `*command -m harness.worker entry`, with `env` added to ours.

    command: an interpreter, or what runs one elsewhere, such as ["docker", "run", "-i", IMAGE, "python"].
    entry: MODULE:ATTRIBUTE of the adapter.
    """

    command: Sequence[str] = (sys.executable,)
    entry: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


class WorkerLost(Exception):
    """A worker that gave no answer; `status` and `reason` are those of the record of its case."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class WorkerProcess:
    """A running worker. It is the leader of its own process group, which is killed as a whole."""

    def __init__(self, launch: Launch) -> None:
        # Append mode, so that it can be emptied between cases under the writer's feet.
        self._stderr = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed by `kill`
        self._buffer = b""
        command = [*launch.command, "-m", "harness.worker", launch.entry]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=_environment(launch),
                start_new_session=True,
            )
        except OSError as error:
            self._stderr.close()
            why = sentence(f"{launch.command[0]} could not be started: {error.strerror or error}")
            raise WorkerLost("failed", why) from None

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The worker's answer; WorkerLost if it dies or is not there within `limit_s` seconds."""
        os.ftruncate(self._stderr.fileno(), 0)
        self._send(request)
        deadline = time.monotonic() + limit_s
        while True:
            answer = self._next_answer()
            if answer is not None:
                return answer
            if time.monotonic() >= deadline:
                raise WorkerLost("timeout", self._with_last_words(f"no answer within {limit_s:g} s"))
            self._receive(deadline)

    def stop(self) -> None:
        """Ask the worker to end, then make it."""
        with suppress(WorkerLost, subprocess.TimeoutExpired):
            self._send({"do": "stop"})
            self._process.wait(_STOP_S)
        self.kill()

    def kill(self) -> None:
        """End the worker and whatever it started, and wait until its memory is free."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            with suppress(OSError):  # what was not yet written to a dead worker
                if pipe is not None:
                    pipe.close()

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._death() from None

    def _receive(self, deadline: float) -> None:
        """Wait for more of the answer, at most until the deadline or for half a second."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        wait_s = max(0.0, min(_POLL_S, deadline - time.monotonic()))
        readable, _, _ = select.select([pipe], [], [], wait_s)
        data = os.read(pipe, 1 << 16) if readable else b""
        self._buffer += data
        # A child of the worker may hold the pipe open after its death, so its end alone is not waited for.
        if not data and (readable or self._process.poll() is not None):
            raise self._death()

    def _next_answer(self) -> dict[str, Any] | None:
        while b"\n" in self._buffer:
            line, self._buffer = self._buffer.split(b"\n", 1)
            answer = _parse(line)
            if answer is not None:
                return answer
        return None

    def _death(self) -> WorkerLost:
        try:
            code = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            return WorkerLost("failed", self._with_last_words("the worker closed its output"))
        # Shells and container clients report a signal as 128 + its number.
        number = -code if code < 0 else code - 128 if code > 128 else 0
        if number in {each.value for each in signal.Signals}:
            name = signal.Signals(number).name
            hint = " (by hand, or by the system when memory ended)" if name == "SIGKILL" else ""
            return WorkerLost("killed", self._with_last_words(f"the worker was killed by {name}{hint}"))
        return WorkerLost("failed", self._with_last_words(f"the worker exited with status {code}"))

    def _with_last_words(self, what: str) -> str:
        descriptor = self._stderr.fileno()
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        words = last_words(tail.decode(errors="replace"))
        return sentence(f"{what}; its last words: {words}" if words else what)


def _environment(launch: Launch) -> dict[str, str]:
    """Ours and the launch's, with the commit and the place of this package for workers that cannot find them.

    An installed package stays where it is: its folder holds packages that other interpreters must not see.
    """
    commit, dirty = commit_and_dirty()
    env = {**os.environ, COMMIT_VARIABLE: commit + ("-dirty" if dirty else ""), **launch.env}
    if _ROOT.name not in ("site-packages", "dist-packages"):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), env.get("PYTHONPATH", "")]))
    return env


def _parse(line: bytes) -> dict[str, Any] | None:
    """An answer; None for what a container's client or an interpreter's start-up printed."""
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and {"record", "available", "fresh"} & answer.keys() else None
