"""Check that what is timed is the work that was asked for: inputs that nobody can foresee, outputs that follow them.

Between samples the inputs are renewed; the outputs must be finite and change with them. After the last sample the
outputs are poisoned, the timed callable runs once more, and what it left is compared with the reference
(`Workload.witness`).

What this cannot catch: an adapter that patches the harness or torch (the clock, `Tensor.fill_`, this module); that
brings its own reference; that leaves out work whose result does not reach its outputs; or that finds out which calls
are the checked ones and works in those alone, in less than 1 / `_SHORT` of the time of the others. Work without
`inputs` may be remembered and work without a `witness` may be wrong: the record says that its outputs were compared
with nothing. An engine that times itself is believed down to the floor of its bytes and FLOPs, where these are known.
"""

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any

from harness.measure.cuda_clock import wait_for
from harness.measure.gate import Check, Verdict
from harness.measure.peak_memory import is_out_of_memory
from harness.measure.system import Input, Workload
from harness.measure.timer import Clock
from harness.schema.case import Case
from harness.schema.work import floor_ms

RENEW_EVERY_S = 0.25  # so that renewing does not change how warm and how loaded the device is
RENEW_SHARE = 0.02  # of the time, at most
# A check that other programs can make an honest case miss.
TIME_ON_NEW_INPUTS = "time_on_new_inputs_over_samples"
SAME_INPUTS = "no inputs were renewed, so outputs that were remembered would pass"
NO_ROOM = "the reference has no room beside the model, so the timed outputs were not compared"
_LOOKED_AT = 1 << 20  # elements of a tensor that are compared between samples
_GLANCED_AT = 1 << 12  # elements that are looked at in the moment in which a call returns
_WRITERS_S = 0.01  # in which a thread that is still at work would write
_LATE_S = 5e-3  # of device work after the last timed call has ended
_SHORT = 0.4  # of the time on new inputs: samples below it did less work
# Further calls before a checked call that took longer counts, as others may have disturbed it: at least the first,
# and where calls are short as many as the second within these seconds.
_TRIES, _MORE_TRIES, _TRIES_S = 6, 30, 5.0
_BRIEF_MS = 50.0  # of a call that may be checked more than once whatever it shows
_BELOW_FLOOR = 0.5  # of the floor, whose ceilings were measured with an error of their own


