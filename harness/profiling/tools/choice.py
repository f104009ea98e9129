"""Choose among the installed profilers: one for times, one for hardware counters."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.measure.environment import child_environment
from harness.profiling.tools import ncu, nsys
from harness.schema.profile import ProfileError

WAYS = ("auto", "ncu", "nsys", "torch")
_VERSION = re.compile(r"\b(\d{4})\.(\d+)(?:\.\d+)*\b")
_ADVICE = {
    "nsys": "install Nsight Systems, or say --with torch",
    "ncu": "install Nsight Compute, or say --with torch",
}


@dataclass(frozen=True)
class Tools:
    """The chosen profilers.

    times: the profiler for times. ratios: the profiler for hardware counters, "" for none.
    versions: of the Nsight tools, by program; "" for an unusable one. summary: the choice in one sentence.
    """

    times: Literal["kineto", "nsys"]
    ratios: Literal["", "ncu"] = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""


def choose(way: str, device: str) -> Tools:
    """Return the profilers to use for a device, "cpu" or "cuda".

    way: one of `WAYS`; "auto" takes the Nsight tools that are usable, else Kineto.
    Raises ProfileError if `way` is unknown or names an unusable profiler.
    """
    if way not in WAYS:
        raise ProfileError(f"--with {way}: must be one of {', '.join(WAYS)}")
    if device == "cpu":
        if way in ("nsys", "ncu"):
            raise ProfileError(f"--with {way}: profiles GPUs, and no GPU was found; use --with torch")
        return Tools("kineto", summary="torch.profiler measures operators on the CPU")
    versions, missing = {}, {}
    for program in (nsys.PROGRAM, ncu.PROGRAM):
        versions[program], missing[program] = usable(program)
    if missing.get(way):
        raise ProfileError(f"--with {way}: {missing[way]}; {_ADVICE[way]}")
    by_nsys = way == "nsys" or (way == "auto" and not missing["nsys"])
    by_ncu = way == "ncu" or (way == "auto" and not missing["ncu"])
    times = f"Nsight Systems {versions['nsys']}" if by_nsys else "torch.profiler"
    ratios = f"Nsight Compute {versions['ncu']} gives counters" if by_ncu else "nothing gives counters"
    absent = "; ".join(why for why in missing.values() if why) if way == "auto" else ""
    return Tools(
        "nsys" if by_nsys else "kineto",
        "ncu" if by_ncu else "",
        versions,
        f"{times} gives times and {ratios}" + (f" ({absent})" if absent else ""),
    )


def usable(program: str) -> tuple[str, str]:
    """Return (version, "") if the program is on the path and runs, else ("", reason)."""
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
    return found.group(0), ""
