"""Turn recorded launches into a profile's kernels, ranges, idle time and timeline."""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from harness.measure.ranges import is_layer
from harness.schema.profile import TIMELINE_LIMIT, Kernel, ProfileError, Range, RangeKernel, Timeline, short_name

NOTED_DELAY = 0.03  # a delay by the profiler gets a note above this share of the time; clocks vary by less


@dataclass(frozen=True)
class Launched:
    """One recorded launch of a kernel, or one call of an operator on a CPU.

    own_us: duration; for an operator, without the operators that it called.
    path: names of the ranges around the launch, outermost first.
    stream: id of the CUDA stream; None if unknown.
    """

    name: str
    start_us: float
    end_us: float
    own_us: float
    path: tuple[str, ...] = ()
    registers: int | None = None
    shared_bytes: int | None = None
    stream: Hashable = None


def serialized(launched: Iterable[Launched]) -> list[Launched]:
    """Sort launches by start; delay a start until the stream's previous launch has ended.

    With programmatic dependent launch, a kernel can start earlier, but then waits for the previous kernel's end.
    """
    ends: dict[Hashable, float] = {}
    found = []
    for each in sorted(launched, key=lambda each: (each.start_us, each.end_us)):
        start = max(each.start_us, ends.get(each.stream, each.start_us))
        end = max(each.end_us, start)
        if each.stream is not None:
            ends[each.stream] = end
        found.append(each if start == each.start_us else replace(each, start_us=start, end_us=end, own_us=end - start))
    return found


def region_fields(timed: Sequence[Launched], ranged: Sequence[Launched], runs: int = 1) -> dict[str, Any]:
    """Return a `Region`'s times, kernels, ranges and timeline, by field name.

    timed: launches of `runs` runs, for times, kernels and timeline. ranged: launches of one call, for ranges.
    Raises ProfileError if `timed` is empty.
    """
    if not timed:
        raise ProfileError("no operator of PyTorch ran in this thread (on a GPU: no kernel ran) in the profiled region")
    kernels = kernels_of([*timed])
    busy_us, longest_gap_us = busy(timed)
    ranges = ranges_of(ranged, kernels)
    return {
        "region_us": _extent(timed),
        "busy_us": busy_us,
        "longest_gap_us": longest_gap_us,
        "kernels": tuple(kernels),
        "ranges": tuple(ranges),
        "timeline": timeline_of(timed, ranged, runs, kernels, ranges),
    }


@dataclass(frozen=True)
class Runs:
    """Description of profiled runs.

    runs: number of runs, each of `calls` calls without a pause. units: units of work in each call.
    wall_us: wall time of each run; only for an engine.
    alone_us: time of a run without the profiler; 0 if unknown.
    replayed: whether runs are replays of a CUDA graph.
    """

    runs: int
    units: int = 1
    calls: int = 1
    wall_us: Sequence[float] = ()
    alone_us: float = 0.0
    replayed: bool = False


def profile_fields(launched: Sequence[Launched], ranged: Sequence[Launched], info: Runs) -> dict[str, Any]:
    """Return fields of a `Profile`: times, kernels, ranges, timeline, units and notes.

    launched: launches of all runs that `info` describes. If all runs launch the same kernels, the shortest and the
        longest quarter of the runs are not used.
    ranged: launches of one call, with its NVTX ranges.
    If `info.alone_us` is known, idle time that the profiler added is removed (not from the timeline): in graph replays
    always, in other runs if it is over 3% of their time.
    """
    kept, runs, region_us, notes = _typical(launched, info)
    found = region_fields(kept, ranged, runs * info.calls)
    busy_us, alone_us = found["busy_us"], runs * info.alone_us
    without_us, noted_us = max(alone_us, busy_us), (1 + NOTED_DELAY) * alone_us
    # A profiler delays launches and separates a graph's kernels. That delay is not idle time of the case.
    delayed = alone_us > 0 and region_us > without_us * (1 if info.replayed else 1 + NOTED_DELAY)
    slower = alone_us > 0 and busy_us > noted_us
    if region_us > noted_us and (delayed or slower):
        note = f"a run took {region_us / alone_us - 1:.0%} longer under the profiler: "
        cause = "its kernels were slower" if slower else "the added idle time is removed, except in the timeline"
        notes.append(note + cause)
    if delayed:
        found["longest_gap_us"] *= (without_us - busy_us) / (region_us - busy_us)
        region_us = without_us
    # An engine's wall time excludes pauses between runs.
    found["longest_gap_us"] = min(found["longest_gap_us"], max(0.0, region_us - busy_us))
    return found | {"region_us": region_us, "units": runs * info.calls * info.units, "notes": notes}


