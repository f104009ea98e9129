"""A system to kill: it starts slowly, and its cases start processes that outlive them."""

import os
import random
import subprocess
import sys
import time

from harness.measure.system import Workload
from harness.schema.case import Case

# An environment variable: the command line of each grandchild ends with its value. Grandchildren run two minutes.
MARK = "ATTACK_MARK"
FORKS = "import os, sys, subprocess; subprocess.Popen(sys.argv[1:], start_new_session=True); os._exit(0)"


class Victim:
    """A fake system whose calls spin for some milliseconds."""

    packages = ()

    def __init__(self) -> None:
        time.sleep(random.random() * 0.05)

    def unavailable(self) -> str:
        return ""

    def build(self, case: Case) -> Workload:
        sleeper = ["sleep", f"120.{os.environ[MARK]}"]
        kinds = case.option("children", "")
        if "group" in kinds:
            subprocess.Popen(sleeper)
        if "session" in kinds:
            subprocess.Popen(sleeper, start_new_session=True)
        if "orphan" in kinds:
            subprocess.run([sys.executable, "-I", "-S", "-c", FORKS, *sleeper], check=False)  # a kill may hit it
        return Workload(run=_spin, tokens=case.batch * case.context)


def _spin(seconds: float = 0.004) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
