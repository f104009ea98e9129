"""Choose the profilers: Kineto for times, and Nsight Compute for counters if it is installed."""

import re
import shutil
import subprocess

from harness.measure.environment import child_environment
from harness.profiling.tools import ncu
from harness.schema.profile import ProfileError

WAYS = ("auto", "ncu", "torch")
_VERSION = re.compile(r"\b(\d{4})\.(\d+)(?:\.\d+)*\b")


def choose(way: str, device: str) -> tuple[str, str]:
    """Return (version of Nsight Compute, "" to count nothing; the choice in a sentence) for a device, "cpu" or "cuda".

    Raises ProfileError for an unknown way, or if `way` names an unusable profiler.
    """
    if way not in WAYS:
        raise ProfileError(f"--with {way}: must be one of {', '.join(WAYS)}")
    if device == "cpu":
        if way == "ncu":
            raise ProfileError(f"--with {way}: it profiles GPUs, and there is none to use; say --with torch")
        return "", "torch.profiler tells the times of operators on the CPU"
    version, missing = ("", "") if way == "torch" else usable()
    if missing and way == "ncu":
        raise ProfileError(f"--with {way}: {missing}; install Nsight Compute, or say --with torch")
    counters = f"Nsight Compute {version} gives counters" if version else "nothing gives counters"
    return version, f"torch.profiler gives times and {counters}" + (f" ({missing})" if missing else "")


def usable() -> tuple[str, str]:
    """Return (version, "") of the Nsight Compute on the path, or ("", why it is unusable)."""
    if shutil.which(ncu.PROGRAM) is None:
        return "", f"{ncu.PROGRAM} is not on the path"
    command, env = [ncu.PROGRAM, "--version"], child_environment()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, errors="replace", env=env)
    except (OSError, subprocess.TimeoutExpired):
        return "", f"{ncu.PROGRAM} does not say its version"
    found = _VERSION.search(done.stdout)
    if found is None:
        return "", f"{ncu.PROGRAM} does not say its version"
    if (int(found.group(1)), int(found.group(2))) < ncu.OLDEST:
        return "", f"{ncu.PROGRAM} {found.group(0)} is too old, it must be {'.'.join(map(str, ncu.OLDEST))} or later"
    return found.group(0), ""
