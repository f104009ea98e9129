"""The page's section on profiles: a bar of parts for each profiled case, what bounds it in words, and its kernels.

`section` stands alone: the page embeds its HTML, `profiles.css` and `profiles.js`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from statistics import median
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.profile_record import Profile
from harness.profile_region import Kernel
from harness.run import Run
from reports.profile_parts import LABELS, Part, kernel_floor_us, kernel_parts, parts
from reports.profile_words import roofs, sentences, short, waits

KERNELS_SHOWN = 100  # of a case; the rest are one line
_BAR = 1000.0  # units of a bar's width
_NAME_LIMIT = 160  # characters of a kernel's full name in the page


@dataclass(frozen=True)
class Section:
    """html: the section, None where the run has no profiles. data: what scripts need, JSON values.

    data["profiles"]: the anchor of each profiled case by its key, for links from a figure's points.
    """

    html: Markup | None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """A part of a bar, from `x` on, in units of the bar; floor: how much of its width is its floor, None: unknown."""

    part: Part
    x: float
    width: float
    floor: float | None
    share: float


@dataclass(frozen=True)
class Shown:
    """A profiled case as the page shows it. recorded_ms: the record's latency; None where there is none."""

    profile: Profile
    title: str
    pieces: tuple[Piece, ...]
    recorded_ms: float | None
    said: tuple[str, str]
    rows: tuple[dict[str, Any], ...]
    left_out: str

    @property
    def anchor(self) -> str:
        """The id of the case in the page."""
        return f"profile-{self.profile.case.key}"

    @property
    def summary(self) -> str:
        """The bar in words."""
        return ", ".join(f"{piece.part.label} {piece.share:.0%}" for piece in self.pieces)

    @property
    def floor_ms(self) -> float | None:
        """What of the time is a floor; None where a part's is not known."""
        floors = [piece.part.floor_us for piece in self.pieces]
        known = [floor for floor in floors if floor is not None]
        return sum(known) / self.profile.units / 1e3 if len(known) == len(floors) else None


def section(run: Run) -> Section:
    """The section of a run's profiles."""
    profiles = run.profiles().values()
    good = [profile for profile in profiles if profile.status == "ok"]
    if not good:
        return Section(None)
    groups = [(title, _shown(run, group)) for title, group in _groups(good).items()]
    environment = Environment(loader=PackageLoader("reports", "."), autoescape=True, undefined=StrictUndefined)
    html = environment.get_template("profiles.html.j2").render(
        groups=groups,
        labels=LABELS,
        columns=COLUMNS,
        failed=[(each.case.label, each.reason) for each in profiles if each.status not in ("ok", "skipped")],
        bar=_BAR,
    )
    anchors = {shown.profile.case.key: shown.anchor for _, group in groups for shown in group}
    return Section(Markup(html), {"profiles": anchors})


def script() -> str:
    """The section's script."""
    return files("reports").joinpath("profiles.js").read_text("utf-8")


def style() -> str:
    """The section's style, which takes its colours from the page's variables."""
    return files("reports").joinpath("profiles.css").read_text("utf-8")


# Of the table of kernels: (name in a row, heading, whether it is a number, digits)
COLUMNS = (
    ("name", "Kernel", False, 0),
    ("part", "Part", False, 0),
    ("time_ms", "Time (ms)", True, 4),
    ("share", "Share (%)", True, 1),
    ("launches", "Launches", True, 0),
    ("floor_ms", "Floor (ms)", True, 4),
    ("gbs", "GB/s", True, 0),
    ("tflops", "TFLOP/s", True, 1),
    ("copy", "Of a copy (%)", True, 0),
    ("product", "Of a product (%)", True, 0),
    ("occupancy", "Occupancy (%)", True, 0),
    ("registers", "Registers", True, 0),
    ("shared_kb", "Shared (kB)", True, 1),
    ("waits", "Warps wait", False, 0),
)


