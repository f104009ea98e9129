"""Choose the profilers: PyTorch's (Kineto) for times, and Nsight Compute, if it is usable, for hardware counters."""

import re
import shutil
import subprocess
from dataclasses import dataclass

from harness.measure.environment import child_environment
from harness.profiling.tools import ncu
from harness.schema.profile import ProfileError

WAYS = ("auto", "ncu", "torch")
_VERSION = re.compile(r"\b(\d{4})\.(\d+)(?:\.\d+)*\b")


@dataclass(frozen=True)
class Tools:
    """The chosen profilers. Kineto gives times.

    ratios: whether Nsight Compute gives hardware counters. version: of Nsight Compute, "" if it is not used.
    `said`: the choice in one sentence.
    """

    ratios: bool = False
    version: str = ""
    said: str = ""


def choose(way: str, device: str) -> Tools:
    """Return the profilers to use for a device, "cpu" or "cuda".

    way: value of the option --with, one of `WAYS`; "auto" takes Nsight Compute if it is usable.
    Raises ProfileError if `way` is unknown or names an unusable profiler.
    """
    if way not in WAYS:
        raise ProfileError(f"--with {way}: must be one of {', '.join(WAYS)}")
    if device == "cpu":
        if way == "ncu":
            raise ProfileError("--with ncu: it profiles GPUs, and there is none to use; say --with torch")
        return Tools(said="torch.profiler tells the times of operators on the CPU")
    version, missing = usable()
    if missing and way == "ncu":
        raise ProfileError(f"--with ncu: {missing}; install Nsight Compute, or say --with torch")
    if missing or way == "torch":
        absent = f" ({missing})" if missing and way == "auto" else ""
        return Tools(said=f"torch.profiler gives times and nothing gives counters{absent}")
    return Tools(True, version, f"torch.profiler gives times and Nsight Compute {version} gives counters")


def usable() -> tuple[str, str]:
    """Return (version, "") if Nsight Compute is usable, and ("", reason) if not."""
    program = ncu.PROGRAM
    if shutil.which(program) is None:
        return "", f"{program} is not on the path"
    try:
        done = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            timeout=60,
            errors="replace",
            env=child_environment(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", f"{program} does not say its version"
    found = _VERSION.search(done.stdout)
    if found is None:
        return "", f"{program} does not say its version"
    if (int(found.group(1)), int(found.group(2))) < ncu.OLDEST:
        return "", f"{program} {found.group(0)} is too old, it must be {'.'.join(map(str, ncu.OLDEST))} or later"
    return found.group(0), ""
