"""Run a command; kill its descendants when it ends or the caller dies.

    python -I -S supervisor.py COMMAND [ARGUMENT ...]

The command runs in its own session. PR_SET_CHILD_SUBREAPER makes orphaned descendants children of the supervisor.
The exit status is the command's, or 128 plus the number of its signal.
If one of two nested supervisors is killed, the other kills the descendants.
This file imports only the standard library, to start fast.
"""

import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
NOT_STARTED = 127  # status if the command cannot be started; shells use it for a missing command
_KILL_S = 20.0  # seconds, for descendants that fork while they are killed


def main(command: list[str]) -> int:
    """Run `command`, then kill its remaining descendants; return its exit status."""
    caller = os.getppid()
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the caller may have blocked signals that must arrive here
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != caller:
        return 128 + signal.SIGTERM
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, prctl, supervisor)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            kill_descendants()
            return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _become(command: list[str], prctl: "ctypes._NamedFuncPointer", supervisor: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()  # a signal to the supervisor's group must not reach the command or a nested supervisor
    if os.getppid() != supervisor:
        os._exit(NOT_STARTED)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{os.path.basename(command[0])} could not be started: {error.strerror}\n".encode())
        os._exit(NOT_STARTED)


def _end(number: int, frame: object) -> None:
    kill_descendants()
    os._exit(128 + number)


def kill_descendants() -> None:
    """Kill this process's descendants, and any that they fork during the call, for up to 20 s."""
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def descendants(ancestor: int) -> list[int]:
    """Return the PIDs of all descendants of `ancestor`, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    # State and parent follow the name, which may contain any character.
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    at = [ancestor]
    while at:
        below = children.get(at.pop(), [])
        found += below
        at += below
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