def _typical(launched: Sequence[Launched], info: Runs) -> tuple[list[Launched], int, float, list[str]]:
    """Drop the shortest and longest quarter of runs; return (launches, runs, total µs, notes).

    Launches are shifted in time to close the pauses between the kept runs. If runs launch different kernels, all
    launches are kept at their times, and a note says so.
    """
    in_order = sorted(launched, key=lambda each: each.start_us)
    if not _same_kernels(in_order, info.runs):
        pauses = "" if info.wall_us else ", and pauses between them count as idle time"
        note = f"runs launch different kernels, so all runs count{pauses}"
        time_us = max(sum(info.wall_us), busy(in_order)[0]) if info.wall_us else _extent(in_order)
        return in_order, info.runs, time_us, [note]
    each = len(in_order) // info.runs
    runs = [in_order[run * each :][:each] for run in range(info.runs)]
    times = [max(time, _extent(run)) for time, run in zip(info.wall_us or [0.0] * info.runs, runs, strict=True)]
    dropped = (len(times) + 1) // 4
    by_time = sorted(range(len(times)), key=lambda number: times[number])
    kept = sorted(by_time[dropped : len(times) - dropped])
    closed, end = list[Launched](), 0.0
    for run in (runs[number] for number in kept):
        shift = end - run[0].start_us if closed else 0.0
        moved = [replace(one, start_us=one.start_us + shift, end_us=one.end_us + shift) for one in run]
        end = max((one.end_us for one in moved), default=end)
        closed += moved
    return closed, len(kept), sum(times[number] for number in kept), []