def _groups(profiles: Iterable[Profile]) -> dict[str, list[Profile]]:
    """Cases that differ in nothing but their system, by what they share."""
    groups: dict[str, list[Profile]] = {}
    for profile in profiles:
        case = profile.case
        options = [f"{name} {value}" for name, value in case.options]
        words = [case.phase, case.size, f"batch {case.batch}", f"{case.context} tokens", *options]
        groups.setdefault(", ".join(words), []).append(profile)
    return groups


def _shown(run: Run, profiles: list[Profile]) -> list[Shown]:
    """The cases of a group, their bars on one scale."""
    widest = max(profile.unit_ms for profile in profiles)
    latency = _latencies(run, {profile.case.key for profile in profiles})
    return [_shown_case(run, profile, widest, latency.get(profile.case.key)) for profile in profiles]


def _shown_case(run: Run, profile: Profile, widest_ms: float, recorded_ms: float | None) -> Shown:
    rows = _rows(profile)
    rest = profile.kernels[KERNELS_SHOWN:]
    rest_ms = sum(kernel.time_us for kernel in rest) / profile.units / 1e3
    return Shown(
        profile,
        f"{run.catalogue.system_label(profile.case.system)} on {run.catalogue.backend_label(profile.case.backend)}",
        tuple(_pieces(profile, widest_ms)),
        recorded_ms,
        sentences(profile),
        tuple(rows),
        f"and {len(rest)} more kernels, {rest_ms:.4g} ms together" if rest else "",
    )


def _latencies(run: Run, keys: set[str]) -> dict[str, float]:
    """The median of all samples of each case that was measured, in ms."""
    samples: dict[str, list[float]] = {}
    for record in run.records():
        if record.case.key in keys:
            samples.setdefault(record.case.key, []).extend(record.samples_ms)
    return {key: median(taken) for key, taken in samples.items() if taken}


def _pieces(profile: Profile, widest_ms: float) -> Iterable[Piece]:
    x = 0.0
    scale = _BAR / (widest_ms * profile.units * 1e3)
    for part in parts(profile):
        width = part.time_us * scale
        floor = None if part.floor_us is None else min(1.0, part.floor_us / part.time_us) * width
        yield Piece(part, x, width, floor, part.time_us / profile.region_us)
        x += width


def _rows(profile: Profile) -> list[dict[str, Any]]:
    total = sum(kernel.time_us for kernel in profile.kernels)
    names = kernel_parts(profile)
    return [_row(kernel, profile, total, LABELS[names[kernel.name]]) for kernel in profile.kernels[:KERNELS_SHOWN]]


def _row(kernel: Kernel, profile: Profile, total_us: float, part: str) -> dict[str, Any]:
    """What each column shows of a kernel, of one unit of work; None where it is not known."""
    counters, floor_us = kernel.counters, kernel_floor_us(kernel, profile)
    copy, product = roofs(kernel, profile)
    each_us = kernel.time_us / kernel.launches
    waiting = waits(counters) if counters else []
    return {
        "name": short(kernel.name),
        "full_name": kernel.name[:_NAME_LIMIT],
        "part": part,
        "time_ms": kernel.time_us / profile.units / 1e3,
        "share": 100 * kernel.time_us / total_us if total_us else None,
        "launches": kernel.launches / profile.units,
        "floor_ms": None if floor_us is None else floor_us / profile.units / 1e3,
        "gbs": counters.dram_bytes / (each_us * 1e3)
        if counters and counters.dram_bytes is not None and each_us
        else None,
        "tflops": counters.operations / (each_us * 1e6)
        if counters and counters.operations is not None and each_us
        else None,
        "copy": None if copy is None else 100 * copy,
        "product": None if product is None else 100 * product,
        "occupancy": counters.occupancy if counters else None,
        "registers": kernel.registers,
        "shared_kb": None if kernel.shared_bytes is None else kernel.shared_bytes / 1e3,
        "waits": "; ".join(f"{what} {share:.0%}" for what, share in waiting),
    }
