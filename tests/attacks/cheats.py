"""Adapters that claim more than they do, an honest one of the same shape, and the check that must name each.

All run one tiny recurrent language model on the CPU: h <- h Q + E[token] with an orthogonal Q, so that it forgets
nothing, and logits = h E^T.
"""

import itertools
import math
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from random import Random
from typing import Any

import torch

from harness.measure.gate import Check, Verdict, relative_error
from harness.measure.measured_case import CaseRun
from harness.measure.system import Input, Workload
from harness.schema.case import Case
from harness.schema.policy import Policy
from harness.schema.record import Record

VOCABULARY, WIDTH, STEPS = 97, 64, 16
LIMIT = 1e-3
POLICY = Policy(min_samples=5, max_samples=2000, budget_s=0.15, warmup_s=0.01, warmup_max_s=0.05)
PROMPT = Case("cheat", "cpu", "tiny", "forward", batch=4, context=64, dtype="float32")
LONG_PROMPT = Case("cheat", "cpu", "tiny", "forward", batch=4, context=512, dtype="float32")
SMALL_PROMPT = Case("cheat", "cpu", "tiny", "forward", batch=2, context=32, dtype="float32")
GENERATE = Case("cheat", "cpu", "tiny", "generate", batch=4, context=64, dtype="float32")


