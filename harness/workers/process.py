"""Start a system's worker process, send requests, and end it, even if it hangs."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.measure.environment import COMMIT_VARIABLE, ROOT, child_environment, commit_and_dirty, device_id_of
from harness.measure.system import NeedsFreshProcess
from harness.schema.case import Case, Mode
from harness.schema.policy import Policy
from harness.schema.reason import error_line, of_exception, sentence
from harness.schema.record import Record
from harness.schema.run_file import RunError
from harness.workers import supervisor
from harness.workers.machine_load import cpu_seconds, load_between
from harness.workers.protocol import Probe, WorkerLost, encode, pop_answer

_STOP_S = 10.0  # seconds until a stopping worker is killed; engines shut down slowly
_KILL_S = 25.0
_POLL_S = 0.1
_PIPE_BYTES = 1 << 20  # a pipe holds no more: 64 kB, or 1 MB on systems with large pages
_TAIL_BYTES = 1 << 16  # last bytes of stderr that are stored


@dataclass(frozen=True)
class Launch:
    """How to start a system's worker process: `COMMAND -m harness.worker ENTRY`.

    command: a Python interpreter, or a wrapper such as ["docker", "run", "-i", IMAGE, "python"].
    entry: the system's adapter as MODULE:ATTRIBUTE[:ARGUMENT...]; "" if each request names an adapter.
    env: additional environment variables.
    root: the checkout with the worker's code; None for this checkout.
    locked: {package: version} of the lock file; records list the packages whose version differs.
    """

    command: Sequence[str] = (sys.executable,)
    entry: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    root: Path | None = None
    locked: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds: for one case (with build and checks) and for a worker's start."""

    case_s: float = 600.0
    start_s: float = 300.0  # importing an engine from a cold disk takes minutes


@dataclass(frozen=True)
class GpuSlot:
    """A GPU or the CPU, on which one worker at a time runs.

    name: shown to users, such as "GPU 0"; "" for the default device.
    env: environment variables that select the GPU for workers.
    device_id: hash of the GPU's UUID; "" if unknown.
    is_there: returns whether the GPU still responds.
    """

    name: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    device_id: str = ""
    is_there: Callable[[], bool] = lambda: True

    def refuse_lost_gpu(self) -> None:
        """Raise RunError if the slot's GPU does not respond any more."""
        if not self.is_there():
            name = self.name or "the GPU"
            raise RunError(f"{name} does not respond any more; finished cases are stored; continue with --resume")


DEFAULT_SLOT = GpuSlot()


