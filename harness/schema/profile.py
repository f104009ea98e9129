"""What a profiler found for one case: kernels, ranges, gaps, counters; stored as RUN/profiles/KEY.json."""

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from harness.schema.case import Case
from harness.schema.catalogue import FORBID_EXTRA
from harness.schema.files import read_regular, refusing, write_atomically
from harness.schema.reason import invalid, printable
from harness.schema.record import STATUSES, RecordError
from harness.schema.work import Work

NAME_LIMIT = 400  # characters of a kernel's name: C++ templates have no end of their own
TIMELINE_LIMIT = 2400  # launches of a timeline: a page holds a case in 150 kB
KERNEL_LIMIT = 2000  # distinct kernels of a profile
# Counted launches did other work where their time differs from the mean by more than the share UNLIKE and by more than
# UNLIKE_US: other clocks make less than the first, counting a short kernel costs less than the second.
UNLIKE, UNLIKE_US = 0.4, 2.5


class ProfileError(RecordError):
    """A profile that cannot be used, or what is not a valid report; one sentence that says what is wrong and where."""


@dataclass(frozen=True)
class Counters:
    """What Nsight Compute counted, as means of one of `launches` launches, weighted by time; None: not counted.

    dram_bytes, l2_bytes: moved. operations: FLOPs, those of matrix units and of single precision together.
    use: percent of its peak of each unit (sm, l2, dram, tensor), and of the busiest of memory's (memory).
    occupancy: percent of the warps that an SM holds, occupancy_limit: the most that this launch allows.
    blocks_per_sm: how many fit by each resource (blocks, registers, shared, warps). grid: blocks; block: threads.
    l1_hit, l2_hit: percent. memory: bytes by level and way, as dram_read or l1_write; those of TMA pass the L1 by.
    stalls: share of a warp's time between two instructions, by reason; they sum to at most 1.
    conflicts: share of the wavefronts in shared memory that are bank conflicts.
    l2_peak_gbs, fp32_peak_tflops: what the clocks of the counted launches allow.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    launches: int
    time_us: float
    dram_bytes: float | None = None
    l2_bytes: float | None = None
    operations: float | None = None
    use: dict[str, float] = field(default_factory=dict)
    occupancy: float | None = None
    l2_hit: float | None = None
    stalls: dict[str, float] = field(default_factory=dict)
    conflicts: float | None = None
    l1_hit: float | None = None
    memory: dict[str, float] = field(default_factory=dict)
    occupancy_limit: float | None = None
    blocks_per_sm: dict[str, int] = field(default_factory=dict)
    grid: int | None = None
    block: int | None = None
    l2_peak_gbs: float | None = None
    fp32_peak_tflops: float | None = None

    def __post_init__(self) -> None:
        if self.launches < 1:
            raise ValueError(f"counters of {self.launches} launches")
        _refuse_negative("counters", time_us=self.time_us, dram_bytes=self.dram_bytes, operations=self.operations)
        if sum(self.stalls.values()) > 1.001 or min(self.stalls.values(), default=0.0) < 0:
            raise ValueError("counters: the stalls are no shares of one time")


@dataclass(frozen=True)
class Kernel:
    """A kernel (on a CPU an operator) by its name, all of its launches in the region together.

    registers of a thread, shared_bytes of a block; None where they are not known.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    name: str
    launches: int
    time_us: float
    registers: int | None = None
    shared_bytes: int | None = None
    counters: Counters | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a kernel without a name")
        if self.launches < 1:
            raise ValueError(f"kernel {self.name[:60]!r}: {self.launches} launches")
        _refuse_negative(f"kernel {self.name[:60]!r}", time_us=self.time_us)

    @property
    def dram_bytes(self) -> float | None:
        """Bytes that a launch moved, the mean; None where they were not counted."""
        return self._of_mean_launch(self.counters.dram_bytes if self.counters else None)

    @property
    def operations(self) -> float | None:
        """FLOPs of a launch, the mean; None where they were not counted."""
        return self._of_mean_launch(self.counters.operations if self.counters else None)

    @property
    def mean_us(self) -> float:
        """The time of a launch, the mean."""
        return self.time_us / self.launches

    @property
    def is_counted_unlike(self) -> bool:
        """Whether the launches that were counted took another time than the mean: a last step also rewrites W."""
        counted_us = self.counters.time_us if self.counters else 0.0
        return bool(counted_us) and abs(counted_us - self.mean_us) > max(UNLIKE * self.mean_us, UNLIKE_US)

    def _of_mean_launch(self, counted: float | None) -> float | None:
        """What the counted launches did, at their rate where they took unlike times."""
        if counted is None or self.counters is None:
            return None
        return counted * self.mean_us / self.counters.time_us if self.is_counted_unlike else counted


