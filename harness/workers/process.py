"""Start, ask and end the worker of a system, which may crash, hang, lie or be killed at any moment."""

import fcntl
import itertools
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.measure.environment import COMMIT_VARIABLE, commit_and_dirty, marked_commit
from harness.measure.variables import child_environment
from harness.schema.reason import last_words, sentence
from harness.workers import warden
from harness.workers.machine_load import count_ended, seconds_until_now
from harness.workers.protocol import Probe, WorkerLost, answer_in, line_of, probe_of

OUTPUT_LIMIT = 64 << 20  # bytes that a case may print before the worker's log is emptied, or answer
_STARTS = 2  # tries to start a worker
_STOP_S = 10.0  # for a worker that was told to stop; engines take a while to shut down
_KILL_S = 25.0
_POLL_S = 0.1
_TAIL_BYTES = 1 << 16
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Launch:
    """How to start the worker of a system: `*command -m harness.worker entry`, with `env` added to ours.

    command: an interpreter, or what runs one elsewhere, such as ["docker", "run", "-i", IMAGE, "python"].
    entry: MODULE:ATTRIBUTE of the adapter. module: what answers, `harness.worker`. root: the checkout whose code the
    worker runs, where it is not the one that runs this.
    """

    command: Sequence[str] = (sys.executable,)
    entry: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    module: str = "harness.worker"
    root: Path | None = None


@dataclass(frozen=True)
class Limits:
    """Seconds: for one case, its model and its checks included; for the start of a worker."""

    case_s: float = 600.0
    start_s: float = 300.0  # importing an engine from a cold disk takes minutes


@dataclass(frozen=True)
class Place:
    """Where workers run: what is added to their environment and, of a GPU, what their records must say of it.

    name: as a display calls it, "" where there is only one. device_id: of its GPU, "" where it is not known.
    is_there: whether the GPU still answers, asked after a case that did not succeed.
    """

    name: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    device_id: str = ""
    is_there: Callable[[], bool] = lambda: True

    def refuse_another_gpu(self, environment: Mapping[str, Any]) -> None:
        """ValueError where an environment is of another GPU than this place's."""
        found = (environment.get("gpu") or {}).get("device_id")
        if self.device_id and found and found != self.device_id:
            raise ValueError(f"it ran on the GPU {found}, not on {self.device_id}")


HERE = Place()


class Stopped(KeyboardInterrupt):
    """The run ends: for threads that wait for a worker, as Ctrl-C reaches only the main one."""


class PlaceLost(Exception):
    """The GPU of a place is gone; what it was measuring has no record and can be measured elsewhere."""