class WorkerProcess:
    """A system's worker process, started by the first request and ended with the `with` block.

    If a worker gives no usable answer to a case or reports itself unhealthy, the next case starts a new worker.
    If the system cannot run here or its worker does not start, `run_case` raises WorkerLost for each case.
    slot: the device of the worker. start_s: limit of its start in seconds. stopped: returns whether the run should end.
    last_probe: the last `Probe` by `ready` or `run_case`; None before.
    """

    def __init__(
        self,
        launch: Launch,
        slot: GpuSlot = DEFAULT_SLOT,
        start_s: float = Limits.start_s,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.launch, self._slot = replace(launch, env={**launch.env, **slot.env}), slot
        self.last_probe: Probe | None = None
        self._start_s, self._stopped, self._used = start_s, stopped, False
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.kill() if kind else self.stop()

    def ready(self) -> Probe:
        """Start and probe a worker if none runs and no probe has failed; return the last probe."""
        if self._process is not None and self._process.poll() is not None:
            self.kill()  # it died after its last case
        if self._process is None and (self.last_probe is None or self.last_probe.available):
            self.last_probe = self.probe()
        assert self.last_probe is not None
        return self.last_probe

    def probe(self, entry: str = "") -> Probe:
        """Ask the worker whether the system can run; start the worker if none runs.

        entry: the adapter to probe as MODULE:ATTRIBUTE[:ARGUMENT...]; "" for the worker's own adapter.
        If there is no usable answer, kill the worker and return a probe with status "unstarted".
        """
        try:
            with self._killed_if_lost():
                answer = self._answer({"do": "probe"} | ({"entry": entry} if entry else {}), self._start_s)
                return Probe(answer["reason"], answer["versions"], answer["environment"])
        except WorkerLost as lost:
            return Probe(f"the system could not be started: {lost}", status="unstarted")

    def run_case(
        self,
        case: Case,
        policy: Policy,
        mode: Mode,
        limit_s: float,
        *,
        profiler: Mapping[str, Any] | None = None,
        last: bool = False,
    ) -> tuple[Record, dict[str, Any]]:
        """Run a case in the worker; return (record, fields of a `Profile`).

        The record's environment includes the load of the machine during the case.
        profiler: for mode "profile", {"tool": name of the profiler, for Kineto also "keep": path for its trace}.
        last: whether this is the last request; if so, a worker that reports itself unhealthy is not killed.
        Raises WorkerLost if the system cannot run here or gives no usable answer within `limit_s` seconds.
        Raises NeedsFreshProcess if only a new worker can run the case; this worker can still run others.
        Raises KeyboardInterrupt if the run should end.
        """
        request = {"do": "case", "case": case.to_dict(), "policy": asdict(policy), "mode": mode, "profiler": profiler}
        with self._killed_if_lost():
            found = self.ready()
            if not found.available:
                raise WorkerLost(found.status, found.reason)
            assert self._process is not None
            pid, start = self._process.pid, time.monotonic()
            cpu_start = cpu_seconds(pid)
            answer = self._answer(request, limit_s)
            if answer.get("fresh"):
                if not self._used:
                    raise WorkerLost("failed", "the case needs a fresh process, but a fresh worker refused it")
                raise NeedsFreshProcess
            self._used = True
            took_s, load = time.monotonic() - start, load_between(cpu_start, cpu_seconds(pid))
            record = Record.from_json(json.dumps(answer["record"]))
            wanted, found_id = self._slot.device_id, device_id_of(record.environment)
            if wanted and found_id and found_id != wanted:
                raise ValueError(f"it ran on the GPU {found_id}, not on {wanted}")
            claimed_s = sum(record.samples_ms) * record.calls / 1e3
            if claimed_s > took_s * 1.01 + 0.1:
                raise ValueError(f"the samples add up to {claimed_s:.3g} s, but the case took only {took_s:.3g} s")
        if not answer.get("healthy") and not last:
            self.kill()
        cpu = {**(record.environment.get("cpu") or {}), **load}
        return replace(record, environment=record.environment | {"cpu": cpu}), answer.get("profile", {})

    @contextmanager
    def _killed_if_lost(self) -> Iterator[None]:
        try:
            yield
        except WorkerLost:
            self.kill()
            raise
        except (KeyError, ValueError) as error:
            self.kill()
            raise WorkerLost("failed", f"the worker's answer is unusable: {of_exception(error)}") from None

    def _start(self) -> subprocess.Popen[bytes]:
        self._buffer, self._errors, self._used = bytearray(), b"", False
        launch = self.launch
        command = [*launch.command, "-m", "harness.worker", *([launch.entry] if launch.entry else [])]
        commit = json.dumps(commit_and_dirty(launch.root))
        # PYTHONSAFEPATH: modules in the current folder must not replace installed packages.
        env = child_environment({COMMIT_VARIABLE: commit, "PYTHONSAFEPATH": "1", **launch.env})
        # Two supervisors: each kills the descendants if the other is killed.
        guard = [sys.executable, "-I", "-S", supervisor.__file__] * 2
        try:
            process = subprocess.Popen(
                [*guard, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env | path_of_code(env, launch.root),
                start_new_session=True,
            )
            self._open = [pipe for pipe in (process.stdout, process.stderr) if pipe]  # until the worker closes them
            return process
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise WorkerLost("failed", sentence(f"{launch.command[0]} could not be started: {why}")) from None

    def _answer(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        process = self._process = self._process or self._start()
        deadline = time.monotonic() + limit_s
        self._send(process, request)
        while (answer := pop_answer(self._buffer)) is None:
            if self._stopped():
                raise KeyboardInterrupt
            if time.monotonic() >= deadline:
                raise WorkerLost("timeout", self._with_error_line(f"no answer within {limit_s:g} s"))
            if not self._read(process, max(0.0, min(_POLL_S, deadline - time.monotonic()))):
                raise self._death(process)
        self._read(process, 0.0)  # what the case wrote to stderr
        self._errors = b""
        return answer

    def stop(self, limit_s: float = _STOP_S) -> int | None:
        """Close the worker's input and wait for its end; return its exit status.

        The status is None if the worker was killed after `limit_s` seconds, and 0 if there was no worker.
        """
        if (process := self._process) is None:
            return 0
        assert process.stdin is not None
        process.stdin.close()
        try:
            return self._status(process, limit_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the worker and its descendants, and wait until their memory is free."""
        if (process := self._process) is None:
            return
        process.terminate()  # the supervisor kills the descendants
        with suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_S)
        process.kill()
        process.wait()
        self._process = None
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()

    def _send(self, process: subprocess.Popen[bytes], request: Mapping[str, Any]) -> None:
        assert process.stdin is not None
        try:
            os.write(process.stdin.fileno(), encode(request))  # a few kB, which fit in the pipe of a hanging worker
        except OSError:
            raise self._death(process) from None

    def _read(self, process: subprocess.Popen[bytes], wait_s: float) -> bool:
        """Read the worker's output, waiting up to `wait_s` s; return whether it can still answer."""
        ended = process.poll() is not None  # a child of a dead worker may hold its pipes open
        readable, _, _ = select.select(self._open, [], [], wait_s)
        for pipe in readable:
            data = os.read(pipe.fileno(), _PIPE_BYTES)
            if not data:
                self._open.remove(pipe)
            elif pipe is process.stdout:
                self._buffer += data
            else:
                self._errors = (self._errors + data)[-_TAIL_BYTES:]
        return process.stdout in (readable if ended else self._open)

    def _status(self, process: subprocess.Popen[bytes], limit_s: float) -> int | None:
        """Wait up to `limit_s` s for the worker to end; return its exit status, None if it runs on."""
        deadline = time.monotonic() + limit_s
        while self._open and process.poll() is None and time.monotonic() < deadline:
            if self._stopped():
                raise KeyboardInterrupt
            self._read(process, _POLL_S)  # a full pipe would hold it up
        self._read(process, 0.0)
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        return process.returncode

    def _death(self, process: subprocess.Popen[bytes]) -> WorkerLost:
        code = self._status(process, _STOP_S) or 0  # its supervisors closed its output, so it has ended
        if code == supervisor.NOT_STARTED:
            return WorkerLost("failed", self.error_line or "the worker could not be started")
        if name := signal_of(code):
            hint = " (by a user, or by the system for lack of memory)" if name == "SIGKILL" else ""
            return WorkerLost("killed", self._with_error_line(f"the worker was killed by {name}{hint}"))
        return WorkerLost("failed", self._with_error_line(f"the worker exited with status {code}"))

    def _with_error_line(self, what: str) -> str:
        words = self.error_line
        return sentence(f"{what}; its last error output: {words}" if words else what)

    @property
    def error_line(self) -> str:
        """Last line of stderr since the last answer; a line that names an error takes precedence."""
        return error_line(self._errors.decode(errors="replace"))


def probe(launches: Sequence[Launch], limit_s: float = Limits.start_s) -> list[Probe]:
    """Ask each launch's system whether it can run; return the answers in the order of launches.

    Launches with the same command, root and environment share a worker. Different workers run in parallel.
    limit_s: seconds for one probe.
    """
    found: dict[int, Probe] = {}
    groups: dict[tuple, list[int]] = {}
    for number, launch in enumerate(launches):
        key = (tuple(launch.command), launch.root, tuple(sorted(launch.env.items())))
        groups.setdefault(key, []).append(number)

    ended = threading.Event()

    def probe_together(group: list[int]) -> None:
        with WorkerProcess(replace(launches[group[0]], entry=""), start_s=limit_s, stopped=ended.is_set) as worker:
            for number in group:
                found[number] = worker.probe(launches[number].entry)

    with ThreadPoolExecutor(max(1, len(groups))) as threads:
        try:
            list(threads.map(probe_together, groups.values()))
        finally:
            ended.set()  # after Ctrl-C, which reaches only this thread, the others would wait for their workers
    return [found[number] for number in range(len(launches))]


def signal_of(status: int) -> str:
    """Return the name of the signal that ended a process with this exit status; "" if none did."""
    # The supervisor, shells and container clients report a signal as 128 + its number.
    number = -status if status < 0 else status - 128
    return signal.Signals(number).name if number in {each.value for each in signal.Signals} else ""


def path_of_code(env: Mapping[str, str], root: Path | None = None) -> dict[str, str]:
    """Return the environment variable PYTHONPATH for a worker as {name: value}.

    Its value is `root` (None: this checkout), followed by PYTHONPATH of `env`.
    Return {} if `root` is None and this file is in site-packages, from which other interpreters must not import.
    """
    root = root or (None if ROOT.name in ("site-packages", "dist-packages") else ROOT)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH", "")]))} if root else {}
