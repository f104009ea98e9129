"""Profile of one case in RUN/profiles/KEY.json: kernels, ranges, idle time, counters."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from harness.schema.case import STORED, Case, Stored, one_of
from harness.schema.files import read_regular, refusing, write_atomically
from harness.schema.reason import UPDATE, printable
from harness.schema.record import STATUSES, RecordError, parsed
from harness.schema.work import Work

NAME_LIMIT = 400  # characters of a kernel's name: C++ templates have no limit of their own
TIMELINE_LIMIT = 2400  # launches of a timeline, to limit the size of pages
# Nsight Compute profiles only some launches of a kernel. If their mean time differs from that of all launches by more
# than both limits, a share and microseconds, they did other work: clocks and the profiler's overhead explain less.
MAX_UNLIKE, MAX_UNLIKE_US = 0.4, 2.5

Amount = Annotated[float, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class ProfileError(RecordError):
    """Raised if profiling fails or a profile is unusable; the message is one sentence."""


@dataclass(frozen=True)
class Counters(Stored):
    """Mean hardware counters of a kernel's launches, from Nsight Compute.

    Percentages are weighted by launch time. Unmeasured counters are None. Fields of other versions are ignored.
    launches: number of launches that Nsight Compute profiled. time_us: their mean time.
    dram_bytes: bytes per launch that DRAM transfers. l2_bytes: bytes per launch that the L2 cache transfers.
    operations: FLOPs per launch, by tensor cores and float32 instructions.
    use: {unit: percent of its peak throughput} for the units sm, l2, dram and tensor.
    occupancy: active warps in percent of an SM's warps. l2_hit: hit rate in percent.
    stalls: {stall reason: share of a warp's time between two instructions}; the shares sum to at most 1.
    l2_peak_gbs, fp32_peak_tflops: peak L2 bandwidth and peak float32 throughput at the launches' mean clock rates.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STORED | ConfigDict(extra="ignore")

    launches: Positive
    time_us: Amount
    dram_bytes: Amount | None = None
    l2_bytes: float | None = None
    operations: Amount | None = None
    use: dict[str, float] = field(default_factory=dict)
    occupancy: float | None = None
    l2_hit: float | None = None
    stalls: dict[str, float] = field(default_factory=dict)
    l2_peak_gbs: float | None = None
    fp32_peak_tflops: float | None = None


@dataclass(frozen=True)
class Kernel(Stored):
    """All launches of one kernel in the profiled region; on a CPU, all calls of one operator."""

    name: Annotated[str, Field(min_length=1)]
    launches: Positive
    time_us: Amount  # total
    registers: int | None = None  # per thread; None if unknown
    shared_bytes: int | None = None  # per block; None if unknown
    counters: Counters | None = None

    @property
    def dram_bytes(self) -> float | None:
        """Mean DRAM bytes per launch, estimated from Nsight Compute's counters; None if unknown."""
        return self._of_mean_launch(self.counters.dram_bytes if self.counters else None)

    @property
    def operations(self) -> float | None:
        """Mean FLOPs per launch, estimated from Nsight Compute's counters; None if unknown."""
        return self._of_mean_launch(self.counters.operations if self.counters else None)

    @property
    def mean_us(self) -> float:
        return self.time_us / self.launches

    @property
    def is_counted_unlike(self) -> bool:
        """Whether Nsight Compute's mean time per launch differs from `mean_us` by over 40% and by over 2.5 µs."""
        counted_us = self.counters.time_us if self.counters else 0.0
        return bool(counted_us) and abs(counted_us - self.mean_us) > max(MAX_UNLIKE * self.mean_us, MAX_UNLIKE_US)

    def _of_mean_launch(self, counted: float | None) -> float | None:
        if counted is None or self.counters is None:
            return None
        return counted * self.mean_us / self.counters.time_us if self.is_counted_unlike else counted


@dataclass(frozen=True)
class RangeKernel(Stored):
    """Launches of one kernel in a `Range`, without launches in nested ranges."""

    kernel: int  # index into the profile's kernels
    launches: int
    time_us: float  # total


@dataclass(frozen=True)
class Range(Stored):
    """An NVTX range in one eager call, and the kernels launched in it."""

    path: tuple[str, ...]  # names of the enclosing ranges, outermost first, then its own; () outside all ranges
    kernels: tuple[RangeKernel, ...]


@dataclass(frozen=True)
class Timeline(Stored):
    """Launches of a case's first profiled run, or of that run's first step, in order of start.

    kernel: indices into the profile's kernels. range: indices into the profile's ranges, -1 for a launch in no range.
    wait_ns: time since the end of the previous launch, negative if launches overlap. time_ns: duration.
    left_out: number of the run's launches that the timeline omits. The tuples have one element per launch.
    """

    kernel: tuple[int, ...] = ()
    range: tuple[int, ...] = ()
    wait_ns: tuple[int, ...] = ()
    time_ns: tuple[Annotated[int, Field(ge=0)], ...] = ()
    left_out: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True)
