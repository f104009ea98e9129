"""From launches on a clock to kernels, ranges, gaps and a timeline: what every profiler of times has in common."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.measure.ranges import is_layer
from harness.schema.profile import (
    KERNEL_LIMIT,
    TIMELINE_LIMIT,
    Kernel,
    ProfileError,
    Range,
    RangeKernel,
    Timeline,
    short_name,
)

HELD_UP = 0.03  # by a profiler, which is said; less is what the clocks of a GPU at its power cap differ by


@dataclass(frozen=True)
class Launched:
    """One launch of a kernel, or one call of an operator on a CPU.

    own_us: its time without that of the operators it calls. path: names of the ranges around it, the outermost first.
    stream: where a GPU runs one launch after the other; None where that is not known.
    """

    name: str
    start_us: float
    end_us: float
    own_us: float
    path: tuple[str, ...] = ()
    registers: int | None = None
    shared_bytes: int | None = None
    stream: Hashable = None


def after_the_one_before(launched: Iterable[Launched]) -> list[Launched]:
    """The launches in their order, each from the end of the one before it on its stream on.

    A kernel that was launched before that end ("programmatic dependent launch") has only waited until then.
    """
    ends: dict[Hashable, float] = {}
    apart = []
    for each in sorted(launched, key=lambda each: (each.start_us, each.end_us)):
        start = max(each.start_us, ends.get(each.stream, each.start_us))
        end = max(each.end_us, start)
        if each.stream is not None:
            ends[each.stream] = end
        apart.append(each if start == each.start_us else replace(each, start_us=start, end_us=end, own_us=end - start))
    return apart


def found_in(timed: Sequence[Launched], ranged: Sequence[Launched], runs: int = 1) -> dict[str, Any]:
    """The fields of a profile: times of `timed`, which are `runs` runs, ranges of `ranged`, one call under its ranges.

    Raises ProfileError where nothing was launched, or more distinct kernels than a profile holds.
    """
    if not timed:
        raise ProfileError("no operator of PyTorch (on a GPU: no kernel) ran in the profiled region")
    kernels = kernels_of([*timed])
    if len(kernels) > KERNEL_LIMIT:
        raise ProfileError(f"{len(kernels)} distinct kernels, a profile holds {KERNEL_LIMIT}")
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
    """What a profiler saw: so many runs, each of `calls` calls without a pause between them, of `units` units each.

    host_us: how long each run took for an engine's host, where that is its latency. alone_us: how long one took, as a
    measurement times it, while nothing was profiled; 0 where that is not known. replayed: whether runs are replays of a
    CUDA graph.
    """

    runs: int
    units: int = 1
    calls: int = 1
    host_us: Sequence[float] = ()
    alone_us: float = 0.0
    replayed: bool = False


def found_of(launched: Sequence[Launched], ranged: Sequence[Launched], seen: Runs) -> dict[str, Any]:
    """The fields of a profile, as `found_in`, of the typical ones of the runs that were launched, and its notes."""
    kept, runs, region_us, notes = _typical(launched, seen)
    found = found_in(kept, ranged, runs * seen.calls)
    busy_us, alone_us = found["busy_us"], runs * seen.alone_us
    without_us, told = max(alone_us, busy_us), (1 + HELD_UP) * alone_us
    # A profiler holds up what launches the kernels, and draws those of a graph apart: what runs take longer under it is
    # no part of their gaps. Of launches that it does not hold up, the clocks differ.
    held_up = alone_us > 0 and region_us > without_us * (1 if seen.replayed else 1 + HELD_UP)
    slower = alone_us > 0 and busy_us > told
    if region_us > told and (held_up or slower):
        said = f"under the profiler a run took {region_us / alone_us - 1:.0%} longer than without it: "
        whose = "its kernels did" if slower else "its gaps are as long as without it, but for the timeline's"
        notes.append(said + whose)
    if held_up:
        found["longest_gap_us"] *= (without_us - busy_us) / (region_us - busy_us)
        region_us = without_us
    # Of an engine's runs that launch unlike kernels the time is the host's, without the pauses between them.
    found["longest_gap_us"] = min(found["longest_gap_us"], max(0.0, region_us - busy_us))
    return found | {"region_us": region_us, "units": runs * seen.calls * seen.units, "notes": notes}


def _typical(launched: Sequence[Launched], seen: Runs) -> tuple[list[Launched], int, float, list[str]]:
    """The middle half of the runs by their time, without the pauses between them: launches, runs, their time, notes.

    A record has the median of its samples, so a run that the profiler itself holds up must not count. All runs, as they
    are, where they launch unlike kernels.
    """
    in_order = sorted(launched, key=lambda each: each.start_us)
    if not _alike(in_order, seen.runs):
        pauses = "" if seen.host_us else ", and pauses between them count as gaps"
        note = f"its runs launch unlike kernels, so all of them count{pauses}"
        time_us = max(sum(seen.host_us), busy(in_order)[0]) if seen.host_us else _extent(in_order)
        return in_order, seen.runs, time_us, [note]
    each = len(in_order) // seen.runs
    runs = [in_order[run * each :][:each] for run in range(seen.runs)]
    times = [max(time, _extent(run)) for time, run in zip(seen.host_us or [0.0] * seen.runs, runs, strict=True)]
    kept = sorted(_middle_half(times))
    closed, end = list[Launched](), 0.0
    for run in (runs[place] for place in kept):
        shift = end - run[0].start_us if closed else 0.0
        moved = [replace(one, start_us=one.start_us + shift, end_us=one.end_us + shift) for one in run]
        end = max((one.end_us for one in moved), default=end)
        closed += moved
    return closed, len(kept), sum(times[place] for place in kept), []


def last_runs(launched: Sequence[Launched], runs: int, recorded: int) -> tuple[Sequence[Launched], int]:
    """The launches of the last `runs` of the recorded runs, and their number; all where they launch unlike kernels."""
    in_order = sorted(launched, key=lambda each: each.start_us)
    if not _alike(in_order, recorded):
        return launched, recorded
    return in_order[len(in_order) // recorded * (recorded - runs) :], runs


def _alike(in_order: Sequence[Launched], runs: int) -> bool:
    each, rest = divmod(len(in_order), runs)
    names = [each.name for each in in_order]
    return not rest and len({frozenset(Counter(names[run * each :][:each]).items()) for run in range(runs)}) == 1


def _middle_half(times: Sequence[float]) -> list[int]:
    """The places of the times that are left without a quarter at either end, of three without one."""
    in_order = sorted(range(len(times)), key=lambda place: times[place])
    apart = (len(times) + 1) // 4
    return in_order[apart : len(times) - apart]


def _extent(launched: Sequence[Launched]) -> float:
    if not launched:
        return 0.0
    return max(each.end_us for each in launched) - min(each.start_us for each in launched)


def kernels_of(launched: Iterable[Launched]) -> list[Kernel]:
    """The kernels by name, the one that takes longest first."""
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
    """The ranges in the order in which they begin; kernels that the profile does not have are left out."""
    places = {kernel.name: place for place, kernel in enumerate(kernels)}
    found: dict[tuple[str, ...], dict[int, list[float]]] = {}
    for each in sorted(launched, key=lambda each: each.start_us):
        place = places.get(short_name(each.name))
        if place is not None:
            found.setdefault(each.path, defaultdict(list))[place].append(each.own_us)
    return [
        Range(path, tuple(RangeKernel(place, len(times), sum(times)) for place, times in inner.items()))
        for path, inner in found.items()
    ]


def timeline_of(
    timed: Sequence[Launched],
    ranged: Sequence[Launched],
    runs: int,
    kernels: Sequence[Kernel],
    ranges: Sequence[Range],
) -> Timeline:
    """The first run, or its first step where ranges tell steps apart; at most `TIMELINE_LIMIT` launches of it.

    A run that launches as many kernels as the call under ranges launches them in the same ranges.
    """
    run = sorted(timed, key=lambda each: each.start_us)
    run = run[: len(run) // runs] if len(run) % runs == 0 else run
    marked = sorted(ranged, key=lambda each: each.start_us)
    paths = [each.path for each in marked] if len(marked) == len(run) else [()] * len(run)
    shown = min(_step_end(paths), TIMELINE_LIMIT)
    places = {kernel.name: place for place, kernel in enumerate(kernels)}
    numbers = {each.path: number for number, each in enumerate(ranges)}
    starts, ends = ([round(1e3 * time) for time in times] for times in _clocks(run[:shown]))
    return Timeline(
        kernel=tuple(places[short_name(each.name)] for each in run[:shown]),
        range=tuple(numbers.get(path, -1) if path else -1 for path in paths[:shown]),
        wait_ns=tuple(start - before for start, before in zip(starts, [starts[0], *ends], strict=False)),
        time_ns=tuple(end - start for start, end in zip(starts, ends, strict=True)),
        left_out=len(run) - shown,
    )


def _clocks(run: Sequence[Launched]) -> tuple[list[float], list[float]]:
    """Begins and ends since the first begin, so that nanoseconds are not lost in a float of seconds since 1970."""
    return [each.start_us - run[0].start_us for each in run], [each.end_us - run[0].start_us for each in run]


def _step_end(paths: Sequence[tuple[str, ...]]) -> int:
    """How many launches a step has: from a begin of the first layer to the next one, another layer in between."""
    layers = [path[: place + 1] for path in paths if (place := _layer_place(path)) is not None]
    begin, other = None, False
    for number, path in enumerate(paths):
        if (place := _layer_place(path)) is None:
            continue
        if path[: place + 1] != layers[0]:
            other = True
        elif begin is None:
            begin = number
        elif other:
            return number - begin
    return len(paths)


def _layer_place(path: tuple[str, ...]) -> int | None:
    return next((place for place, name in enumerate(path) if is_layer(name)), None)


def busy(launched: Iterable[Launched]) -> tuple[float, float]:
    """Microseconds while anything ran, and the longest time in between while nothing did."""
    total = longest_gap = 0.0
    begin = end = None
    for each in sorted(launched, key=lambda each: each.start_us):
        if begin is None or end is None:
            begin, end = each.start_us, each.end_us
        elif each.start_us > end:
            longest_gap = max(longest_gap, each.start_us - end)
            total += end - begin
            begin, end = each.start_us, each.end_us
        else:
            end = max(end, each.end_us)
    return (total + end - begin, longest_gap) if begin is not None and end is not None else (0.0, 0.0)


@dataclass(frozen=True)
class Span:
    """A range or a call on the host: on which thread, from when to when."""

    name: str
    thread: Any
    start_us: float
    end_us: float


class Nesting:
    """Which ranges surround a moment of a thread. Ranges of one thread lie within each other or apart."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._threads: dict[Any, list[Span]] = defaultdict(list)
        for span in sorted(spans, key=lambda span: (span.start_us, -span.end_us)):
            self._threads[span.thread].append(span)

    def paths(self, moments: Iterable[tuple[Any, float]]) -> list[tuple[str, ...]]:
        """For each (thread, moment) the names of the ranges around it, the outermost first."""
        wanted: dict[Any, list[tuple[float, int]]] = defaultdict(list)
        paths: list[tuple[str, ...]] = []
        for number, (thread, moment) in enumerate(moments):
            paths.append(())
            wanted[thread].append((moment, number))
        for thread, asked in wanted.items():
            self._answer(thread, sorted(asked), paths)
        return paths

    def _answer(self, thread: Any, asked: list[tuple[float, int]], paths: list[tuple[str, ...]]) -> None:
        spans, following, open_spans = self._threads.get(thread, []), 0, list[Span]()
        for moment, number in asked:
            while following < len(spans) and spans[following].start_us <= moment:
                span = spans[following]
                open_spans = [each for each in open_spans if each.end_us > span.start_us]
                open_spans.append(span)
                following += 1
            open_spans = [each for each in open_spans if each.end_us >= moment]
            paths[number] = tuple(each.name for each in open_spans)
