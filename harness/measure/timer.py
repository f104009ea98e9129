"""Time a callable: warm up until steady, then sample until the median is known or the budget ends."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from harness.measure.interval import median_interval
from harness.schema.policy import Policy

LEAST_SAMPLES = 20  # before the interval may end sampling: six of a machine that is about to change agree as well
LEAST_S = 0.5  # likewise: clocks swing, and a millisecond's twenty samples lie in one swing
MAX_SAMPLES = 1000  # more narrow the interval of short work by less than runs differ
DOUBTFUL = 2.0  # precisions: an interval beyond them at the end of the budget shows a disturbance, which is waited for
PATIENCE = 5.0  # budgets in all for a disturbance to pass
LONGEST_WAIT_S = 60.0  # beyond the budget, likewise: a case has a time limit
WARMUP_S = 0.2  # of a device that needs no longer
WARMUP_MAX_S = 5.0  # whatever still drifts
WARMUP_BUDGETS = 12  # at most: six rounds share a GPU's budget of a second and still settle for 2 s each
STEADY = 0.02  # relative difference of two successive windows
_WINDOW = 5  # samples whose median is compared with that of the five before them
_WINDOW_S = 0.5  # that a window needs to last: of longer work it has fewer samples, down to one
BATCHES = 3  # of an engine, from which on its samples tell how well their median is known
READS = 10  # times the budget may an engine take in all, what it does not time included


@dataclass
class Timing:
    """Raw samples in ms, whether the GPU was throttled at each or up to 20 ms before, and what ended sampling."""

    samples_ms: list[float]
    throttled: list[bool]
    stop: str


def no_inspection() -> None:
    """For work that is not inspected between its samples."""


class Clock(Protocol):
    """Times one callable. `own_bytes` of device memory are the clock's, not the callable's.

    wakes_s: seconds of load after which a device that was at rest runs at its speed. settles_s: the same for a load
    that its controllers slow down. loaded_s: seconds of them that `prepare` spent, its first call left out.
    replays: whether calls are replays of a capture, which write to the outputs of the captured one.
    """

    own_bytes: int
    launches: int
    wakes_s: float
    settles_s: float
    loaded_s: float
    replays: bool

    def prepare(self, run: Callable[[], object]) -> None:
        """Make ready to time `run`: call it, which may compile; capture it; choose how many launches make a sample."""

    def sample(self) -> float:
        """Milliseconds of one call, the mean of the `launches` calls that make a sample."""

    def now(self) -> float:
        """Seconds on the clock of the budgets."""


class CpuClock:
    """The monotonic clock of the host around one call."""

    own_bytes = 0
    launches = 1
    wakes_s = settles_s = loaded_s = 0.0
    replays = False

    def prepare(self, run: Callable[[], object]) -> None:
        """Keep `run`, and call it once."""
        self._run = run
        run()

    def sample(self) -> float:
        """Milliseconds of one call."""
        start = time.perf_counter_ns()
        self._run()
        return (time.perf_counter_ns() - start) / 1e6

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()


def never_throttled() -> bool:
    """For devices that report no throttling."""
    return False


def measure(run: Callable[[], object], clock: Clock, policy: Policy, limited: bool = True) -> Timing:
    """Time `run`: prepare, warm up, sample. limited: whether it may be a load that the device slows down."""
    clock.prepare(run)
    warm_up(clock, policy, lambda: limited)
    return take_samples(clock, policy)


def warm_up(clock: Clock, policy: Policy, throttled: Callable[[], bool] = never_throttled) -> list[float]:
    """Run until steady, the device's controllers included; the samples on the way there."""
    samples: list[float] = []
    if clock.loaded_s >= least_warmup_s(clock, policy, limited=True):
        return samples
    start, limited = clock.now(), False
    while True:
        samples.append(clock.sample())
        limited = limited or throttled()
        elapsed, least = clock.now() - start, least_warmup_s(clock, policy, limited)
        each = elapsed / len(samples)
        steady = each >= least or _is_steady(samples, each)
        if elapsed >= _most_warmup_s(policy) or (elapsed >= least and steady):
            return samples


def least_warmup_s(clock: Clock, policy: Policy, limited: bool) -> float:
    """Seconds of warm-up before steadiness ends it. limited: whether the device slows the load down."""
    return min(_most_warmup_s(policy), max(WARMUP_S, clock.settles_s if limited else clock.wakes_s))


