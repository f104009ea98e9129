"""Check that the timed call does the case's work: outputs must depend on fresh inputs.

Between samples, the inputs are refilled at random. At the end, the outputs are set to NaN, computed again and compared
with the reference (`Workload.timed_check`). These checks find mistakes, not an adapter that cheats on purpose.
If a workload has no `inputs` or no `timed_check`, the checks that need them are omitted, and the record notes it.
"""

import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import or_
from random import Random
from statistics import median
from typing import Any, TypeVar

from harness.measure.correctness import Check, Checks
from harness.measure.cuda_clock import wait_for
from harness.measure.process_state import is_out_of_memory
from harness.measure.system import Input, Workload
from harness.measure.timer import Clock
from harness.schema.case import Case
from harness.schema.work import lower_bound_ms

T = TypeVar("T")

RENEW_EVERY_S = 0.25  # minimum seconds between refills, as more refills would change the device's load and heat
RENEW_SHARE = 0.02  # largest share of the time for refills
SAME_INPUTS = "no inputs were refilled, so cached outputs would pass"
NOT_COMPARED = "the outputs of the timed calls were not compared with a reference"
NO_ROOM = "the reference does not fit next to the model, so the timed outputs were not compared"
_COMPARED_ELEMENTS = 1 << 20  # approximate number of elements compared per tensor between samples
_RECENT = 64  # last tokens that a refill of early tokens leaves unchanged: outputs must not depend on these alone
_LATE_S = 5e-3  # seconds of device work allowed after the end of the timed call
_BELOW_BOUND = 0.5  # minimum duration as a share of the roofline bound, as measured peaks have errors
_CACHED = 5.0  # outputs are cached if samples with new inputs take longer than this multiple of the median
_CACHE_TRIALS = 12  # such samples: a busy machine delays some of an honest call's, but not all
_LEAST_MS = 0.1  # shorter medians count as this long


