"""A kernel's counters as the page shows them: roofline, warp states, memory, occupancy."""

from dataclasses import dataclass

from harness.schema.profile import Counters, Kernel, Profile
from harness.schema.reason import format_number
from reports.profiles.words import WAITS, WORKING, bound_of, short
from reports.words import listed

_LEAST = 0.01  # share of the kernels' time for a kernel, or of a warp's time for a state, to be shown
_MOST = 12  # kernels per case
_LIMITS = {"blocks": "blocks per SM", "registers": "registers", "shared": "shared memory", "warps": "warps"}
_LEVELS = {"dram": "DRAM", "l2": "L2", "l1": "L1"}


@dataclass(frozen=True)
class Counted:
    """A kernel with hardware counters, as the page shows it.

    share: the kernel's share of the time of all kernels. bound: the kernel's bottleneck in words.
    """

    kernel: Kernel
    counters: Counters
    share: float
    bound: str

    @property
    def name(self) -> str:
        """The kernel's short name."""
        return short(self.kernel.name)

    @property
    def speed_of_light(self) -> list[tuple[str, float]]:
        """Pairs (name, percent of peak) for compute and for memory, as far as they were counted."""
        use = self.counters.use
        memory = use.get("memory", max(use.get("l2", -1.0), use.get("dram", -1.0)))
        bars = [("Compute", use.get("sm", -1.0)), ("Memory", memory)]
        return [bar for bar in bars if bar[1] >= 0]

    @property
    def warp_states(self) -> list[tuple[str, float, str]]:
        """Tuples (state, percent of a warp's time, explanation) from 1% on, the longest first."""
        found = sorted(self.counters.stalls.items(), key=lambda each: -each[1])
        words = WAITS | WORKING
        return [
            (state.replace("_", " "), 100 * share, words.get(state, "").removeprefix("for "))
            for state, share in found
            if share >= _LEAST
        ]

    @property
    def memory(self) -> list[tuple[str, list[str]]]:
        """Texts (memory level, [MB read, MB written, both, GB/s, hit rate in %]) per launch."""
        levels = ((name, self._traffic(level)) for level, name in _LEVELS.items())
        return [
            (name, ["" if number is None else format_number(number) for number in numbers])
            for name, numbers in levels
            if any(number is not None for number in numbers[:4])
        ]

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Pairs (name, value in words) of a launch's size, occupancy and resources."""
        kernel, counters = self.kernel, self.counters
        return [
            (name, said)
            for name, said in (
                ("Launch", f"{counters.grid:,} blocks of {counters.block} threads" if counters.grid else ""),
                ("Occupancy", self._occupancy()),
                ("Registers", f"{kernel.registers} per thread" if kernel.registers is not None else ""),
                ("Shared memory", f"{kernel.shared_bytes / 1e3:.1f} kB per block" if kernel.shared_bytes else ""),
                ("Bank conflicts", "" if counters.conflicts is None else f"{counters.conflicts:.0%} of wavefronts"),
                ("Tensor cores", f"busy {counters.use['tensor']:.0f}% of the time" if "tensor" in counters.use else ""),
                ("Counted launches", f"{counters.launches} of {format_number(counters.time_us)} µs"),
            )
            if said
        ]

    def _occupancy(self) -> str:
        counters = self.counters
        if counters.occupancy is None:
            return ""
        if counters.occupancy_limit is None or not counters.blocks_per_sm:
            return f"{counters.occupancy:.0f}% achieved"
        least = min(counters.blocks_per_sm.values())
        limits = listed([_LIMITS[name] for name, blocks in counters.blocks_per_sm.items() if blocks == least])
        theoretical = f"{counters.occupancy_limit:.0f}% theoretical"
        return f"{counters.occupancy:.0f}% achieved, {theoretical}, limited by {limits}"

    def _traffic(self, level: str) -> list[float | None]:
        counters = self.counters
        read, write = (counters.memory.get(f"{level}_{way}") for way in ("read", "write"))
        both = None if read is None or write is None else read + write
        total = {"dram": counters.dram_bytes, "l2": counters.l2_bytes}.get(level, both)
        megabytes = [None if each is None else each / 1e6 for each in (read, write, total)]
        rate = total / counters.time_us / 1e3 if total is not None and counters.time_us else None
        return [*megabytes, rate, {"l2": counters.l2_hit, "l1": counters.l1_hit}.get(level)]


def counted_kernels(profile: Profile) -> list[Counted]:
    """Return the profile's longest kernels with hardware counters, at most `_MOST`.

    Each takes at least 1% of the time of all kernels.
    """
    total = sum(kernel.time_us for kernel in profile.kernels)
    found = [
        Counted(kernel, kernel.counters, kernel.time_us / total, bound_of(kernel, profile))
        for kernel in profile.kernels
        if kernel.counters and kernel.time_us >= _LEAST * total
    ]
    return found[:_MOST]
