"""Fake systems without torch that succeed, fail, hang or die on purpose; `Fake` explains the case option `do`."""

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from harness.measure.correctness import Check, Checks
from harness.measure.system import NeedsFreshProcess, Skip, Workload
from harness.schema.case import Case


def spin() -> None:
    end = time.perf_counter_ns() + 2e6  # 2 ms
    while time.perf_counter_ns() < end:
        pass


class OutOfMemoryError(RuntimeError):
    """Stands in for torch's error, which the harness recognizes by name."""


def _raise(error: BaseException) -> None:
    raise error


def _exit_with_error_line() -> None:
    print("  File nowhere\nEngineError: the engine is on fire\n", file=sys.stderr, flush=True)
    os._exit(3)


def _out_of_memory_deep_inside() -> None:
    try:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    except OutOfMemoryError as error:
        raise RuntimeError("the engine could not start") from error


def _print_garbage() -> None:
    print('{"record": "not yours"}', flush=True)
    os.write(1, b'{"record": "nor this"}\n')
    spin()


RUNS: dict[str, Callable[[], object]] = {
    "work": spin,
    "raise": lambda: _raise(RuntimeError("first line of /home/someone/kernel.cu\nsecond line")),
    "leave": lambda: _raise(SystemExit("the library gave up")),
    "exit": _exit_with_error_line,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": lambda: time.sleep(600),
    "allocate": lambda: bytearray(1 << 60),
    "oom": lambda: _raise(OutOfMemoryError("CUDA out of memory")),
    "oom-inside": _out_of_memory_deep_inside,
    "print": _print_garbage,
    "read": lambda: _raise(RuntimeError(f"stdin holds {sys.stdin.read()!r}")),
}


class Fake:
    """A fake system. The case option `do` selects what it does; the default is "work", which runs for 2 ms.

    A key of RUNS selects the timed function. With "skip", `build` raises Skip.
    With "miss", "nan" or "unchecked", the check's error is above its limit or NaN, or there is no check.
    With "engine", the samples come from an engine.
    """

    packages = ("pytest", "not-installed")

    def unavailable(self) -> str:
        return ""

    def build(self, case: Case) -> Workload:
        do = case.option("do", "work")
        if do == "skip":
            raise Skip("context 8 is beyond what this system holds")
        error = 0.5 if do == "miss" else 0.001
        workload = Workload(
            run=RUNS.get(do, spin),
            units=case.option("units", 1),
            tokens=case.batch * (case.context if case.phase == "forward" else 1),
            check=lambda: Checks([Check.at_most("error", float("nan") if do == "nan" else error, 0.01)]),
            metrics={"parameters": 7, "unknown": float("nan")},
            settings={"pid": str(os.getpid())},
        )
        if do == "unchecked":
            workload.check = None
        if do == "engine":
            workload.engine_samples = lambda: ([i * 1.23456789] for i in range(4))  # the first warms up
        return workload


class OneKindPerProcess(Fake):
    served: str = ""

    def build(self, case: Case) -> Workload:
        kind = case.option("kind")
        if kind == "none" or self.served not in ("", kind):
            raise NeedsFreshProcess
        self.served = kind
        return super().build(case)


class Unavailable(Fake):
    def unavailable(self) -> str:
        return "needs a GPU of the next century"


class HangsAtProbe(Fake):
    def unavailable(self) -> str:
        time.sleep(600)
        return ""


def _note() -> int:
    with open(os.environ["FAKE_NOTE"], "a+") as file:
        file.write("x")
        file.flush()
        return file.tell() - 1  # earlier calls, in all processes


def _die_at_first() -> None:
    if _note() < int(os.environ["FAKE_DEATHS"]):
        os.kill(os.getpid(), signal.SIGKILL)


class DiesAtStart(Fake):
    def __init__(self) -> None:
        _die_at_first()


class DiesInRun(Fake):
    def build(self, case: Case) -> Workload:
        workload = super().build(case)
        workload.run = lambda: (_die_at_first(), spin())
        return workload


class FloodsStderrAtExit(Fake):
    def __init__(self) -> None:
        atexit.register(lambda: print("x\n" * (1 << 20) + "EngineError: the last line", file=sys.stderr))


class LogsItsPid(Fake):
    def __init__(self) -> None:
        with open(os.environ["FAKE_NOTE"], "a") as file:
            file.write(f"{os.getpid()}\n")


class WithDescendants(Fake):
    """Starts a child, a child in its own process group, a child in its own session, and an orphan; then hangs.

    FAKE_CHILD: file for their process ids. FAKE_THEN=return: do not hang.
    """

    def build(self, case: Case) -> Workload:
        import subprocess

        ways: dict[str, dict[str, Any]] = {
            "child": {},
            "group": {"process_group": 0},
            "session": {"start_new_session": True},
        }
        self.children = {name: subprocess.Popen(["sleep", "600"], **way) for name, way in ways.items()}
        code = (
            "import subprocess\n"
            "quiet = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}\n"
            "print(subprocess.Popen(['sleep', '600'], start_new_session=True, **quiet).pid)"
        )
        orphan = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        pids = {"worker": os.getpid(), **{name: child.pid for name, child in self.children.items()}}
        with open(os.environ["FAKE_CHILD"], "w") as file:
            file.write("".join(f"{name} {pid}\n" for name, pid in (pids | {"orphan": int(orphan.stdout)}).items()))
        workload = super().build(case)
        if os.environ.get("FAKE_THEN") != "return":
            workload.run = lambda: time.sleep(600)
        return workload


class ChangesSettings(Fake):
    def build(self, case: Case) -> Workload:
        found = f"{os.getcwd()} {sorted(os.sched_getaffinity(0))}"
        os.chdir("/")
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        workload = super().build(case)
        workload.settings = {"found": found, "process": str(os.getpid())}
        return workload
