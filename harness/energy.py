"""Joules that a GPU draws while a case is sampled, from the driver's counter."""

import time
from threading import Event, Thread

from harness.nvml import Gpu

LOOK_EVERY_S = 0.02
LATE_S = 0.05  # after the look before: the driver, or the thread that samples, held up a look that is later
NEEDS_S = 0.7  # between two refreshes, each seen mostly up to LOOK_EVERY_S late: within 3%; up to LATE_S: 7%
LASTS_S = 1.0  # a block in which refreshes are surely so far apart
FILLS = 0.9  # of the block by samples, or the mean power is that of something else too


class EnergyMeter:
    """What the GPU drew inside of a `with` block.

    The driver refreshes its counter some ten times a second, and a sample or a region begins and ends anywhere between:
    over one second, what is read at both ends is up to 10% off. So a thread sees when it is refreshed, which leaves
    nothing for the sampling to wait for, and the block has the mean power from the first refresh to the last.
    """

    def __init__(self, gpu: Gpu | None) -> None:
        self._gpu = gpu
        self._over = Event()
        self._seen: float | None = None
        self._looks: tuple[float, float] | None = None  # when the first and the last were
        self._refreshes: list[tuple[float, float]] = []

    def __enter__(self) -> "EnergyMeter":
        if self._gpu:
            self._thread = Thread(target=self._watch, args=(self._gpu,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._gpu:
            self._thread.join()

    def per_token(self, tokens: int, seconds: float) -> dict[str, float | None]:
        """The metric `energy_j_per_token` of so many in so many seconds; nothing where it is not known well enough.

        Nor where the seconds are fewer than nine tenths of the block's, as those of an engine's steps between prompts.
        """
        if len(self._refreshes) < 2 or not tokens or self._looks is None:
            return {}
        began, ended = self._looks
        if seconds < FILLS * (ended - began):
            return {}
        (first_s, first_j), (last_s, last_j) = self._refreshes[0], self._refreshes[-1]
        if last_s - first_s < NEEDS_S:
            return {}
        return {"energy_j_per_token": (last_j - first_j) / (last_s - first_s) * seconds / tokens}

    def look(self, now: float, joules: float | None) -> None:
        """What the counter says by `now`: a refresh where it says something else than at a look just before."""
        first, before = self._looks or (now, now)
        self._looks = (first, now)
        if joules is None or joules == self._seen:
            return
        if self._seen is not None and now - before <= LATE_S:
            self._refreshes.append((now, joules))
        self._seen = joules

    def _watch(self, gpu: Gpu) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            joules = gpu.energy_j()
            self.look(time.monotonic(), joules)