@dataclass(frozen=True)
class RangeKernel:
    """The launches of one kernel in a range itself, not in a range inside of it; kernel: index into the profile's."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    kernel: int
    launches: int
    time_us: float


@dataclass(frozen=True)
class Range:
    """A range by its path, such as ("prefill", "layer 0"), in one call that was launched eagerly."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    path: tuple[str, ...]
    kernels: tuple[RangeKernel, ...]


@dataclass(frozen=True)
class Timeline:
    """The launches of one run of what is timed, or of its first step, in the order in which they begin.

    kernel: index into the profile's; range: index into the profile's ranges, -1 for none. wait_ns: from the end of the
    launch before, which is negative where they overlap. left_out: launches of the run that it does not show.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    kernel: tuple[int, ...] = ()
    range: tuple[int, ...] = ()
    wait_ns: tuple[int, ...] = ()
    time_ns: tuple[int, ...] = ()
    left_out: int = 0

    def __post_init__(self) -> None:
        if len({len(each) for each in (self.kernel, self.range, self.wait_ns, self.time_ns)}) > 1:
            raise ValueError("timeline: its columns differ in length")
        if min(self.time_ns, default=0) < 0 or self.left_out < 0:
            raise ValueError("timeline: a launch of negative time, or fewer than none left out")


@dataclass(frozen=True)
class Region:
    """What ran in a profiled region. Raises ValueError where fields contradict each other.

    units: units of work in the region. region_us: how long its runs took, each from its first kernel's begin to its
    last one's end, or as long as an engine's host says, without what a profiler made their gaps longer;
    busy_us: of that, while any kernel ran; the rest are gaps, the longest of them longest_gap_us.
    ceilings: what this process did at best, `copy_gbs` (10^9 bytes a second) and `product_tflops`.
    work: what one unit takes at the least, by part; {} where the adapter does not count it. timeline: without launches
    where no profiler told single times.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    units: int = 1
    region_us: float = 0.0
    busy_us: float = 0.0
    longest_gap_us: float = 0.0
    kernels: tuple[Kernel, ...] = ()
    ranges: tuple[Range, ...] = ()
    ceilings: dict[str, float | None] = field(default_factory=dict)
    work: dict[str, Work] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)

    def __post_init__(self) -> None:
        if self.units < 1:
            raise ValueError(f"units is {self.units}, must be at least 1")
        _refuse_negative("profile", region_us=self.region_us, busy_us=self.busy_us, longest_gap_us=self.longest_gap_us)
        if self.busy_us > self.region_us * 1.001 + 1e-3:
            raise ValueError(f"kernels ran for {self.busy_us:g} us of a region of {self.region_us:g} us")
        names = [kernel.name for kernel in self.kernels]
        if len(set(names)) < len(names):
            raise ValueError("a kernel is named twice")
        for each in self.ranges:
            if any(not 0 <= inner.kernel < len(self.kernels) for inner in each.kernels):
                raise ValueError(f"range {'/'.join(each.path)!r} has a kernel that the profile has not")
        self._check_timeline()

    def _check_timeline(self) -> None:
        kernels, ranges = self.timeline.kernel, self.timeline.range
        if any(not 0 <= each < len(self.kernels) for each in kernels):
            raise ValueError("timeline: it has a kernel that the profile has not")
        if any(not -1 <= each < len(self.ranges) for each in ranges):
            raise ValueError("timeline: it has a range that the profile has not")

    @property
    def gaps_us(self) -> float:
        """How long no kernel ran in the region."""
        return max(0.0, self.region_us - self.busy_us)

    @property
    def unit_ms(self) -> float:
        """Milliseconds of one unit under the profiler, as a record's latency is."""
        return self.region_us / self.units / 1e3


