"""Time a callable: warm up, then sample until the median is precise or the budget ends."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from harness.measure.interval import median_interval
from harness.schema.policy import Policy

LEAST_SAMPLES = 20  # before the interval may end sampling: fewer may agree by chance
LEAST_S = 0.5  # before the interval may end sampling: clocks swing, and twenty short samples lie in one swing
MAX_SAMPLES = 1000  # further samples narrow the interval by less than runs differ
DOUBTFUL = 2.0  # the budget is extended while the interval exceeds this multiple of the policy's precision
PATIENCE = 5.0  # budgets that a case with a wide interval may take in all
LONGEST_WAIT_S = 60.0  # beyond the budget, at most: a case has a time limit
WARMUP_S = 0.2  # least warm-up
WARMUP_MAX_S = 5.0
WARMUP_BUDGETS = 12  # longest warm-up in budgets; a budget of 1/6 s still allows the 2 s in which a GPU settles
STEADY = 0.02  # largest relative difference of two successive windows that agree
_WINDOW = 5  # samples of a window
_WINDOW_S = 0.5  # seconds of a window of fewer samples, if calls are long
BATCHES = 2  # batches of an engine before its interval may end sampling
ENGINE_PATIENCE = 10  # budgets of wall time that an engine may take, with its prompts


@dataclass
class Timing:
    """Raw samples in milliseconds.

    throttled: for each sample, whether the device was throttled after the sample (for an engine, after its batch).
    stop: why sampling ended: "interval" (precise median), "budget" (time), "count" (1,000 samples or last batch).
    """

    samples_ms: list[float]
    throttled: list[bool]
    stop: str


class Clock:
    """Times a callable on a CPU by the host's clock; `CudaEventClock` times one on a GPU.

    own_bytes: device memory that the clock itself allocates. launches: calls of the callable per sample.
    wakes_s: seconds of load until an idle device's speed is steady. settles_s: the same for a throttled device.
    loaded_s: seconds for which an earlier call loaded the device; if long enough, `warm_up` takes no samples.
    replays: whether each call replays a CUDA graph and so overwrites the same outputs.
    """

    own_bytes = 0
    launches = 1
    wakes_s = settles_s = loaded_s = 0.0
    replays = False

    def prepare(self, run: Callable[[], object]) -> None:
        """Set `run` as the callable to sample, and call it once so that it is compiled."""
        self._run = run
        run()

    def sample(self) -> float:
        """Take one sample; return milliseconds per call, the mean over `launches` calls."""
        start = time.perf_counter_ns()
        self._run()
        return (time.perf_counter_ns() - start) / 1e6

    def now(self) -> float:
        """Return the time in seconds by which `warm_up` and `take_samples` measure durations."""
        return time.monotonic()


def never_throttled() -> bool:
    return False


def measure(run: Callable[[], object], clock: Clock, policy: Policy, limited: bool = True) -> Timing:
    """Warm up and time `run`. limited: whether to warm up as long as a throttled device needs."""
    clock.prepare(run)
    warm_up(clock, policy, lambda: limited)
    return take_samples(clock, policy)


def warm_up(clock: Clock, policy: Policy, throttled: Callable[[], bool] = never_throttled) -> list[float]:
    """Sample until the time per call is steady; return the samples of this warm-up.

    The warm-up lasts at least `least_warmup_s`. Steady or not, it ends after min(5 s, 12 * policy.budget_s).
    throttled: returns whether the device is throttled; then the warm-up is longer.
    Return [] without sampling if an earlier call loaded the device long enough (`clock.loaded_s`).
    """
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
    """Return the minimum warm-up in seconds. limited: whether the device is throttled."""
    return min(_most_warmup_s(policy), max(WARMUP_S, clock.settles_s if limited else clock.wakes_s))


def _most_warmup_s(policy: Policy) -> float:
    return min(WARMUP_MAX_S, WARMUP_BUDGETS * policy.budget_s)


def _is_steady(samples: list[float], seconds_each: float) -> bool:
    window = min(_WINDOW, max(1, math.ceil(_WINDOW_S / max(seconds_each, 1e-9))))
    if len(samples) < 2 * window:
        return False
    earlier, later = median(samples[-2 * window : -window]), median(samples[-window:])
    return abs(later - earlier) <= STEADY * earlier


def take_samples(
    clock: Clock,
    policy: Policy,
    throttled: Callable[[], bool] = never_throttled,
    before_sample: Callable[[], None] = lambda: None,
    least_s: float = LEAST_S,
) -> Timing:
    """Sample until `stop_reason` returns a reason to stop, such as a precise median.

    before_sample: called before each sample. throttled: called after each sample, returns whether the GPU is throttled.
    least_s: a precise median ends the sampling only after this many seconds, or after the budget if that is shorter.
    """
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
    units: int = 1,
) -> list[Sequence[float]]:
    """Run batches of a system that times itself, for at least `least_warmup_s`.

    batches_ms: yields each batch's samples in ms per unit of work. units: number of units of work in a sample.
    throttled: returns whether the device is throttled; then the warm-up lasts longer.
    Return [last batch] if enough warm-up preceded its samples, which can then be used; otherwise [].
    """
    start, limited = time.monotonic(), False
    for batch in batches_ms:
        limited = limited or throttled()
        least, elapsed = least_warmup_s(clock, policy, limited), time.monotonic() - start
        if elapsed >= least:
            return [batch] if 0 < least <= elapsed - units * sum(batch) / 1e3 else []
    return []


def take_engine_samples(
    batches_ms: Iterable[Sequence[float]],
    policy: Policy,
    throttled: Callable[[], bool] = never_throttled,
    units: int = 1,
) -> Timing:
    """Collect samples of a system that times itself, until `stop_reason` or the last batch.

    The arguments are those of `warm_up_engine`; `throttled` is called after each batch.
    All samples of a batch are used, because the first steps after a prompt differ from later steps. Samples of a batch
    are correlated, so a precise median ends sampling only after two batches.
    The budget counts the samples' total time, but at least a tenth of the wall time.
    Raises ValueError if there are no samples.
    """
    timing = Timing([], [], "")
    start = time.monotonic()
    for number, batch in enumerate(batches_ms, start=1):
        timing.samples_ms += map(float, batch)
        timing.throttled += [throttled()] * len(batch)
        spent_s = max(units * sum(timing.samples_ms) / 1e3, (time.monotonic() - start) / ENGINE_PATIENCE)
        timing.stop = stop_reason(timing.samples_ms, spent_s, policy, due=number >= BATCHES)
        if timing.stop:
            break
    if not timing.samples_ms:
        raise ValueError("the engine returned no samples")
    timing.stop = timing.stop or "count"
    return timing


def stop_reason(
    samples: list[float], elapsed_s: float, policy: Policy, due: bool | None = None, least_s: float = LEAST_S
) -> str:
    """Return why to end sampling, or "" to continue; "" below `policy.min_samples` samples.

    "interval": the median is precise: both ends of its 95% interval are at most policy.precision * median away.
        This needs at least 20 samples and min(least_s, policy.budget_s) seconds.
    "count": there are 1,000 samples.
    "budget": the time policy.budget_s is over. While an end is over 2 * policy.precision * median away, the budget is
        extended to at most 5 * budget_s, and by at most 60 s. While there are also fewer than min_samples * 3 // 2
        samples, only the limit of 60 s applies. A budget of 0 is not extended.
    elapsed_s: seconds of sampling so far.
    due: whether to compute the interval now; None to compute it after about every 10% more samples, which saves time.
    """
    if len(samples) < policy.min_samples:
        return ""
    if due is None:
        due = not len(samples) % max(1, len(samples) // 10)
    enough = len(samples) >= LEAST_SAMPLES and elapsed_s >= min(least_s, policy.budget_s)
    if due and enough and _is_precise(samples, policy.precision):
        return "interval"
    if len(samples) >= MAX_SAMPLES:
        return "count"
    if elapsed_s < policy.budget_s:
        return ""
    last_s = min(PATIENCE * policy.budget_s, policy.budget_s + LONGEST_WAIT_S)
    if last_s and len(samples) < policy.min_samples * 3 // 2:
        last_s = policy.budget_s + LONGEST_WAIT_S
    known = due and _is_precise(samples, DOUBTFUL * policy.precision)
    return "budget" if known or elapsed_s >= last_s else ""


def _is_precise(samples: list[float], within: float) -> bool:
    middle, low, high = median_interval(samples)
    return max(high - middle, middle - low) <= within * middle
