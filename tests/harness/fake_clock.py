"""A clock for tests of sampling."""

from collections.abc import Callable, Iterable

from harness.measure.timer import Clock


class FakeClock(Clock):
    """A clock that returns given samples in ms; each sample advances the time by its duration plus `between_ms`."""

    def __init__(
        self, samples: Iterable[float], settles_s: float = 0.0, wakes_s: float = 0.0, between_ms: float = 0.0
    ) -> None:
        self.settles_s, self.wakes_s, self._between_ms = settles_s, wakes_s, between_ms
        self._samples = iter(samples)
        self._now_ms = 0.0

    def prepare(self, run: Callable[[], object]) -> None:
        pass

    def sample(self) -> float:
        value = next(self._samples)
        self._now_ms += value + self._between_ms
        return value

    def now(self) -> float:
        return self._now_ms / 1e3