def last_runs(launched: Sequence[Launched], runs: int, recorded: int) -> tuple[Sequence[Launched], int]:
    """Return (launches, number of runs) for the last `runs` of all `recorded` runs.

    If the runs launch different kernels, they cannot be separated, so all of them are returned.
    """
    in_order = sorted(launched, key=lambda each: each.start_us)
    if not _same_kernels(in_order, recorded):
        return launched, recorded
    return in_order[len(in_order) // recorded * (recorded - runs) :], runs


def _same_kernels(in_order: Sequence[Launched], runs: int) -> bool:
    each, rest = divmod(len(in_order), runs)
    names = [each.name for each in in_order]
    return not rest and len({frozenset(Counter(names[run * each :][:each]).items()) for run in range(runs)}) == 1


def _extent(launched: Sequence[Launched]) -> float:
    if not launched:
        return 0.0
    return max(each.end_us for each in launched) - min(each.start_us for each in launched)


def kernels_of(launched: Iterable[Launched]) -> list[Kernel]:
    """Return the launches' kernels with count and total time, the longest time first."""
    groups: dict[str, list[Launched]] = defaultdict(list)
    for each in launched:
        groups[short_name(each.name)].append(each)
    kernels = [
        Kernel(
            name,
            len(group),
            sum(each.own_us for each in group),
            max((each.registers for each in group if each.registers is not None), default=None),
            max((each.shared_bytes for each in group if each.shared_bytes is not None), default=None),
        )
        for name, group in groups.items()
    ]
    return sorted(kernels, key=lambda kernel: -kernel.time_us)


def ranges_of(launched: Iterable[Launched], kernels: Sequence[Kernel]) -> list[Range]:
    """Return a `Range` for each path of range names, in the order of their first launches.

    kernels: the list into which `RangeKernel.kernel` points. Launches of other kernels are omitted.
    """
    indices = {kernel.name: index for index, kernel in enumerate(kernels)}
    found: dict[tuple[str, ...], dict[int, list[float]]] = {}
    for each in sorted(launched, key=lambda each: each.start_us):
        index = indices.get(short_name(each.name))
        if index is not None:
            found.setdefault(each.path, defaultdict(list))[index].append(each.own_us)
    return [
        Range(path, tuple(RangeKernel(index, len(times), sum(times)) for index, times in inner.items()))
        for path, inner in found.items()
    ]


def timeline_of(
    timed: Sequence[Launched], ranged: Sequence[Launched], runs: int, kernels: Sequence[Kernel], ranges: Sequence[Range]
) -> Timeline:
    """Return a timeline of the first run or its first step, up to `TIMELINE_LIMIT` launches.

    timed: launches of `runs` runs; if `runs` does not divide their number, all launches count as one run.
    ranged: launches of one call, with NVTX ranges. They are ignored if a run has another number of launches.
        They show steps if the first layer starts again after another layer. The timeline then has the run's first n
        launches, where n is the number of launches from that layer's first start to its second.
    kernels, ranges: the lists into which the timeline's indices point.
    """
    run = sorted(timed, key=lambda each: each.start_us)
    run = run[: len(run) // runs] if len(run) % runs == 0 else run
    in_ranges = sorted(ranged, key=lambda each: each.start_us)
    paths = [each.path for each in in_ranges] if len(in_ranges) == len(run) else [()] * len(run)
    shown = min(_step_end(paths), TIMELINE_LIMIT)
    indices = {kernel.name: index for index, kernel in enumerate(kernels)}
    numbers = {each.path: number for number, each in enumerate(ranges)}
    # Since the first start: a float of microseconds since 1970 has no nanoseconds.
    starts = [round(1e3 * (each.start_us - run[0].start_us)) for each in run[:shown]]
    ends = [round(1e3 * (each.end_us - run[0].start_us)) for each in run[:shown]]
    return Timeline(
        kernel=tuple(indices[short_name(each.name)] for each in run[:shown]),
        range=tuple(numbers.get(path, -1) if path else -1 for path in paths[:shown]),
        wait_ns=tuple(start - before for start, before in zip(starts, [starts[0], *ends], strict=False)),
        time_ns=tuple(end - start for start, end in zip(starts, ends, strict=True)),
        left_out=len(run) - shown,
    )


def _step_end(paths: Sequence[tuple[str, ...]]) -> int:
    """Count launches between the first layer's first two starts; without two starts, count all."""
    depths = [next((depth for depth, name in enumerate(path, start=1) if is_layer(name)), 0) for path in paths]
    layers = [(number, path[:depth]) for number, (path, depth) in enumerate(zip(paths, depths, strict=True)) if depth]
    for (_, before), (number, layer) in pairwise(layers):
        if before != layer == layers[0][1]:
            return number - layers[0][0]
    return len(paths)


def busy(launched: Iterable[Launched]) -> tuple[float, float]:
    """Return (time with a running launch, longest idle time) in microseconds."""
    total = longest_gap = 0.0
    in_order = sorted(launched, key=lambda each: each.start_us)
    end = in_order[0].start_us if in_order else 0.0
    for each in in_order:
        longest_gap = max(longest_gap, each.start_us - end)
        total += max(0.0, each.end_us - max(end, each.start_us))
        end = max(end, each.end_us)
    return total, longest_gap


@dataclass(frozen=True)
class Span:
    name: str
    thread: Any
    start_us: float
    end_us: float


def paths_at(spans: Iterable[Span], moments: Iterable[tuple[Any, float]]) -> list[tuple[str, ...]]:
    """Return the names of the nested ranges around each moment (thread, µs), outermost first."""
    starts: list[tuple[float, float, Any, Span | int]] = [(s.start_us, -s.end_us, s.thread, s) for s in spans]
    queries: list[tuple[float, float, Any, Span | int]] = [(at, math.inf, of, n) for n, (of, at) in enumerate(moments)]
    around: dict[Any, list[Span]] = defaultdict(list)
    paths: list[tuple[str, ...]] = [()] * len(queries)
    for at, _, thread, item in sorted([*starts, *queries], key=lambda each: each[:2]):
        if isinstance(item, Span):
            around[thread] = [*(each for each in around[thread] if each.end_us > at), item]
        else:
            around[thread] = [each for each in around[thread] if each.end_us >= at]
            paths[item] = tuple(each.name for each in around[thread])
    return paths


def demangled(name: str) -> str:
    """Return a C++ symbol demangled as torch.profiler does; other names unchanged."""
    import torch

    return torch._C._demangle(name)