def short_name(name: str, limit: int = NAME_LIMIT) -> str:
    """A kernel's name that is fit for a file: printable, of a long one a checksum in place of its middle."""
    name = printable(name)
    half = (limit - 10) // 2
    return name if len(name) <= limit else f"{name[:half]}…{zlib.crc32(name.encode()):08x}…{name[-half:]}"


def _refuse_negative(what: str, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and (value < 0 or not math.isfinite(value)):
            raise ValueError(f"{what}: {name} is {value:g}, must be a finite number, at least 0")


SCHEMA_VERSION = 1
TOOL = "ttt-bench profile"
_SIZE_LIMIT = 16 << 20  # bytes of a file


@dataclass(frozen=True)
class Profile(Region):
    """What a profiler found of a case.

    status, reason: as in a record; all but "ok" have a reason and no kernels. tools: name -> version. commands: without
    folders. notes: sentences on what is missing. environment: device, device_kind, gpu, software, commit, dirty, as
    in a record. stages_s: how long it took, by "build" (the model, for each profiler), "times" and "ratios", the start
    of workers included.
    """

    case: Case = field(kw_only=True)
    status: str = "ok"
    reason: str = ""
    tools: dict[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    started_at: str = ""
    stages_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r}, must be one of {', '.join(STATUSES)}")
        if self.status != "ok" and (self.kernels or not self.reason):
            raise ValueError(f"status {self.status!r} {'with kernels' if self.kernels else 'without a reason'}")
        if self.status == "ok" and not self.kernels:
            raise ValueError("no kernels: a profile that found nothing is a failed one")

    @classmethod
    def from_values(cls, values: Mapping[str, Any], where: str = "profile") -> "Profile":
        """The profile in JSON values or dataclasses; ProfileError says where they came from and what is wrong."""
        try:
            return _ADAPTER.validate_json(json.dumps(values, allow_nan=False, default=asdict))
        except ValidationError as error:
            raise ProfileError(f"{where}: {invalid(error)}") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise ProfileError(f"{where}: {error}") from None

    def to_json(self) -> str:
        """One line of JSON, the tool and the schema first."""
        values = {"tool": TOOL, "schema": SCHEMA_VERSION, **_ADAPTER.dump_python(self, mode="json")}
        return json.dumps(values, separators=(",", ":"), allow_nan=False)


def profile_path(folder: Path, key: str) -> Path:
    """Where the profile of a case lies in the folder of a run."""
    return folder / "profiles" / f"{key}.json"


def write_profile(folder: Path, profile: Profile) -> None:
    """Put a profile into the folder of a run, in the place of an earlier one of its case. Raises ProfileError."""
    path = profile_path(folder, profile.case.key)
    with refusing(path, "written", ProfileError):
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, profile.to_json() + "\n")


def read_profile(path: Path) -> Profile:
    """The profile in a file; ProfileError where it is none."""
    with refusing(path, "read", ProfileError):
        data = read_regular(path, _SIZE_LIMIT)
    try:
        values = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise ProfileError(f"{path}: is not JSON, so it is damaged or no profile; delete it, profile again") from None
    if not isinstance(values, Mapping) or values.get("tool") != TOOL:
        raise ProfileError(f"{path}: is no profile: it does not say that {TOOL!r} made it")
    if values.get("schema") != SCHEMA_VERSION:
        raise ProfileError(
            f"{path}: has schema {str(values.get('schema'))[:20]}, this program reads schema {SCHEMA_VERSION}"
        )
    rest = {name: value for name, value in values.items() if name not in ("tool", "schema")}
    profile = Profile.from_values(rest, str(path))
    if path.stem != profile.case.key:
        raise ProfileError(f"{path}: is of another case: {profile.case.label}")
    return profile


_ADAPTER: TypeAdapter[Profile] = TypeAdapter(Profile)
