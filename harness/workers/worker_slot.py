"""The place of one system's worker: filled when it is needed, emptied when the worker is not to be trusted."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from harness.measure.environment import around
from harness.schema.reason import of_exception
from harness.workers.probe import Probe, probe_of
from harness.workers.process import Launch, WorkerLost, WorkerProcess

_STARTS = 2  # tries to start a worker


class WorkerSlot:
    """At most one worker of a system at a time; the `with` block ends with it.

    start_s: how long a worker may take to start. stopped: as of `WorkerProcess`. found: what the last worker that was
    started found, None before the first.
    """

    def __init__(self, launch: Launch, start_s: float, stopped: Callable[[], bool] = lambda: False) -> None:
        self.found: Probe | None = None
        self.ending_words = ""  # of the last worker that was told to end, on stderr
        self.launch = launch
        self._start_s, self._stopped = start_s, stopped
        self._worker: WorkerProcess | None = None

    def ready(self) -> Probe:
        """What a worker found, which is here if it can run the system. A system once refused is not tried again."""
        if self._worker is not None and not self._worker.is_quiet():
            self.discard()  # it died or spoke out of turn after its last case
        if self._worker is None and (self.found is None or self.found.available):
            for _ in range(_STARTS):
                self.found = self._start()
                if self.found.status != "unstarted":
                    break
        assert self.found is not None
        return self.found

    def ask(self, request: Mapping[str, Any], limit_s: float, *, last: bool = False) -> dict[str, Any]:
        """The answer to a "case", with the seconds it took as "waited_s"; WorkerLost where there is none.

        A worker that asks for a new one gets it once. One that is lost or calls itself unhealthy is discarded, the
        latter not where this is the last that it is asked, so that it may end by itself.
        """
        try:
            for _ in range(2):
                found = self.ready()
                if self._worker is None:
                    raise WorkerLost(found.status, found.reason)
                start = time.monotonic()
                answer = self._worker.ask(request, limit_s)
                if not answer.get("fresh"):
                    break
                self.stop()
            else:
                raise WorkerLost("failed", "a new worker of the system asked for another one")
        except WorkerLost:
            self.discard()
            raise
        if not answer.get("healthy") and not last:
            self.discard()
        return {**answer, "waited_s": time.monotonic() - start}

    def discard(self) -> None:
        """Kill the worker, which frees its memory."""
        if self._worker is not None:
            self._worker.kill()
        self._worker = None

    def stop(self, *limit_s: float) -> int | None:
        """Let the worker end, with time to clean up; its exit status, None where it had to be killed."""
        if self._worker is None:
            return 0
        status = self._worker.stop(*limit_s)
        self.ending_words = self._worker.ending_words
        self._worker = None
        return status

    def __enter__(self) -> "WorkerSlot":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        self.discard()

    def _start(self) -> Probe:
        try:
            self._worker = WorkerProcess(self.launch, self._stopped)
            found = probe_of(self._worker.ask({"do": "probe"}, self._start_s))
            around(found.environment, found.environment)  # it must have the shape of one
        except WorkerLost as lost:
            self.discard()
            return Probe("unstarted", f"the system could not be started: {lost.reason}")
        except (AttributeError, TypeError, ValueError) as error:
            self.discard()
            return Probe("unstarted", f"the worker's answer to a probe is unusable: {of_exception(error)}")
        if not found.available:
            self.discard()
        return found
