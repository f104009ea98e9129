"""Choose among the installed profilers: one for times, one for hardware counters."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.measure.environment import output_of
from harness.profiling.tools import ncu, nsys
from harness.schema.profile import ProfileError

WAYS = ("auto", "ncu", "nsys", "torch")
_VERSION = re.compile(r"\b(\d{4})\.(\d+)(?:\.\d+)*\b")
_NAMES = {nsys.PROGRAM: "Nsight Systems", ncu.PROGRAM: "Nsight Compute"}


@dataclass(frozen=True)
class Tools:
    """The chosen profilers.

    times: the profiler that measures times.
    ratios: the profiler that reads hardware counters, "" for none.
    versions: {Nsight program: its version, "" if missing} for nsys and ncu; {} on a CPU.
    summary: the choice as a sentence.
    """

    times: Literal["kineto", "nsys"]
    ratios: Literal["", "ncu"] = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""


def choose(way: str, device: str) -> Tools:
    """Return the profilers to use for a device, "cpu" or "cuda".

    way: "auto" for all installed Nsight tools (on a CPU, none), "nsys" or "ncu" for only this tool, "torch" for none.
    Nsight Systems measures times if it is used; otherwise, Kineto (torch.profiler) does.
    Raises ProfileError for an unknown `way`, a missing program, or "nsys" or "ncu" on a CPU.
    """
    if way not in WAYS:
        raise ProfileError(f"--with {way}: must be one of {', '.join(WAYS)}")
    if device == "cpu":
        if way in ("nsys", "ncu"):
            raise ProfileError(f"--with {way}: profiles GPUs, and no GPU was found; use --with torch")
        return Tools("kineto", summary="torch.profiler measures operators on the CPU")
    versions = {program: version_of(program) for program in _NAMES}
    if versions.get(way) == "":
        raise ProfileError(f"--with {way}: {way} not found; install {_NAMES[way]}, or use --with torch")
    by_nsys, by_ncu = (versions[program] and way in ("auto", program) for program in _NAMES)
    times = f"Nsight Systems {versions['nsys']}" if by_nsys else "torch.profiler"
    ratios = f"counters from Nsight Compute {versions['ncu']}" if by_ncu else "no counters"
    absent = ", ".join(program for program, version in versions.items() if way == "auto" and not version)
    return Tools(
        "nsys" if by_nsys else "kineto",
        "ncu" if by_ncu else "",
        versions,
        f"times from {times}, {ratios}" + (f" ({absent} not found)" if absent else ""),
    )


def version_of(program: str) -> str:
    """Return the version that a program on the PATH prints; "" if it is missing or prints none."""
    found = _VERSION.search(output_of([program, "--version"])[0])
    return found.group(0) if found else ""