class WorkerProcess:
    """At most one worker of a system at a time: started when it is needed, killed when it is not to be trusted.

    It runs behind a warden, which kills whatever the worker started when either of them ends. The `with` block ends it.
    start_s: how long a worker may take to start. stopped: whether the run is to end, asked while an answer is waited
    for. found: what the last worker that was started found, None before the first.
    """

    def __init__(
        self, launch: Launch, start_s: float = Limits.start_s, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self.launch = launch
        self.found: Probe | None = None
        self.ending_words = ""  # what the last worker that was told to end said on stderr
        self._start_s, self._stopped = start_s, stopped
        self._ids = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        self.kill()

    def ready(self) -> Probe:
        """What a worker found, which is here if it can run the system. A system once refused is not tried again."""
        if self._process is not None and not self._is_quiet():
            self.kill()  # it died or spoke out of turn after its last case
        if self._process is None and (self.found is None or self.found.available):
            for _ in range(_STARTS):
                self.found = self.probe()
                if self.found.status != "unstarted":
                    break
        assert self.found is not None
        if not self.found.available:
            self.kill()
        return self.found

    def probe(self, entry: str = "") -> Probe:
        """What a worker finds of its own system or that of `entry`; it is killed where it finds nothing."""
        try:
            found = probe_of(self._answer({"do": "probe"} | ({"entry": entry} if entry else {}), self._start_s))
        except WorkerLost as lost:
            found = Probe("unstarted", f"the system could not be started: {lost.reason}")
        if found.status == "unstarted":
            self.kill()
        return found

    def ask(self, request: Mapping[str, Any], limit_s: float, *, last: bool = False) -> dict[str, Any]:
        """The answer to a "case", with the seconds it took as "waited_s"; WorkerLost where there is none.

        A worker that asks for a new one gets it once. One that is lost or calls itself unhealthy is killed, the
        latter not where this is the last that it is asked, so that it may end by itself. Stopped where the run is to
        end.
        """
        try:
            for _ in range(2):
                found = self.ready()
                if not found.available:
                    raise WorkerLost(found.status, found.reason)
                start = time.monotonic()
                answer = self._answer(request, limit_s)
                if not answer.get("fresh"):
                    break
                self.stop()
            else:
                raise WorkerLost("failed", "a new worker of the system asked for another one")
        except WorkerLost:
            self.kill()
            raise
        if not answer.get("healthy") and not last:
            self.kill()
        return {**answer, "waited_s": time.monotonic() - start}

    def _start(self) -> subprocess.Popen[bytes]:
        self._used_s = 0.0  # of processors, until it was told to end
        self._buffer = bytearray()
        try:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `kill`
        except OSError as error:
            raise WorkerLost("failed", f"no temporary file could be made: {error.strerror or error}") from None
        # `open` sets no O_APPEND on a temporary file; without it a write after a truncation restores the old length.
        fcntl.fcntl(self._stderr, fcntl.F_SETFL, fcntl.fcntl(self._stderr, fcntl.F_GETFL) | os.O_APPEND)
        launch = self.launch
        command = [*launch.command, "-m", launch.module, *([launch.entry] if launch.entry else [])]
        guard = [sys.executable, "-I", "-S", warden.__file__] if sys.platform == "linux" else []
        try:
            return subprocess.Popen(
                [*guard, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=_environment(launch),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._stderr.close()
            why = getattr(error, "strerror", None) or error
            raise WorkerLost("failed", sentence(f"{launch.command[0]} could not be started: {why}")) from None

    def _answer(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer of the worker, which is started where there is none.

        WorkerLost if it dies, answers something else or gives no answer within `limit_s` seconds.
        """
        process = self._process = self._process or self._start()
        number = next(self._ids)
        deadline = time.monotonic() + limit_s
        self._send(process, {"id": number, **request}, deadline)
        while True:
            answer = answer_in(self._buffer, number)
            if answer is not None:
                self._empty_log()  # now, as a command that cannot be started has said so before it is asked
                return answer
            if self._stopped():
                raise Stopped
            if time.monotonic() >= deadline:
                raise WorkerLost("timeout", self._with_last_words(f"no answer within {limit_s:g} s"))
            self._receive(process, deadline)

    def _is_quiet(self) -> bool:
        """Whether the worker lives and has said nothing since its last answer."""
        assert self._process is not None
        assert self._process.stdout is not None
        readable = _is_ready(self._process.stdout.fileno(), select.POLLIN, 0.0)
        return not self._buffer and not readable and self._process.poll() is None

    def stop(self, limit_s: float = _STOP_S) -> int | None:
        """Let the worker end, with time to clean up; its exit status, None where it had to be killed."""
        if (process := self._process) is None:
            return 0
        status = None
        self._see_seconds(process)
        with suppress(WorkerLost):  # it has ended already, or is about to
            self._send(process, {"id": next(self._ids), "do": "stop"}, time.monotonic() + _STOP_S)
        deadline = time.monotonic() + limit_s
        while status is None and time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(_POLL_S)
            self._bound_log()
        self.ending_words = self._last_words()
        self.kill()
        return status

    def kill(self) -> None:
        """End the worker and whatever it started, and wait until its memory is free."""
        if (process := self._process) is None:
            return
        self._see_seconds(process)
        if sys.platform == "linux":
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                process.terminate()  # the warden ends the rest
                process.wait(_KILL_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        count_ended(self._used_s)
        self._process = None
        for pipe in (process.stdin, process.stdout, self._stderr):
            with suppress(OSError):  # what was not yet written to a dead worker
                if pipe is not None:
                    pipe.close()

    def _see_seconds(self, process: subprocess.Popen[bytes]) -> None:
        """While its processes are there; where its warden is dead, nothing comes before the end of the rest."""
        if sys.platform == "linux" and process.poll() is None:
            self._used_s = seconds_until_now(process.pid)

    def _empty_log(self) -> None:
        os.ftruncate(self._stderr.fileno(), 0)

    def _bound_log(self) -> None:
        """Empty a log that is longer than a worker may print."""
        if os.fstat(self._stderr.fileno()).st_size > OUTPUT_LIMIT:
            self._empty_log()

    def _send(self, process: subprocess.Popen[bytes], request: Mapping[str, Any], deadline: float) -> None:
        """Write a request; a worker that does not read it is not waited for beyond the deadline."""
        assert process.stdin is not None
        pipe, data = process.stdin.fileno(), line_of(request)
        os.set_blocking(pipe, False)
        try:
            while data and time.monotonic() < deadline:
                data = data[os.write(pipe, data) :] if _is_ready(pipe, select.POLLOUT, _POLL_S) else data
        except OSError:
            raise self._death(process) from None

    def _receive(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        """Wait for more of the answer, at most until the deadline or for a tenth of a second."""
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        wait_s = max(0.0, min(_POLL_S, deadline - time.monotonic()))
        readable = _is_ready(pipe, select.POLLIN, wait_s)
        data = os.read(pipe, 1 << 16) if readable else b""
        self._buffer += data
        if len(self._buffer) > OUTPUT_LIMIT:
            raise WorkerLost("failed", f"the worker's answer is longer than {OUTPUT_LIMIT >> 20} MB")
        self._bound_log()
        # A child of the worker may hold the pipe open after its death, so its end alone is not waited for.
        if not data and (readable or process.poll() is not None):
            raise self._death(process)

    def _death(self, process: subprocess.Popen[bytes]) -> WorkerLost:
        try:
            code = process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            return WorkerLost("failed", self._with_last_words("the worker closed its output"))
        if code == warden.NOT_STARTED:
            return WorkerLost("failed", self._last_words() or "the worker could not be started")
        # The warden, shells and container clients report a signal as 128 + its number.
        number = -code if code < 0 else code - 128 if code > 128 else 0
        if number in {each.value for each in signal.Signals}:
            name = signal.Signals(number).name
            hint = " (by hand, or by the system when memory ended)" if name == "SIGKILL" else ""
            return WorkerLost("killed", self._with_last_words(f"the worker was killed by {name}{hint}"))
        return WorkerLost("failed", self._with_last_words(f"the worker exited with status {code}"))

    def _with_last_words(self, what: str) -> str:
        words = self._last_words()
        return sentence(f"{what}; its last words: {words}" if words else what)

    def _last_words(self) -> str:
        descriptor = self._stderr.fileno()
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        return last_words(tail.decode(errors="replace"))


def _is_ready(descriptor: int, event: int, wait_s: float) -> bool:
    """Whether it can be read or written, or is closed at its other end, within that time."""
    waiting = select.poll()
    waiting.register(descriptor, event)
    return bool(waiting.poll(wait_s * 1e3))


def _environment(launch: Launch) -> dict[str, str]:
    """Ours and the launch's, with the commit and the place of the code for workers that cannot find them.

    An installed package stays where it is: its folder holds packages that other interpreters must not see. The
    current folder is not searched for modules: what lies there must not stand in for an installed package.
    """
    commit = marked_commit(*commit_and_dirty(launch.root))
    env = child_environment({COMMIT_VARIABLE: commit, "PYTHONSAFEPATH": "1", **launch.env})
    return env | path_of_code(env, launch.root)


def path_of_code(env: Mapping[str, str], root: Path | None = None) -> dict[str, str]:
    """PYTHONPATH, for an interpreter that is to find the code in `root`, or else this one where it is not installed."""
    root = root or (None if _ROOT.name in ("site-packages", "dist-packages") else _ROOT)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH", "")]))} if root else {}