class Inspector:
    """Inspects one workload while it is timed. `run` is what the clock must be given."""

    def __init__(
        self, case: Case, workload: Workload, referring: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        """referring: what to enter while the reference answers."""
        self._case, self._workload, self._referring = case, workload, referring
        self._inputs = dict(workload.inputs)  # as they were handed over: what the adapter swaps later is not renewed
        self._chance = Random(secrets.randbits(128))
        self._outputs: Any = None
        self._seen: list[Any] = []
        self._kept_inputs: dict[str, Any] = {}
        self._seen_inputs: dict[str, Any] = {}
        self._threads: set[threading.Thread] | None = None  # before the call that is checked
        self._next_at = 0.0
        self._ran = False
        self._since_ns: int | None = None  # processor time when the sample now taken began
        self._worked_ms: list[float] = []  # processor time of each sample, on a CPU
        self.missed: list[Check] = []

    def run(self) -> object:
        """The workload's `run`; where a graph is captured, its outputs are those of every replay."""
        self._outputs = None  # freed first: what is timed must not hold its outputs twice
        self._outputs = self._workload.run()
        if self._threads is not None and set(threading.enumerate()) - self._threads:
            self._miss("threads_left_at_work")  # looked for while the clock runs: what ended before was timed
        return self._outputs

    def before_sample(self) -> None:
        """Renew the inputs where it is time, after a look at what the calls since the last renewal left."""
        self._end_of_sample()
        now = time.monotonic()
        if self._inputs and now >= self._next_at:
            if self._ran:
                self._look()
            self._renew()
            wait_for(self._workload.device)  # whose time to renew them counts, too
            self._ran = True
            self._next_at = time.monotonic() + max(RENEW_EVERY_S, (time.monotonic() - now) / RENEW_SHARE)
        if self._workload.device == "cpu":
            self._since_ns = time.process_time_ns()

    def _end_of_sample(self) -> None:
        if self._since_ns is not None:
            self._worked_ms.append((time.process_time_ns() - self._since_ns) / 1e6)
            self._since_ns = None

    def checked_call(self, clock: Clock, samples_ms: list[float]) -> Verdict:
        """Run the timed callable once more on fresh inputs and poisoned outputs, and compare what it left."""
        self._end_of_sample()
        if self._ran:
            self._look()
        self._renew()
        judge = self._judge()
        took = self._poisoned_call(clock)
        self._follow_inputs()
        checks = [*self._late(), *self._finite(list(tensors_of(self._outputs)))]
        unchecked = "" if judge else "the outputs of the timed calls were compared with nothing"
        renewed = "" if self._inputs else SAME_INPUTS
        if judge:
            with self._referring():
                verdict = judged(lambda: judge(self._outputs, clock.launches))
            checks += verdict.checks
            unchecked = verdict.unchecked
        checks += shape_checks(self._case, self._workload, self._outputs)
        checks += self._lengths(clock, samples_ms, took)
        return Verdict([*self.missed, *checks], "; ".join(filter(None, (unchecked, renewed))))

    def _poisoned_call(self, clock: Clock) -> "_Took":
        """One more sample, whose outputs find poison where they are written."""
        for each in tensors_of(self._outputs):
            _poison(each)
        if not clock.replays:
            self._outputs = None  # freed, so that the call may be given the poisoned memory
        self._threads = set(threading.enumerate())
        took = self._call(clock)
        self._threads = None
        self._await_writers()
        return took

    def _call(self, clock: Clock) -> "_Took":
        """One sample. Its work is told by the time that it had processors: others may make it wait for them."""
        start = time.process_time_ns()
        sample_ms = clock.sample()
        worked_ms = (time.process_time_ns() - start) / 1e6
        return _Took(sample_ms, worked_ms if self._workload.device == "cpu" else sample_ms)

    def _await_writers(self) -> None:
        """What a call returns is there when it returns: nothing else, such as a thread, is still writing it."""
        if self._workload.device != "cpu":
            return None  # `_late` waits for the device
        outputs = list(tensors_of(self._outputs))
        at_once = [_glimpse(each, _GLANCED_AT).clone() for each in outputs]
        until = time.monotonic() + _WRITERS_S
        while outputs and time.monotonic() < until:
            if not all(map(_equal, at_once, [_glimpse(each, _GLANCED_AT) for each in outputs])):
                return self._miss("outputs_written_after_the_call")
            time.sleep(_WRITERS_S / 10)
        return None

    def _judge(self) -> Callable[[Any, int], Verdict] | None:
        """The witness's; where what it keeps has no room beside what was timed, one that says so."""
        if self._workload.witness is None:
            return None
        try:
            return self._workload.witness(self._chance)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return lambda outputs, calls: Verdict([], NO_ROOM)

    def _renew(self) -> None:
        self._kept_inputs = {}
        for name, each in self._inputs.items():
            fill(each, self._chance.getrandbits(63))
            self._kept_inputs[name] = _glimpse(each.tensor).clone()

    def _look(self) -> None:
        """Outputs must be finite and have changed since the last look, and inputs must not.

        Other numbers would not do: a state that is not finite costs a GPU less power, and so less time.
        """
        self.missed += self._late()
        self._follow_inputs()
        if not all(bool(each.isfinite().all()) for each in self._seen):
            self._miss("outputs_not_finite_while_timed")
        for name, kept in self._kept_inputs.items():
            if not _equal(kept, _glimpse(self._inputs[name].tensor)):
                self._miss("inputs_changed_by_the_work")

    def _follow_inputs(self) -> None:
        """Outputs that are equal to those of other inputs were not computed from them.

        A renewed input may be the same by chance: the one token of a sequence is one of some hundreds. Whole numbers
        count where there is nothing else: among them may be the inputs themselves.
        """
        outputs = list(tensors_of(self._outputs))
        floating = [each for each in outputs if each.is_floating_point()]
        now = [_glimpse(each).clone() for each in floating or outputs]
        before = self._seen_inputs
        others = any(name in before and not _equal(before[name], kept) for name, kept in self._kept_inputs.items())
        if others and self._seen and len(now) == len(self._seen) and all(map(_equal, self._seen, now)):
            self._miss("outputs_unchanged_by_new_inputs")
        self._seen, self._seen_inputs = now, self._kept_inputs

    def _miss(self, name: str) -> None:
        if not any(check.name == name for check in self.missed):
            self.missed.append(Check.at_most(name, 1.0, 0.0))

    def _finite(self, outputs: list[Any]) -> Iterator[Check]:
        """Everywhere: what was poisoned and not written is not finite either."""
        floating = [each for each in outputs if each.is_floating_point()]
        if floating:
            lost = sum(int((~chunk.isfinite()).sum()) for each in floating for chunk in each.reshape(-1).split(1 << 26))
            yield Check.at_most("outputs_not_finite", lost, 0)

    def _late(self) -> list[Check]:
        """Device work that the clock did not wait for."""
        if self._workload.device != "cuda":
            return []
        start = time.monotonic()
        wait_for("cuda")
        late = time.monotonic() - start
        return [Check.at_most("seconds_of_work_after_the_call", late, _LATE_S)] if late > _LATE_S else []

    def _lengths(self, clock: Clock, samples_ms: list[float], took: "_Took") -> Iterator[Check]:
        """Calls on inputs that were not seen before must not work much longer than the samples, or than calls again.

        Their outputs must follow them, as those of the samples.
        """
        if not self._inputs:
            return
        typical_ms, again_ms = self._typical_ms(samples_ms), math.inf
        end = time.monotonic() + _TRIES_S
        for number in range(_MORE_TRIES):
            if number >= _TRIES and time.monotonic() > end:
                break
            alike = min(typical_ms, again_ms) >= _SHORT * took.worked_ms
            if alike and (number >= 2 or took.sample_ms > _BRIEF_MS):
                return
            self._renew()
            took = took.least(self._poisoned_call(clock))
            self._follow_inputs()
            again_ms = min(again_ms, self._call(clock).worked_ms)  # side by side, as others may disturb both
        usual_ms = min(typical_ms, again_ms)
        if usual_ms < _SHORT * took.worked_ms:
            yield Check.at_most(TIME_ON_NEW_INPUTS, took.worked_ms / max(usual_ms, 1e-9), 1 / _SHORT)

    def _typical_ms(self, samples_ms: list[float]) -> float:
        """How long a sample worked; infinite where that is not known, as of one that was not timed."""
        if self._workload.device != "cpu":
            return median(samples_ms) * self._workload.units
        return median(self._worked_ms[-len(samples_ms) :]) if self._worked_ms else math.inf


@dataclass(frozen=True)
class _Took:
    """Milliseconds of a sample, and those in which it worked: of all threads on a CPU."""

    sample_ms: float
    worked_ms: float

    def least(self, other: "_Took") -> "_Took":
        return _Took(min(self.sample_ms, other.sample_ms), min(self.worked_ms, other.worked_ms))


def judged(judge: Callable[[], Verdict]) -> Verdict:
    """The verdict, or that there is none where the reference has no room beside what was timed."""
    try:
        return judge()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return Verdict([], NO_ROOM)


def tensors_of(outputs: Any) -> Iterator[Any]:
    """The plain torch tensors in a tensor, or in nested tuples, lists and dicts of them."""
    return (each for each in leaves_of(outputs) if _is_plain(each))


def leaves_of(outputs: Any) -> Iterator[Any]:
    """What lies in nested tuples, lists and dicts; in no class of theirs, which may do its work when it is read."""
    if type(outputs) in (tuple, list, dict):
        for each in outputs.values() if type(outputs) is dict else outputs:
            yield from leaves_of(each)
    else:
        yield outputs


def _is_plain(value: Any) -> bool:
    """A tensor that holds numbers: no class of it that may compute them when they are read."""
    return type(value).__module__ == "torch" and type(value).__name__ == "Tensor" and value.device.type != "meta"


def claim_checks(case: Case, workload: Workload) -> Iterator[Check]:
    """The tokens of a sample, by which its time is divided, must be the case's; of an engine, of those in flight."""
    whole = case.context + case.new_tokens  # of a request
    claimed = case.batch * {"forward": case.context, "generate": 1, "request": whole}[case.phase]
    at_once = workload.metrics.get("sequences_at_once")
    if case.phase == "generate" and workload.engine_samples is not None and at_once:
        claimed = min(int(at_once), case.batch)
    if workload.tokens != claimed:
        yield Check.at_most("tokens_off_the_case", abs(workload.tokens - claimed), 0)


def shape_checks(case: Case, workload: Workload, outputs: Any) -> Iterator[Check]:
    """What goes in and comes out must be as large as the case."""
    for each in workload.inputs.values():
        for axis, wanted in ((each.batch_axis, case.batch), (each.token_axis, case.context)):
            if axis is not None and not -each.tensor.dim() <= axis < each.tensor.dim():
                raise ValueError(f"an input of {each.tensor.dim()} axes has no axis {axis}, which it names")
            if axis is not None and each.tensor.shape[axis] != wanted:
                yield Check.at_most("input_sizes_off_the_case", abs(each.tensor.shape[axis] - wanted), 0)
    if not workload.inputs and not workload.witness:
        return  # outputs of which nothing is claimed
    leaves = list(leaves_of(outputs))
    tensors = [each for each in leaves if _is_plain(each)]
    if len(tensors) < len(leaves) or not leaves:
        yield Check.at_most("outputs_that_are_no_plain_tensors", len(leaves) - len(tensors) or 1, 0)
    for each in tensors:
        if case.batch not in each.shape:
            yield Check.at_most("outputs_without_the_batch", 1, 0)
    if workload.units > 1 and not workload.witness and not _shows(tensors, workload.units):
        yield Check.at_most("outputs_without_the_units", workload.units, 1)


def _shows(tensors: list[Any], units: int) -> bool:
    """Whether the outputs have room for what each unit gave: an axis of that many, or as many tensors."""
    return len(tensors) >= units or any(units in each.shape for each in tensors)


def floor_check(workload: Workload, samples_ms: list[float]) -> list[Check]:
    """No sample is shorter than half of the time that its bytes and FLOPs need at the measured ceilings."""
    least_ms = floor_ms(workload.metrics.get("flops"), workload.metrics.get("bytes"), workload.metrics)
    shortest = min(samples_ms)
    if not least_ms or shortest >= _BELOW_FLOOR * least_ms:
        return []
    return [Check.at_most("floor_over_shortest_sample", least_ms / max(shortest, 1e-9), 1 / _BELOW_FLOOR)]


def fill(given: Input, seed: int) -> None:
    """Fill a tensor in place from a seed."""
    import torch

    chance = torch.Generator(given.tensor.device).manual_seed(seed)
    with torch.inference_mode(given.tensor.is_inference()):
        if given.fill == "normal":
            given.tensor.normal_(0.0, given.scale, generator=chance)
        elif given.fill == "uniform":
            given.tensor.uniform_(0.0, given.scale, generator=chance)
        else:
            given.tensor.random_(0, int(given.scale), generator=chance)


def _poison(tensor: Any) -> None:
    import torch

    if tensor.is_floating_point():
        with torch.inference_mode(tensor.is_inference()):
            tensor.fill_(math.nan)


def _glimpse(tensor: Any, most: int = _LOOKED_AT) -> Any:
    """At most some `most` elements, from all over the tensor."""
    found = tensor.detach()
    if found.is_contiguous():
        flat = found.reshape(-1)
        return flat[:: max(1, -(-flat.numel() // most))]
    for axis in range(found.dim()):
        step = max(1, -(-found.numel() // most))
        found = found[(slice(None),) * axis + (slice(None, None, step),)]
    return found


def _equal(a: Any, b: Any) -> bool:
    import torch

    return a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