class CallChecker:
    """Checks that outputs of timed calls change with the inputs. The clock must time `CallChecker.run`."""

    def __init__(self, case: Case, workload: Workload) -> None:
        self._case, self._workload = case, workload
        self._rng = Random(secrets.randbits(128))
        self._outputs: Any = None
        self._output_rows: list[Any] = []  # `_rows` of the previous outputs
        self._earlier_input_rows: dict[str, Any] = {}
        self._next_at = 0.0
        self._refilled = False
        self.failed_checks: list[Check] = []
        self._input_rows = self._rows_of_inputs()

    def run(self) -> object:
        """Call `Workload.run`; store its outputs for the checks, and return them."""
        self._outputs = None  # freed first: the timed call must not hold its outputs twice
        self._outputs = self._workload.run()
        return self._outputs

    def before_sample(self) -> None:
        """Check the last outputs and refill the inputs every 0.25 s, or less often if refills are slow."""
        now = time.monotonic()
        if self._workload.inputs and now >= self._next_at:
            if self._refilled:
                self._check_outputs()
            self._renew()
            wait_for(self._workload.device)
            self._refilled = True
            self._next_at = time.monotonic() + max(RENEW_EVERY_S, (time.monotonic() - now) / RENEW_SHARE)

    def checked_call(self, clock: Clock, sample_ms: float = math.inf) -> Checks:
        """Refill the inputs, run and check the timed call; return its checks and the checks that failed earlier.

        clock: the clock that timed `run`. sample_ms: the median sample's duration, to find a cache for repeated inputs.
        The previous outputs are first set to NaN. If early tokens can be replaced (in an input with a token axis, or by
        `Workload.renews_past`), a second call replaces them. The outputs of each sequence with new ones must change.
        """
        if self._refilled:
            self._check_outputs()
        if self._workload.inputs and sample_ms < RENEW_EVERY_S * 1e3 and not clock.replays:
            self._check_cached(clock, sample_ms)
        self._renew()
        checked = self._compared_call(clock, "outputs_unchanged_by_new_inputs")
        has_past = any(each.token_axis is not None for each in self._workload.inputs.values())
        if has_past or self._workload.renews_past:
            self._renew(early_only=True)
            checked = _worst_by_name(checked + self._compared_call(clock, "outputs_unchanged_by_early_tokens"))
        renewed = "" if self._workload.inputs else SAME_INPUTS
        return Checks([*self.failed_checks, *checked.checks], "; ".join(filter(None, (checked.unchecked, renewed))))

    def _check_cached(self, clock: Clock, sample_ms: float) -> None:  # a graph does the same work for all inputs
        usual_ms, new_ms, again_ms = max(sample_ms, _LEAST_MS), math.inf, math.inf
        for _ in range(_CACHE_TRIALS):
            self._renew()
            wait_for(self._workload.device)
            new_ms = min(new_ms, clock.sample() * clock.launches)
            self._check_outputs()
            if new_ms <= _CACHED * usual_ms:
                return
            again_ms = min(again_ms, clock.sample() * clock.launches)
        usual_ms = max(usual_ms, again_ms)  # the machine may be busier than during the samples
        if new_ms > _CACHED * usual_ms:
            self.failed_checks.append(Check.at_most("time_with_new_inputs_over_median", new_ms / usual_ms, _CACHED))

    def _compared_call(self, clock: Clock, unchanged: str) -> Checks:
        compare, checked = self._start_check()
        for each in tensors_of(self._outputs):
            _poison(each)
        if not clock.replays:
            self._outputs = None  # freed, so that the call may get the poisoned memory
        self._input_rows = self._rows_of_inputs()  # the check may have changed them
        clock.sample()
        self._check_changed(unchanged, self._workload.renews_past and compare is not None)
        finite = Checks([*self._late(), *_finite(self._outputs)])
        if compare:
            checked = unless_out_of_memory(lambda: compare(self._outputs, clock.launches))
            checked = checked if checked.checks or checked.unchecked else Checks([], NOT_COMPARED)
        return finite + checked + Checks(list(shape_checks(self._case, self._workload, self._outputs)))

    def _start_check(self) -> tuple[Callable[[Any, int], Checks] | None, Checks]:
        start = self._workload.timed_check
        if start is None:
            return None, Checks([], NOT_COMPARED)
        compare = unless_out_of_memory(lambda: start(self._rng))
        if isinstance(compare, Checks) and compare.checks:
            raise TypeError("timed_check(rng) must return a function that returns Checks, not Checks")
        return (None, compare) if isinstance(compare, Checks) else (compare, Checks([]))

    def _renew(self, early_only: bool = False) -> None:
        for each in self._workload.inputs.values():
            fill(each, self._rng.getrandbits(63), early_only)
        self._input_rows = self._rows_of_inputs()

    def _rows_of_inputs(self) -> dict[str, Any]:
        return {name: _rows(each.tensor, each.batch_axis) for name, each in self._workload.inputs.items()}

    def _check_outputs(self) -> None:
        self.failed_checks += self._late()
        self._check_changed()
        # With NaN or infinity, a GPU needs less power and time.
        if not all(bool(each.isfinite().all()) for each in self._output_rows):
            self._fail("outputs_not_finite_while_timed")

    def _check_changed(self, name: str = "outputs_unchanged_by_new_inputs", past_renewed: bool = False) -> None:
        """Fail the check `name` if a sequence has new inputs, but the same outputs as before. Inputs must not change.

        past_renewed: whether `timed_check` drew new early tokens; then all sequences' inputs count as new.
        """
        if not all(rows.equal(self._input_rows[name]) for name, rows in self._rows_of_inputs().items()):
            self._fail("inputs_changed_by_the_work")
        outputs, batch = list(tensors_of(self._outputs)), self._case.batch
        floating = [each for each in outputs if each.is_floating_point()]  # integers can be the inputs themselves
        now = [_rows(x, x.shape.index(batch) if batch in x.shape else None) for x in floating or outputs]
        before, before_inputs = self._output_rows, self._earlier_input_rows
        self._output_rows, self._earlier_input_rows = now, self._input_rows
        if before and before_inputs and [x.shape for x in now] == [x.shape for x in before]:
            renewed = _any(self._input_rows[name] != old for name, old in before_inputs.items()) | past_renewed
            if bool((renewed & ~_any(x != old for x, old in zip(now, before, strict=True))).any()):
                self._fail(name)

    def _fail(self, name: str) -> None:
        if not any(check.name == name for check in self.failed_checks):
            self.failed_checks.append(Check.at_most(name, 1.0, 0.0))

    def _late(self) -> list[Check]:
        if self._workload.device != "cuda":
            return []
        start = time.monotonic()
        wait_for(self._workload.device)
        late = time.monotonic() - start
        return [Check.at_most("seconds_of_work_after_the_call", late, _LATE_S)] if late > _LATE_S else []


def unless_out_of_memory(do: Callable[[], T]) -> T | Checks:
    """Return `do()`; if memory is exhausted, return a note that outputs were not compared."""
    try:
        return do()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return Checks([], NO_ROOM)


def _worst_by_name(checked: Checks) -> Checks:
    worst: dict[str, Check] = {}
    for check in checked.checks:
        other = worst.setdefault(check.name, check)
        if other.passed and (not check.passed or check.value * other.limit > other.value * check.limit):
            worst[check.name] = check
    return Checks(list(worst.values()), checked.unchecked)


def tensors_of(outputs: Any) -> Iterator[Any]:
    """Yield all tensors in `outputs`: a tensor, or nested tuples, lists and dicts of tensors."""
    if isinstance(outputs, (tuple, list, dict)):
        for each in outputs.values() if isinstance(outputs, dict) else outputs:
            yield from tensors_of(each)
    elif hasattr(outputs, "is_floating_point"):
        yield outputs