def _most_warmup_s(policy: Policy) -> float:
    return min(WARMUP_MAX_S, WARMUP_BUDGETS * policy.budget_s)


def _is_steady(samples: list[float], seconds_each: float) -> bool:
    """Whether the last two windows of samples agree."""
    window = min(_WINDOW, max(1, math.ceil(_WINDOW_S / max(seconds_each, 1e-9))))
    if len(samples) < 2 * window:
        return False
    earlier, later = median(samples[-2 * window : -window]), median(samples[-window:])
    return abs(later - earlier) <= STEADY * earlier


def take_samples(
    clock: Clock,
    policy: Policy,
    throttled: Callable[[], bool] = never_throttled,
    before_sample: Callable[[], None] = no_inspection,
    least_s: float = LEAST_S,
) -> Timing:
    """Sample until a stopping rule of `policy` holds; least_s: seconds before the interval may end sampling."""
    timing = Timing([], [], "")
    start = clock.now()
    while not timing.stop:
        before_sample()
        timing.samples_ms.append(clock.sample())
        timing.throttled.append(throttled())
        timing.stop = stop_reason(timing.samples_ms, clock.now() - start, policy, least_s=least_s)
    return timing


def warm_up_engine(
    batches_ms: Iterator[Sequence[float]],
    policy: Policy,
    clock: Clock,
    throttled: Callable[[], bool] = never_throttled,
) -> None:
    """Let a system that times itself run until steady; its first batch, which compiles, is never counted."""
    start, limited = time.monotonic(), False
    for _ in batches_ms:
        limited = limited or throttled()
        if time.monotonic() - start >= least_warmup_s(clock, policy, limited):
            return


def take_engine_samples(
    batches_ms: Iterable[Sequence[float]], policy: Policy, throttled: Callable[[], bool] = never_throttled
) -> Timing:
    """Samples of a system that times itself, until it or a stopping rule ends them; ValueError if there is none.

    All of a batch are kept, as all were measured: its first steps alone are those of a GPU that has just read prompts.
    How well the median is known is asked of `BATCHES` batches and more, as the steps of one have much in common; with
    fewer only the budget or `MAX_SAMPLES` ends sampling. The budget is of what was sampled, and in all `READS` times as
    much: an engine reads prompts before it makes steps.
    """
    timing = Timing([], [], "")
    start = time.monotonic()
    for number, batch in enumerate(batches_ms, start=1):
        timing.samples_ms += map(float, batch)
        timing.throttled += [throttled()] * len(batch)
        spent_s = max(sum(timing.samples_ms) / 1e3, (time.monotonic() - start) / READS)
        timing.stop = stop_reason(timing.samples_ms, spent_s, policy, due=number >= BATCHES)
        if timing.stop:
            break
    if not timing.samples_ms:
        raise ValueError("the engine handed back no samples")
    timing.stop = timing.stop or "count"
    return timing


def stop_reason(
    samples: list[float], elapsed_s: float, policy: Policy, due: bool | None = None, least_s: float = LEAST_S
) -> str:
    """Why sampling is over: "interval", "count" or "budget"; "" while it is not.

    Once the budget ends, a disturbed case is sampled for up to `PATIENCE` budgets or `LONGEST_WAIT_S` more. Samples so
    long that this leaves `min_samples`: half as many again, as one of six alone widens the interval.
    due: whether to look at the interval; None is when a tenth more are taken, as sorting costs more than short samples.
    """
    if len(samples) < policy.min_samples:
        return ""
    if due is None:
        due = not len(samples) % max(1, len(samples) // 10)
    enough = len(samples) >= LEAST_SAMPLES and elapsed_s >= min(least_s, policy.budget_s)
    if due and enough and _is_known(samples, policy.precision):
        return "interval"
    if len(samples) >= MAX_SAMPLES:
        return "count"
    if elapsed_s < policy.budget_s:
        return ""
    last_s = min(PATIENCE * policy.budget_s, policy.budget_s + LONGEST_WAIT_S)
    if last_s and len(samples) < policy.min_samples * 3 // 2:
        last_s = policy.budget_s + LONGEST_WAIT_S
    known = due and _is_known(samples, DOUBTFUL * policy.precision)
    return "budget" if known or elapsed_s >= last_s else ""


def _is_known(samples: list[float], within: float) -> bool:
    middle, low, high = median_interval(samples)
    return max(high - middle, middle - low) <= within * middle
