"""The page's profiles: per case, a bar of parts, a roofline, a timeline, a kernel table."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from harness.measure.environment import device_id_of
from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.profile import Kernel, Profile, short_name
from harness.schema.record import Record
from reports.profiles.diff import Diff
from reports.profiles.drawing import TABLE_ROWS, drawing, rates, unplotted_share
from reports.profiles.parts import LABELS, ProfilePart, kernel_lower_bound_us, kernel_parts, parts
from reports.profiles.peaks import with_common_peaks
from reports.profiles.words import STALLS, WORKING, Recorded, agreement, bound_of, recorded, sentences, short
from reports.resources import TEMPLATES, source

SCRIPTS = ("profiles/roofline.js", "profiles/timeline.js", "profiles/section.js")
_NAME_LIMIT = 108  # characters of a kernel's full name in the page
_WORK = ("part", "scope", "steps")  # options of a case that change its work
_BAR_WIDTH = 1000.0  # width of the longest bar, in units of the SVG
_MIN_STALL, _MAX_STALLS = 0.01, 3  # least share of a warp's time for a stall to be shown, and most stalls shown


@dataclass(frozen=True)
class Section:
    """The page's section on profiles. anchors: {case key: HTML id of the case in the section}."""

    html: Markup
    anchors: dict[str, str]


@dataclass(frozen=True)
class BarPiece:
    """One part's piece of a profiled case's time bar; a group's longest bar is 1000 units wide.

    x, width: the start and width of the piece in these units. share: the part's share of the region's time.
    lower_bound: the width of the strip that shows the part's lower bound; None if unknown.
    """

    part: ProfilePart
    x: float
    width: float
    lower_bound: float | None
    share: float


@dataclass(frozen=True)
class ShownProfile:
    """A profiled case as the page shows it.

    agreement: words that compare the profiled time with the recorded latency. drawn: chart data from `drawing`.
    slower_than: comparisons with faster cases of the same group, which do the same work.
    rows: one dict per row of the kernel table.
        "cells": list with a text for each of `COLUMNS`.
        "bound", "stalls": the kernel's bottleneck and its warps' longest stalls in words; "" without counters.
    """

    profile: Profile
    title: str
    pieces: tuple[BarPiece, ...]
    agreement: str
    slower_than: tuple[Diff, ...]
    rows: list[dict[str, Any]]
    drawn: dict[str, Any]

    @property
    def anchor(self) -> str:
        return f"profile-{self.profile.case.key}"

    @property
    def columns(self) -> list[tuple[str, int]]:
        """Pairs (heading, index into `COLUMNS`) for the kernel table's nonempty columns."""
        return [(heading, at) for at, (heading, *_) in enumerate(COLUMNS) if any(row["cells"][at] for row in self.rows)]

    @property
    def is_counted(self) -> bool:
        return any(row["bound"] for row in self.rows)

    @property
    def summary(self) -> str:
        return ", ".join(f"{piece.part.label} {piece.share:.0%}" for piece in self.pieces)

    @property
    def peaks(self) -> str:
        """The measured peaks in words, such as `700 TFLOP/s and 3.90 TB/s`, or "" if unknown."""
        bandwidth, gemms = (self.profile.peaks.get(name) for name in ("copy_gbs", "product_tflops"))
        return f"{gemms:.0f} TFLOP/s and {bandwidth / 1e3:.2f} TB/s" if bandwidth and gemms else ""

    @property
    def lower_bound_ms(self) -> float | None:
        """Sum of the parts' lower bounds per unit of work, such as a step; None if one is unknown."""
        lower_bounds = [piece.part.lower_bound_us for piece in self.pieces]
        known = [lower_bound for lower_bound in lower_bounds if lower_bound is not None]
        return sum(known) / self.profile.units / 1e3 if len(known) == len(lower_bounds) else None


def section(records: Sequence[Record], profiles: Collection[Profile], catalogue: Catalogue) -> Section | None:
    """Return the page's section on profiles; None if no profile has times.

    records: the run's records, for latencies and peaks.
    """
    timed = [profile for profile in profiles if profile.status == "ok" and profile.region_us]
    usable = with_common_peaks(timed, records)
    if not usable:
        return None
    latencies = recorded(records)
    groups = [(title, _shown(catalogue, group, latencies)) for title, group in _groups(usable, latencies).items()]
    html = TEMPLATES.get_template("profiles/section.html.j2").render(
        device_id_of=device_id_of,
        sentences=sentences,
        unplotted_share=unplotted_share,
        groups=groups,
        parts=[ProfilePart(name, 0.0, 0) for name in LABELS],
        failed=[
            (each.case.label, each.reason or "nothing ran")
            for each in profiles
            if each.status != "skipped" and not (each.status == "ok" and each.region_us)
        ],
        bar_width=_BAR_WIDTH,
        has_peaks=any(value for profile in usable for value in profile.peaks.values()),
        is_counted=any(kernel.counters for profile in usable for kernel in profile.kernels),
        measured=len(latencies),
        profiled=sum(profile.case.key in latencies for profile in usable),
    )
    return Section(Markup(html), {each.profile.case.key: each.anchor for _, group in groups for each in group})


def script() -> str:
    """Return the section's JavaScript, in a block so that its names cannot clash."""
    sources = "\n".join(map(source, SCRIPTS))
    return f"{{\n{sources}}}\n"