def claim_checks(case: Case, workload: Workload) -> Iterator[Check]:
    """Yield failed checks for `workload.tokens` and `workload.units` if they do not fit the case."""
    whole = case.context + case.new_tokens  # tokens of a request
    expected = case.batch * {"forward": case.context, "generate": 1, "request": whole}[case.phase]
    at_once = workload.metrics.get("sequences_at_once")
    if case.phase == "generate" and workload.engine_samples is not None and at_once:
        expected = min(int(at_once), case.batch)  # an engine can run fewer sequences than the batch
    if workload.tokens != expected:
        yield Check.at_most("tokens_off_the_case", abs(workload.tokens - expected), 0)
    if case.phase != "generate" and workload.units != 1:
        yield Check.at_most("units_off_the_case", workload.units, 1)


def shape_checks(case: Case, workload: Workload, outputs: Any) -> Iterator[Check]:
    """Yield failed checks for tensor shapes that do not fit the case.

    Inputs must have size batch at `batch_axis` and size context at `token_axis`. If the workload has `inputs` or a
    `timed_check`, there must be output tensors, each with an axis of size batch.
    If a call has several `units`, it must return one tensor per unit, or its last tensor must be [units, batch, ...].
    """
    for each in workload.inputs.values():
        for axis, wanted in ((each.batch_axis, case.batch), (each.token_axis, case.context)):
            if axis is not None and each.tensor.shape[axis] != wanted:
                yield Check.at_most("input_sizes_off_the_case", abs(each.tensor.shape[axis] - wanted), 0)
    tensors, units = list(tensors_of(outputs)), workload.units
    shown = len(tensors) == units or bool(tensors and tensors[-1].shape[:2] == (units, case.batch))
    if units > 1 and not shown:
        yield Check.at_most("outputs_without_the_units", units, 1)
    if not workload.inputs and not workload.timed_check:
        return
    if not tensors:
        yield Check.at_most("outputs_that_are_no_tensors", 1, 0)
    if not all(case.batch in each.shape for each in tensors):
        yield Check.at_most("outputs_without_the_batch", 1, 0)


def lower_bound_check(case: Case, workload: Workload, samples_ms: list[float]) -> list[Check]:
    """Return [failed check] if the shortest sample is shorter than half the roofline bound, otherwise [].

    An engine's generate samples are intervals between its outputs: after a delay of the host, the next interval can be
    too short. So their median counts.
    """
    bound_ms = lower_bound_ms(workload.metrics.get("flops"), workload.metrics.get("bytes"), workload.metrics)
    intervals = case.phase == "generate" and workload.engine_samples is not None
    what, ms = ("median", median(samples_ms)) if intervals else ("shortest_sample", min(samples_ms))
    if not bound_ms or ms >= _BELOW_BOUND * bound_ms:
        return []
    return [Check.at_most(f"lower_bound_over_{what}", bound_ms / max(ms, 1e-9), 1 / _BELOW_BOUND)]


def fill(given: Input, seed: int, early_only: bool = False) -> None:
    """Refill an input's tensor in place with random values.

    early_only: refill only the tokens before the last 64; of fewer than 128 tokens, only the first half (rounded up).
        An input without a token axis then keeps its values.
    """
    import torch

    rng, tensor = torch.Generator(given.tensor.device).manual_seed(seed), given.tensor
    if early_only:
        tokens = 0 if given.token_axis is None else tensor.shape[given.token_axis]
        tensor = tensor.narrow(given.token_axis or 0, 0, tokens - min(_RECENT, tokens // 2))
    with torch.inference_mode(tensor.is_inference()):
        if given.fill == "normal":
            tensor.normal_(0.0, given.scale, generator=rng)
        elif given.fill == "uniform":
            tensor.uniform_(0.0, given.scale, generator=rng)
        else:
            tensor.random_(0, int(given.scale), generator=rng)


def _finite(outputs: Any) -> Iterator[Check]:
    floating = [each for each in tensors_of(outputs) if each.is_floating_point()]
    if floating:
        lost = sum(int((~chunk.isfinite()).sum()) for each in floating for chunk in each.reshape(-1).split(1 << 26))
        yield Check.at_most("outputs_not_finite", lost, 0)


def _poison(tensor: Any) -> None:
    import torch

    if tensor.is_floating_point():
        with torch.inference_mode(tensor.is_inference()):
            tensor.fill_(math.nan)


def _rows(tensor: Any, axis: int | None) -> Any:
    """Copy evenly spaced elements of a tensor as [sequences, elements].

    axis: the tensor's axis of sequences; None treats the tensor as one sequence.
    """
    found = tensor.detach()
    axis = None if axis is None else axis % found.dim()
    for other in sorted(set(range(found.dim())) - {axis}, key=lambda each: -found.shape[each]):
        step = max(1, -(-found.numel() // _COMPARED_ELEMENTS))
        found = found[(slice(None),) * other + (slice(None, None, step),)]
    return (found[None] if axis is None else found.movedim(axis, 0))[..., None].flatten(1).clone()


def _any(changed: Iterable[Any]) -> Any:
    return reduce(or_, (each.any(1).cpu() for each in changed))