class Region(Stored):
    """Kernels and times of a case's profiled runs; ValueError if `busy_us` exceeds `region_us`.

    units: units of work (such as generate steps) in all runs together.
    region_us: total duration of the runs, each from its first kernel's start to its last kernel's end. For an engine,
        wall time is used if it is longer. `trace.profile_fields` removes idle time that the profiler added.
    busy_us: time with at least one running kernel. longest_gap_us: longest idle time.
    ranges: NVTX ranges with their kernels, from one eager call.
    peaks: rates measured by the worker, `copy_gbs` (10^9 bytes/s) and `product_tflops` (GEMM, 10^12 FLOPs/s).
    work: least FLOPs and bytes of one unit, by part; {} if not counted.
    timeline: launches of one run; empty if the profiler did not report each launch.
    """

    units: Positive = 1
    region_us: Amount = 0.0
    busy_us: Amount = 0.0
    longest_gap_us: Amount = 0.0
    kernels: tuple[Kernel, ...] = ()
    ranges: tuple[Range, ...] = ()
    peaks: Annotated[dict[str, float | None], Field(alias="ceilings")] = field(default_factory=dict)  # stored name
    work: dict[str, Work] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)

    def __post_init__(self) -> None:
        if self.busy_us > self.region_us * 1.001 + 1e-3:
            raise ValueError(f"kernels ran for {self.busy_us:g} us of a region of {self.region_us:g} us")

    @property
    def idle_us(self) -> float:
        """Microseconds of `region_us` in which no kernel ran."""
        return max(0.0, self.region_us - self.busy_us)

    @property
    def unit_ms(self) -> float:
        """Milliseconds per unit under the profiler, comparable to a record's latency."""
        return self.region_us / self.units / 1e3


def short_name(name: str, limit: int = NAME_LIMIT) -> str:
    """Return a printable kernel name; beyond `limit` characters, a checksum replaces the middle."""
    name = printable(name)
    half = (limit - 10) // 2
    return name if len(name) <= limit else f"{name[:half]}…{zlib.crc32(name.encode()):08x}…{name[-half:]}"


@dataclass(frozen=True)
class Profile(Region):
    """Profile of a case: a `Region` with its case, status, tools and environment.

    status: one of `STATUSES`, explained in harness/README.md. All except "ok" have a reason and no kernels.
    tools: {profiler: version}. commands: the profilers' command lines without folder names.
    notes: sentences about doubtful or missing parts. environment: the environment in the `Record` of the profiled case.
    stages_s: seconds to collect "times" and "ratios" (counters), each with model build; version 0.1 also had "build".
    """

    tool: Literal["ttt-bench profile"] = field(default="ttt-bench profile", kw_only=True)
    schema: Literal[1] = field(default=1, kw_only=True)
    case: Case = field(kw_only=True)
    status: Annotated[str, one_of(*STATUSES)] = "ok"
    reason: str = ""
    tools: dict[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    started_at: str = ""
    stages_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.status != "ok" and (self.kernels or not self.reason):
            raise ValueError(f"status {self.status!r} {'with kernels' if self.kernels else 'without a reason'}")
        if self.status == "ok" and not self.kernels:
            raise ValueError("no kernels: a profile without kernels has failed")

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Profile":
        """Build a profile from JSON values or dataclasses; ProfileError for an invalid field."""
        return parsed(_ADAPTER, json.dumps(values, default=asdict), ProfileError)

    def to_json(self) -> str:
        """Return the profile as a line of JSON without newline."""
        return _ADAPTER.dump_json(self, by_alias=True).decode()


def profile_path(folder: Path, key: str) -> Path:
    """Return the path of a profile in a run's folder; key: `Case.key`."""
    return folder / "profiles" / f"{key}.json"


def write_profile(folder: Path, profile: Profile) -> None:
    """Write a profile into the run's folder, or raise ProfileError."""
    path = profile_path(folder, profile.case.key)
    with refusing(path, "written", ProfileError):
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, profile.to_json() + "\n")


def read_profile(path: Path) -> Profile:
    """Read a profile; ProfileError if unreadable, invalid, or named after another case."""
    with refusing(path, "read", ProfileError):
        data = read_regular(path)
    try:
        profile = parsed(_ADAPTER, data, ProfileError)
    except ProfileError as error:
        advice = "" if UPDATE in str(error) else "; delete it, profile again"
        raise ProfileError(f"{path}: {error}{advice}") from None
    if path.stem != profile.case.key:
        raise ProfileError(f"{path}: belongs to another case: {profile.case.label}")
    return profile


_ADAPTER: TypeAdapter[Profile] = TypeAdapter(Profile)