class Model:
    """The model; `reference` is itself in float64."""

    def __init__(self, width: int = WIDTH, seed: int = 0) -> None:
        chance = torch.Generator().manual_seed(seed)
        self.recurrence = torch.linalg.qr(torch.randn(width, width, generator=chance))[0]
        self.embedding = torch.randn(VOCABULARY, width, generator=chance)

    def reference(self) -> "Model":
        other = Model(len(self.recurrence))
        other.recurrence, other.embedding = self.recurrence.double(), self.embedding.double()
        return other

    def prefill(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [B, V] after ids [B, T]."""
        state = self.embedding.new_zeros(len(ids), len(self.recurrence))
        for column in ids.T:
            state = self.step(state, column)
        return self.logits(state)

    def step(self, state: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return state @ self.recurrence + self.embedding[ids]

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        return state @ self.embedding.T

    def generate(self, ids: torch.Tensor, steps: int = STEPS) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [B, V] of the last of `steps` greedy steps from ids [B], and the tokens [steps, B] that they read."""
        state, read = self.embedding.new_zeros(len(ids), len(self.recurrence)), []
        for _ in range(steps):
            read.append(ids)
            state = self.step(state, ids)
            ids = self.logits(state).argmax(-1)
        return self.logits(state), torch.stack(read)


class Honest:
    """An adapter that does all of its work; the cheats change `run` or a claim, never the gate and the reference."""

    packages = ()

    def __init__(self) -> None:
        self.model = Model()

    def unavailable(self) -> str:
        return ""

    def build(self, case: Case) -> Workload:
        self.case = case
        generates = case.phase == "generate"
        self.ids = torch.randint(0, VOCABULARY, (case.batch,) if generates else (case.batch, case.context))
        workload = Workload(
            run=self.run,
            units=STEPS if generates else 1,
            tokens=case.batch * (1 if generates else case.context),
            inputs={"ids": Input(self.ids, "tokens", VOCABULARY, 0, None if generates else 1)},
            witness=self.witness,
            gate=self.gate,
        )
        self.claim(workload)
        return workload

    def claim(self, workload: Workload) -> None:
        """Change what the workload says of itself."""

    def run(self) -> Any:
        return self.work(self.model)

    def work(self, model: Model) -> Any:
        return model.generate(self.ids) if self.case.phase == "generate" else model.prefill(self.ids)

    def gate(self) -> Verdict:
        """Of two short prompts, as a model is checked once for all of its cases."""
        ids = torch.randint(0, VOCABULARY, (2, 13))
        return verdict("error", self.model.prefill(ids), self.model.reference().prefill(ids))

    def witness(self, chance: Random) -> Callable[[Any, int], Verdict]:
        """Two sequences that are drawn, by the reference."""
        rows = sorted(chance.sample(range(self.case.batch), 2))

        def judge(outputs: Any, calls: int) -> Verdict:
            if self.case.phase != "generate":
                return verdict("timed_error", outputs[rows], self.model.reference().prefill(self.ids[rows]))
            logits, read = outputs
            state = torch.zeros(2, WIDTH, dtype=torch.float64)
            for column in read[:, rows]:
                state = self.model.reference().step(state, column)
            return verdict("timed_error", logits[rows], self.model.reference().logits(state))

        return judge


def verdict(name: str, got: torch.Tensor, expected: torch.Tensor) -> Verdict:
    return Verdict([Check.at_most(name, relative_error(got, expected), LIMIT)])


class LastOutputAgain(Honest):
    """Computes once and hands the same tensor back ever after."""

    kept: Any = None

    def run(self) -> Any:
        if self.kept is None:
            self.kept = super().run()
        return self.kept


class SkippedAfterTheFirstCall(LastOutputAgain):
    """Hands back a copy, which poisoning the output does not reach."""

    def run(self) -> Any:
        return super().run().clone()


class OldLogitsBesideTheIds(Honest):
    """Computes logits in the first call alone, and says each time which tokens it was given."""

    kept: Any = None

    def run(self) -> Any:
        if self.kept is None:
            self.kept = super().run()
        logits, read = self.kept
        return logits.clone(), torch.cat([self.ids[None], read[1:]])


class StaleBuffer(Honest):
    """Has an output buffer, and writes to it in the first call alone."""

    buffer: Any = None

    def run(self) -> Any:
        if self.buffer is None:
            self.buffer = torch.empty(self.case.batch, VOCABULARY)
            self.buffer.copy_(super().run())
        return self.buffer


class FewerTokensRead(Honest):
    """Reads the last quarter of each prompt."""

    def run(self) -> Any:
        return self.model.prefill(self.ids[:, -self.case.context // 4 :])


class FewerTokensThanClaimed(Honest):
    """Is given prompts of half of the case's length."""

    def claim(self, workload: Workload) -> None:
        self.ids = self.ids[:, : self.case.context // 2].contiguous()
        workload.inputs = {"ids": Input(self.ids, "tokens", VOCABULARY, 0, 1)}


class TokensOverstated(Honest):
    """Says that a call reads twice as many tokens as the case has."""

    def claim(self, workload: Workload) -> None:
        workload.tokens *= 2


class TokensOfMoreAtOnce(TokensOverstated):
    """Says so as an engine does whose cache holds a part of the batch, and more than all of it."""

    def claim(self, workload: Workload) -> None:
        super().claim(workload)
        workload.metrics = {"sequences_at_once": workload.tokens}


class TokensOfAnEngine(TokensOfMoreAtOnce):
    """And times itself."""

    def claim(self, workload: Workload) -> None:
        super().claim(workload)
        workload.witness = None
        workload.engine_samples = lambda policy: repeat([1.0])


class UnitsOverstated(Honest):
    """Does a quarter of the steps that a call is said to have, and repeats their tokens."""

    def run(self) -> Any:
        logits, read = self.model.generate(self.ids, STEPS // 4)
        return logits, read.repeat(4, 1)


class UnitsUnseen(Honest):
    """Does one step for sixteen, with neither tokens nor a reference that could tell."""

    def claim(self, workload: Workload) -> None:
        workload.witness = None

    def run(self) -> Any:
        return self.model.generate(self.ids, 1)[0]


class WorkInAThread(Honest):
    """Starts a thread that does the work, and returns its buffer at once."""

    def run(self) -> Any:
        buffer = torch.empty(self.case.batch, VOCABULARY)
        threading.Thread(target=lambda: buffer.copy_(self.work(self.model))).start()
        return buffer


class WorkInAKeptThread(Honest):
    """Has a thread from the beginning, which does the work while `run` has returned its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        while (buffer := self.buffers.get()) is not None and not self.over.is_set():
            buffer.copy_(self.work(self.model))

    def claim(self, workload: Workload) -> None:
        workload.close = self.end

    def end(self) -> None:
        """What waits for the thread by now is left undone."""
        self.over.set()
        self.buffers.put(None)
        self.thread.join()

    def run(self) -> Any:
        buffer = torch.empty(self.case.batch, VOCABULARY)
        self.buffers.put(buffer)
        return buffer


class InputsEased(Honest):
    """Leaves inputs behind that make the next call cheaper: what is all of one token, it knows."""

    known: Any = None

    def run(self) -> Any:
        if self.known is not None and bool((self.ids == 0).all()):
            return self.known.clone()
        self.known = super().run()
        self.ids.zero_()
        return self.known


class FirstSequenceOnly(Honest):
    """Computes the first sequence for all."""

    def run(self) -> Any:
        return self.model.prefill(self.ids[:1]).expand(self.case.batch, -1).contiguous()


class SmallBatchesOnly(Honest):
    """The planted bug: prompts of 64 tokens and more, and steps of more than two sequences, are NaN at once."""

    def run(self) -> Any:
        if self.case.phase == "generate" and self.case.batch > 2:
            return torch.full((self.case.batch, VOCABULARY), torch.nan), torch.zeros(
                STEPS, self.case.batch, dtype=torch.long
            )
        if self.case.phase == "forward" and self.case.context >= 64:
            return torch.full((self.case.batch, VOCABULARY), torch.nan)
        return super().run()


class RememberedByInput(Honest):
    """Looks its answer up where it has seen the inputs before."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: dict[bytes, Any] = {}

    def run(self) -> Any:
        key = self.ids.numpy().tobytes()
        if key not in self.memory:
            self.memory[key] = super().run()
        return self.memory[key].clone()


class RecomputedWhenRenewed(Honest):
    """Asks torch whether somebody has written to the inputs, and works only then."""

    version = -1

    def run(self) -> Any:
        if self.ids._version != self.version:
            self.version, self.kept = self.ids._version, super().run()
        return self.kept.clone()


class SmallerModelTimed(Honest):
    """Times another model than the one that passed the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.smaller = Model(WIDTH // 8, seed=1)

    def run(self) -> Any:
        return self.work(self.smaller)


class RandomNumbers(Honest):
    """Hands back what looks like logits."""

    def run(self) -> Any:
        return torch.randn(self.case.batch, VOCABULARY)


class InventedSamples(Honest):
    """Times itself, and says less than its bytes and FLOPs can take."""

    def claim(self, workload: Workload) -> None:
        workload.witness = None
        workload.engine_samples = self.samples
        workload.metrics = {"flops": 1e12, "bytes": 1e9, "product_tflops": 1.0, "copy_gbs": 10.0}  # 1 s at least

    def samples(self, policy: Policy) -> Iterator[list[float]]:
        while True:
            yield [1.0]


class LazyTensor(torch.Tensor):
    """Computes itself when something is done with it."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        def computed(value: Any) -> Any:
            return value.later() if isinstance(value, LazyTensor) else value

        return function(*map(computed, arguments), **(named or {}))


class LazyOutput(Honest):
    """Returns a tensor of its own class, which computes itself when it is read."""

    def run(self) -> Any:
        lazy = torch.empty(0).as_subclass(LazyTensor)
        ids = self.ids.clone()
        lazy.later = lambda: self.model.prefill(ids)  # type: ignore[attr-defined]
        return lazy


class Promises(list):
    """A list whose tensors are computed when it is walked."""

    def __iter__(self) -> Iterator[Any]:
        return (make() for make in super().__iter__())


class LazyList(Honest):
    """Returns a list of a class of its own, whose tensors are computed when it is read."""

    def run(self) -> Any:
        ids = self.ids.clone()
        return Promises([lambda: self.model.prefill(ids)])

    def witness(self, chance: Random) -> Callable[[Any, int], Verdict]:
        judge = super().witness(chance)
        return lambda outputs, calls: judge(next(iter(outputs)), calls)


class Nothing(Honest):
    """Returns no output at all, and says that nobody need compare it."""

    def claim(self, workload: Workload) -> None:
        workload.witness = None

    def run(self) -> Any:
        return None


class MostCallsSkipped(Honest):
    """Works in every fourth call."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = itertools.count()
        self.kept: Any = None

    def run(self) -> Any:
        if self.kept is None or next(self.turn) % 4 == 0:
            self.kept = super().run()
        return self.kept.clone()


class WorksForItsWitness(Honest):
    """Reads the last token alone until its witness is drawn, and does its work from then on."""

    watched = False

    def run(self) -> Any:
        return super().run() if self.watched else self.model.prefill(self.ids[:, -1:])

    def witness(self, chance: Random) -> Callable[[Any, int], Verdict]:
        self.watched = True
        return super().witness(chance)


class HalfWritten(Honest):
    """Computes half of its logits, beside those that the first call left in a buffer; nothing is compared."""

    buffer: Any = None

    def claim(self, workload: Workload) -> None:
        workload.witness = None

    def run(self) -> Any:
        logits = super().run()
        if self.buffer is None:
            self.buffer = logits.clone()
        self.buffer[:, : VOCABULARY // 2] = logits[:, : VOCABULARY // 2]
        return self.buffer


class InputsHidden(Honest):
    """Takes its inputs out of what is renewed, and works once."""

    kept: Any = None

    def claim(self, workload: Workload) -> None:
        workload.witness = None
        self.handed = workload.inputs

    def run(self) -> Any:
        self.handed.clear()
        if self.kept is None:
            self.kept = super().run()
        return self.kept.clone()


class NotANumber(Honest):
    """Works on a state that is no number until it is put back for the check; a GPU does that on less power."""

    lost = True

    def run(self) -> Any:
        logits, read = super().run()
        return logits * math.nan if self.lost else logits, read

    def witness(self, chance: Random) -> Callable[[Any, int], Verdict]:
        self.lost = False
        return super().witness(chance)


@dataclass(frozen=True)
class Cheat:
    """A cheat, the case that it is tried on, and the checks of which at least one must be in the reason.

    tries: runs of which one must be caught, where it races with the check.
    """

    adapter: type[Honest]
    case: Case
    names: tuple[str, ...]
    tries: int = 1

    @property
    def name(self) -> str:
        return f"{self.adapter.__name__} ({self.case.phase})"


UNCHANGED, WRONG = "outputs_unchanged_by_new_inputs", "timed_error"
CHEATS = (
    Cheat(LastOutputAgain, PROMPT, (UNCHANGED, "outputs_not_finite")),
    Cheat(SkippedAfterTheFirstCall, PROMPT, (UNCHANGED,)),
    Cheat(OldLogitsBesideTheIds, GENERATE, (UNCHANGED,)),
    Cheat(StaleBuffer, PROMPT, (UNCHANGED, "outputs_not_finite")),
    Cheat(FewerTokensRead, PROMPT, (WRONG,)),
    Cheat(FewerTokensThanClaimed, PROMPT, ("input_sizes_off_the_case",)),
    Cheat(TokensOverstated, PROMPT, ("tokens_off_the_case",)),
    Cheat(TokensOfMoreAtOnce, GENERATE, ("tokens_off_the_case",)),
    Cheat(TokensOfAnEngine, PROMPT, ("tokens_off_the_case",)),
    Cheat(TokensOfAnEngine, GENERATE, ("tokens_off_the_case",)),
    Cheat(UnitsOverstated, GENERATE, (WRONG,)),
    Cheat(UnitsUnseen, GENERATE, ("outputs_without_the_units",)),
    # Where other programs hold the processors, the thread may end before `run` does, and the call has taken its time.
    Cheat(WorkInAThread, LONG_PROMPT, ("threads_left_at_work",), 8),
    Cheat(WorkInAKeptThread, LONG_PROMPT, ("outputs_written_after_the_call", "outputs_not_finite", WRONG), 8),
    Cheat(InputsEased, PROMPT, ("inputs_changed_by_the_work",)),
    Cheat(FirstSequenceOnly, PROMPT, (WRONG,)),
    Cheat(SmallBatchesOnly, PROMPT, ("outputs_not_finite",)),
    Cheat(SmallBatchesOnly, GENERATE, ("outputs_not_finite",)),
    Cheat(RememberedByInput, PROMPT, ("time_on_new_inputs_over_samples",)),
    Cheat(RecomputedWhenRenewed, PROMPT, ("time_on_new_inputs_over_samples",)),
    Cheat(SmallerModelTimed, PROMPT, (WRONG,)),
    Cheat(RandomNumbers, PROMPT, (WRONG,)),
    Cheat(InventedSamples, PROMPT, ("floor_over_shortest_sample",)),
    Cheat(LazyOutput, PROMPT, ("outputs_that_are_no_plain_tensors",)),
    Cheat(LazyList, PROMPT, ("outputs_that_are_no_plain_tensors",)),
    Cheat(HalfWritten, PROMPT, ("outputs_not_finite",)),
    Cheat(InputsHidden, PROMPT, (UNCHANGED,)),
    Cheat(Nothing, PROMPT, ("outputs_that_are_no_plain_tensors",)),
    Cheat(NotANumber, GENERATE, ("outputs_not_finite_while_timed",)),
    Cheat(WorksForItsWitness, PROMPT, ("time_on_new_inputs_over_samples",)),
    Cheat(WorksForItsWitness, LONG_PROMPT, ("time_on_new_inputs_over_samples",)),
    Cheat(MostCallsSkipped, PROMPT, (UNCHANGED, WRONG, "time_on_new_inputs_over_samples")),
)
HONEST_CASES = (PROMPT, SMALL_PROMPT, GENERATE)


def record_of(adapter: type[Honest], case: Case, policy: Policy = POLICY) -> Record:
    """The record of a case by a new adapter, made in this process."""
    return CaseRun(case, policy).record(adapter())


def uncaught(cheat: Cheat) -> str:
    """Why a cheat counts as not caught; "" where its record says by the name of a check what it did."""
    for _ in range(cheat.tries):
        if not (why := _uncaught_once(cheat)):
            break
    return why


def _uncaught_once(cheat: Cheat) -> str:
    record = record_of(cheat.adapter, cheat.case)
    if record.status not in ("gate", "failed"):
        return f"recorded as {record.status!r}"
    if record.samples_ms or not any(name in record.reason for name in cheat.names):
        return f"{record.status}: {record.reason}"
    return ""
