"""Check that what is timed is the work that was asked for: fresh inputs, and outputs that follow them.

Between samples the inputs are renewed; the outputs must be finite, and those of every sequence must change. After the
last sample the outputs are poisoned, the timed callable runs once more, and its outputs are compared with the reference
(`Workload.witness`). Tokens, units and sizes are compared with the case.

This finds mistakes. An adapter that cheats on purpose is not caught: one that looks answers up by their inputs, works
in the checked call alone, or patches the harness. Work without `inputs` or `witness` is compared with nothing, and the
record says so. An engine that times itself is believed down to the lower bound of its bytes and FLOPs.
"""

import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from operator import or_
from random import Random
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
SAME_INPUTS = "no inputs were renewed, so outputs that were remembered would pass"
NO_ROOM = "the reference has no room beside the model, so the timed outputs were not compared"
_LOOKED_AT = 1 << 20  # elements of a tensor that are compared between samples
_RECENT = 64  # tokens: a prompt that is truncated to them is a mistake that random weights hide
_LATE_S = 5e-3  # of device work after the last timed call has ended
_BELOW_FLOOR = 0.5  # of the floor, whose ceilings were measured with an error of their own


class Inspector:
    """Inspects one workload while it is timed. `run` is what the clock must be given."""

    def __init__(
        self, case: Case, workload: Workload, referring: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        """referring: what to enter while the reference answers. ValueError for an axis that an input has not."""
        self._case, self._workload, self._referring = case, workload, referring
        self._chance = Random(secrets.randbits(128))
        self._outputs: Any = None
        self._seen: list[Any] = []  # of the outputs, by sequence
        self._seen_inputs: dict[str, Any] = {}
        self._next_at = 0.0
        self._ran = self._past_renewed = False
        self.missed: list[Check] = []
        for each in workload.inputs.values():
            for axis in (each.batch_axis, each.token_axis):
                if axis is not None and not -each.tensor.dim() <= axis < each.tensor.dim():
                    raise ValueError(f"an input of {each.tensor.dim()} axes has no axis {axis}, which it names")
        self._given = self._rows_of_inputs()

    def run(self) -> object:
        """The workload's `run`; where a graph is captured, its outputs are those of every replay."""
        self._outputs = None  # freed first: what is timed must not hold its outputs twice
        self._outputs = self._workload.run()
        return self._outputs

    def before_sample(self) -> None:
        """Renew the inputs where it is time, after a look at what the calls since the last renewal left."""
        now = time.monotonic()
        if self._workload.inputs and now >= self._next_at:
            if self._ran:
                self._look()
            self._renew()
            wait_for(self._workload.device)  # whose time to renew them counts, too
            self._ran = True
            self._next_at = time.monotonic() + max(RENEW_EVERY_S, (time.monotonic() - now) / RENEW_SHARE)

    def checked_call(self, clock: Clock) -> Verdict:
        """Run the timed callable on fresh inputs and poisoned outputs, compare what it left, then with another past.

        The second call has the same recent tokens. Its outputs must change, however little.
        """
        if self._ran:
            self._look()
        self._renew()
        verdict = self._compared_call(clock, "outputs_unchanged_by_new_inputs")
        has_past = any(each.token_axis is not None for each in self._workload.inputs.values())
        if has_past or self._workload.renews_past:
            self._renew(early_only=True)
            verdict = _worse(verdict + self._compared_call(clock, "outputs_unchanged_by_early_tokens"))
        renewed = "" if self._workload.inputs else SAME_INPUTS
        return Verdict([*self.missed, *verdict.checks], "; ".join(filter(None, (verdict.unchecked, renewed))))

    def _compared_call(self, clock: Clock, unchanged: str) -> Verdict:
        """Run one sample and compare its outputs; unchanged: the name of the check that outputs follow their inputs."""
        judge = self._judge()
        self._poisoned_call(clock)
        self._follow_inputs(unchanged, self._past_renewed)
        verdict = Verdict([], "" if judge else "the outputs of the timed calls were compared with nothing")
        finite = Verdict([*self._late(), *_finite(self._outputs)])
        if judge:
            with self._referring():
                verdict = judged(lambda: judge(self._outputs, clock.launches))
        return finite + verdict + Verdict(list(shape_checks(self._case, self._workload, self._outputs)))

    def _judge(self) -> Callable[[Any, int], Verdict] | None:
        """The witness's; where what it keeps has no room beside what was timed, one that says so."""
        self._past_renewed = False
        if self._workload.witness is None:
            return None
        try:
            judge = self._workload.witness(self._chance)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return lambda outputs, calls: Verdict([], NO_ROOM)
        self._past_renewed = self._workload.renews_past
        return judge

    def _poisoned_call(self, clock: Clock) -> None:
        """One more sample, whose outputs find poison where they are written."""
        for each in tensors_of(self._outputs):
            _poison(each)
        if not clock.replays:
            self._outputs = None  # freed, so that the call may be given the poisoned memory
        self._given = self._rows_of_inputs()  # a witness may have changed them
        clock.sample()

    def _renew(self, early_only: bool = False) -> None:
        for each in self._workload.inputs.values():
            fill(each, self._chance.getrandbits(63), early_only)
        self._given = self._rows_of_inputs()

    def _rows_of_inputs(self) -> dict[str, Any]:
        return {name: _rows(each.tensor, each.batch_axis) for name, each in self._workload.inputs.items()}

    def _look(self) -> None:
        """Outputs must be finite and have changed since the last look, and inputs must not.

        Other numbers would not do: a state that is not finite costs a GPU less power, and so less time.
        """
        self.missed += self._late()
        self._follow_inputs()
        if not all(bool(each.isfinite().all()) for each in self._seen):
            self._miss("outputs_not_finite_while_timed")
        if not all(rows.equal(self._given[name]) for name, rows in self._rows_of_inputs().items()):
            self._miss("inputs_changed_by_the_work")

    def _follow_inputs(self, name: str = "outputs_unchanged_by_new_inputs", past_renewed: bool = False) -> None:
        """A sequence whose outputs are those of its earlier inputs, or of another past, was not computed from them.

        Its renewed input may be the same by chance: the one token of a sequence is one of some hundreds. Whole numbers
        count where there is nothing else: among them may be the inputs themselves.
        """
        outputs, batch = list(tensors_of(self._outputs)), self._case.batch
        floating = [each for each in outputs if each.is_floating_point()]
        now = [_rows(x, x.shape.index(batch) if batch in x.shape else None) for x in floating or outputs]
        before, before_inputs = self._seen, self._seen_inputs
        self._seen, self._seen_inputs = now, self._given
        if before and before_inputs and [x.shape for x in now] == [x.shape for x in before]:
            renewed = _any(self._given[name] != old for name, old in before_inputs.items()) | past_renewed
            if bool((renewed & ~_any(x != old for x, old in zip(now, before, strict=True))).any()):
                self._miss(name)

    def _miss(self, name: str) -> None:
        if not any(check.name == name for check in self.missed):
            self.missed.append(Check.at_most(name, 1.0, 0.0))

    def _late(self) -> list[Check]:
        """Device work that the clock did not wait for."""
        if self._workload.device != "cuda":
            return []
        start = time.monotonic()
        wait_for(self._workload.device)
        late = time.monotonic() - start
        return [Check.at_most("seconds_of_work_after_the_call", late, _LATE_S)] if late > _LATE_S else []


def judged(judge: Callable[[], Verdict]) -> Verdict:
    """The verdict, or that there is none where the reference has no room beside what was timed."""
    try:
        return judge()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return Verdict([], NO_ROOM)


def _worse(verdict: Verdict) -> Verdict:
    """Of the checks of one name, the one that failed or came nearest to its limit."""
    worst: dict[str, Check] = {}
    for check in verdict.checks:
        other = worst.setdefault(check.name, check)
        if other.passed and (not check.passed or check.value * other.limit > other.value * check.limit):
            worst[check.name] = check
    return Verdict(list(worst.values()), verdict.unchecked)


def tensors_of(outputs: Any) -> Iterator[Any]:
    """The torch tensors in a tensor, or in nested tuples, lists and dicts of them."""
    if isinstance(outputs, (tuple, list, dict)):
        for each in outputs.values() if isinstance(outputs, dict) else outputs:
            yield from tensors_of(each)
    elif hasattr(outputs, "is_floating_point"):
        yield outputs


def claim_checks(case: Case, workload: Workload) -> Iterator[Check]:
    """Tokens and units, by which a sample's time is divided, must be the case's; of an engine, of those in flight."""
    whole = case.context + case.new_tokens  # of a request
    claimed = case.batch * {"forward": case.context, "generate": 1, "request": whole}[case.phase]
    at_once = workload.metrics.get("sequences_at_once")
    if case.phase == "generate" and workload.engine_samples is not None and at_once:
        claimed = min(int(at_once), case.batch)
    if workload.tokens != claimed:
        yield Check.at_most("tokens_off_the_case", abs(workload.tokens - claimed), 0)
    if case.phase != "generate" and workload.units != 1:
        yield Check.at_most("units_off_the_case", workload.units, 1)


def shape_checks(case: Case, workload: Workload, outputs: Any) -> Iterator[Check]:
    """Inputs and outputs must be as large as the case, and show each unit: [units, batch, ...], or as many tensors."""
    for each in workload.inputs.values():
        for axis, wanted in ((each.batch_axis, case.batch), (each.token_axis, case.context)):
            if axis is not None and each.tensor.shape[axis] != wanted:
                yield Check.at_most("input_sizes_off_the_case", abs(each.tensor.shape[axis] - wanted), 0)
    tensors, units = list(tensors_of(outputs)), workload.units
    shown = len(tensors) == units or bool(tensors and tensors[-1].shape[:2] == (units, case.batch))
    if units > 1 and not shown:
        yield Check.at_most("outputs_without_the_units", units, 1)
    if not workload.inputs and not workload.witness:
        return  # outputs of which nothing is claimed
    if not tensors:
        yield Check.at_most("outputs_that_are_no_tensors", 1, 0)
    if not all(case.batch in each.shape for each in tensors):
        yield Check.at_most("outputs_without_the_batch", 1, 0)


def floor_check(workload: Workload, samples_ms: list[float]) -> list[Check]:
    """No sample is shorter than half of the time that its bytes and FLOPs need at the measured ceilings."""
    least_ms = floor_ms(workload.metrics.get("flops"), workload.metrics.get("bytes"), workload.metrics)
    shortest = min(samples_ms)
    if not least_ms or shortest >= _BELOW_FLOOR * least_ms:
        return []
    return [Check.at_most("floor_over_shortest_sample", least_ms / max(shortest, 1e-9), 1 / _BELOW_FLOOR)]


def fill(given: Input, seed: int, early_only: bool = False) -> None:
    """Fill a tensor in place from a seed; with early_only, all but its last tokens, and nothing that has no tokens."""
    import torch

    chance, tensor = torch.Generator(given.tensor.device).manual_seed(seed), given.tensor
    if early_only:
        tokens = 0 if given.token_axis is None else tensor.shape[given.token_axis]
        tensor = tensor.narrow(given.token_axis or 0, 0, tokens - min(_RECENT, tokens // 2))
    with torch.inference_mode(tensor.is_inference()):
        if given.fill == "normal":
            tensor.normal_(0.0, given.scale, generator=chance)
        elif given.fill == "uniform":
            tensor.uniform_(0.0, given.scale, generator=chance)
        else:
            tensor.random_(0, int(given.scale), generator=chance)


def _finite(outputs: Any) -> Iterator[Check]:
    """Everywhere: what was poisoned and not written is not finite either."""
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
    """A copy of some elements of each sequence, from all over it: [sequences, elements]; of one without an axis."""
    found = tensor.detach()
    axis = None if axis is None else axis % found.dim()
    for other in sorted(set(range(found.dim())) - {axis}, key=lambda each: -found.shape[each]):
        step = max(1, -(-found.numel() // _LOOKED_AT))
        found = found[(slice(None),) * other + (slice(None, None, step),)]
    return (found[None] if axis is None else found.movedim(axis, 0))[..., None].flatten(1).clone()


def _any(changed: Iterable[Any]) -> Any:
    """Which sequences have a changed element in any of the tensors [sequences, elements]."""
    return reduce(or_, (each.any(1).cpu() for each in changed))