# Columns of the table of kernels: (heading, number of decimals, function that returns the value, None if unknown).
COLUMNS: tuple[tuple[str, int, Callable[[Kernel, Profile], float | None]], ...] = (
    ("Time (ms)", 4, lambda kernel, profile: kernel.time_us / profile.units / 1e3),
    ("Share (%)", 1, lambda kernel, profile: 100 * kernel.time_us / sum(each.time_us for each in profile.kernels)),
    ("Launches", 2, lambda kernel, profile: kernel.launches / profile.units),
    ("Lower bound (ms)", 4, lambda kernel, profile: _per_unit_ms(kernel_lower_bound_us(kernel, profile), profile)),
    ("GB/s", 0, lambda kernel, _: rates(kernel)[0]),
    ("TFLOP/s", 1, lambda kernel, _: rates(kernel)[1]),
    ("FLOP/byte", 1, lambda kernel, _: rates(kernel)[2]),
    ("Registers", 0, lambda kernel, _: kernel.registers),
    ("Shared (kB)", 1, lambda kernel, _: None if kernel.shared_bytes is None else kernel.shared_bytes / 1e3),
    ("Occupancy (%)", 0, lambda kernel, _: kernel.counters.occupancy if kernel.counters else None),
    ("SM (% of peak)", 0, lambda kernel, _: _use(kernel, "sm")),
    ("Tensor (% of peak)", 0, lambda kernel, _: _use(kernel, "tensor")),
    ("L2 (% of peak)", 0, lambda kernel, _: _use(kernel, "l2")),
    ("DRAM (% of peak)", 0, lambda kernel, _: _use(kernel, "dram")),
    ("L2 hits (%)", 0, lambda kernel, _: kernel.counters.l2_hit if kernel.counters else None),
)


def _use(kernel: Kernel, unit: str) -> float | None:
    return kernel.counters.use.get(unit) if kernel.counters else None


def _per_unit_ms(time_us: float | None, profile: Profile) -> float | None:
    return None if time_us is None else time_us / profile.units / 1e3


def _groups(profiles: Iterable[Profile], latencies: Mapping[str, Recorded]) -> dict[str, list[Profile]]:
    groups: dict[str, list[Profile]] = {}
    for profile in profiles:
        case = profile.case
        latency = latencies.get(case.key)
        concurrent = (latency and latency.concurrent) or case.batch
        batch = f"batch {case.batch}" + (f" ({concurrent} concurrent)" if concurrent != case.batch else "")
        options = [f"{name} {value}" for name, value in case.options if name in _WORK]
        words = [case.phase, case.size, batch, f"{case.context} tokens", *options]
        groups.setdefault(", ".join(words), []).append(profile)
    return groups


def _shown(catalogue: Catalogue, profiles: list[Profile], latencies: Mapping[str, Recorded]) -> list[ShownProfile]:
    widest = max(profile.unit_ms for profile in profiles)
    cases = [profile.case for profile in profiles]
    titles = [_title(catalogue, case, cases) for case in cases]
    counts = Counter(case.system for case in cases)
    names = [
        catalogue.system_label(case.system) if counts[case.system] == 1 else title
        for case, title in zip(cases, titles, strict=True)
    ]
    found = []
    for profile, title, name in zip(profiles, titles, names, strict=True):
        others = zip(profiles, names, strict=True)
        slower_than = (Diff(each, profile, other, name) for each, other in others if each.unit_ms < profile.unit_ms)
        pieces, agrees = tuple(_pieces(profile, widest)), agreement(profile, latencies.get(profile.case.key))
        found.append(ShownProfile(profile, title, pieces, agrees, tuple(slower_than), _rows(profile), drawing(profile)))
    return found


def _title(catalogue: Catalogue, case: Case, group: Sequence[Case]) -> str:
    own = [each for each in group if each.system == case.system]
    compared = {"dtype": group, "state_dtype": own, "timing": own, "l2": group}
    differing = (name for name, cases in compared.items() if len({getattr(each, name) for each in cases}) > 1)
    values = ((name, getattr(case, name)) for name in differing)
    settings = [catalogue.axis(name).phrase.replace("{}", value) for name, value in values if value]
    options = [f"{name} {value}" for name, value in case.options]
    return ", ".join(
        [f"{catalogue.system_label(case.system)} on {catalogue.backend_label(case.backend)}", *settings, *options]
    )


def _pieces(profile: Profile, widest_ms: float) -> Iterable[BarPiece]:
    x = 0.0
    scale = _BAR_WIDTH / (widest_ms * profile.units * 1e3)
    for part in parts(profile):
        width = part.time_us * scale
        lower_bound = None if part.lower_bound_us is None else min(1.0, part.lower_bound_us / part.time_us) * width
        yield BarPiece(part, x, width, lower_bound, part.time_us / profile.region_us)
        x += width


def _rows(profile: Profile) -> list[dict[str, Any]]:
    names = kernel_parts(profile)
    return [
        {
            "name": short(kernel.name),
            "full_name": short_name(kernel.name, _NAME_LIMIT),
            "part": LABELS[names[kernel.name]],
            "cells": _cells(kernel, profile),
            "bound": bound_of(kernel, profile) if kernel.counters else "",
            "stalls": _stalls(kernel),
        }
        for kernel in profile.kernels[:TABLE_ROWS]
    ]


def _stalls(kernel: Kernel) -> str:
    shares = kernel.counters.stalls if kernel.counters else {}
    stalls = sorted(((share, state) for state, share in shares.items() if state not in WORKING), reverse=True)
    shown = [(share, state) for share, state in stalls[:_MAX_STALLS] if share >= _MIN_STALL]
    return ", ".join(f"{STALLS.get(state, state)} {share:.0%}" for share, state in shown)


def _cells(kernel: Kernel, profile: Profile) -> list[str]:
    numbers = ((number(kernel, profile), digits) for _, digits, number in COLUMNS)
    return ["" if value is None else f"{value:.{digits}f}".removesuffix(".00") for value, digits in numbers]
