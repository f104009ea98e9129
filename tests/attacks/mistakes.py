"""Adapters with one mistake each, an honest adapter, and for each mistake the check that must fail."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from random import Random
from typing import Any, ClassVar

import torch

from bench.catalogue.systems import ADAPTERS
from bench.systems.mamba.pytorch import TorchMamba
from bench.systems.model_calls import last_logits
from bench.systems.transformer.pytorch import TorchTransformer
from bench.systems.ttt.model import TTTTorch
from harness.measure.correctness import Check, Checks, relative_error
from harness.measure.measured_case import CaseRun
from harness.measure.system import Input, Workload
from harness.schema.case import Case, Mode
from harness.schema.policy import Policy
from harness.schema.record import Record

VOCABULARY, WIDTH, STEPS, LIMIT = 97, 64, 16, 1e-3
POLICY = Policy(min_samples=5, budget_s=0.05)
ONCE = Policy(min_samples=2, budget_s=0.0)
PROMPT = Case("mistaken", "cpu", "tiny", "forward", batch=8, context=128, dtype="float32")
GENERATE = replace(PROMPT, phase="generate")
HONEST_CASES = (PROMPT, replace(PROMPT, batch=2, context=1), GENERATE)


class DecayingModel:
    """A model with state h: h <- decay * h Q + E[token], Q orthogonal, logits h E^T. Decay < 1 forgets early tokens."""

    def __init__(self, width: int = WIDTH, seed: int = 0, decay: float = 1.0) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.recurrence = decay * torch.linalg.qr(torch.randn(width, width, generator=rng))[0]
        self.embedding = torch.randn(VOCABULARY, width, generator=rng)

    def reference(self) -> "DecayingModel":
        other = DecayingModel(len(self.recurrence))
        other.recurrence, other.embedding = self.recurrence.double(), self.embedding.double()
        return other

    def prefill(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits [batch, vocabulary] after the prompts in ids [batch, tokens]."""
        state = self.embedding.new_zeros(len(ids), len(self.recurrence))
        for column in ids.T:
            state = state @ self.recurrence + self.embedding[column]
        return state @ self.embedding.T

    def generate(self, ids: torch.Tensor, steps: int = STEPS) -> tuple[torch.Tensor, torch.Tensor]:
        """Run greedy steps from ids [batch]; return the last logits [batch, vocabulary] and inputs [steps, batch]."""
        read = ids[None]
        while len(read) < steps:
            read = torch.cat([read, self.prefill(read.T).argmax(-1)[None]])
        return self.prefill(read.T), read


class Honest:
    """An adapter without a mistake. Each subclass adds one mistake, usually in `run` or in workload fields."""

    packages = ()
    decay = 1.0

    def __init__(self) -> None:
        self.model = DecayingModel(decay=self.decay)
        self.cached: Any = None

    def unavailable(self) -> str:
        return ""

    def build(self, case: Case) -> Workload:
        self.case, generates = case, case.phase == "generate"
        self.ids = torch.randint(0, VOCABULARY, (case.batch,) if generates else (case.batch, case.context))
        workload = Workload(
            run=self.run,
            units=STEPS if generates else 1,
            tokens=case.batch * (1 if generates else case.context),
            inputs={"ids": Input(self.ids, "tokens", VOCABULARY, 0, None if generates else 1)},
            timed_check=self.timed_check,
        )
        self.claim(workload)
        return workload

    def claim(self, workload: Workload) -> None:
        """Let a subclass set wrong values in the workload's fields; by default, do nothing."""

    def run(self) -> Any:
        return self.model.generate(self.ids) if self.case.phase == "generate" else self.model.prefill(self.ids)

    def timed_check(self, rng: Random) -> Callable[[Any, int], Checks]:
        rows = sorted(rng.sample(range(self.case.batch), 2))

        def compare(outputs: Any, calls: int) -> Checks:
            logits, ids = (outputs[0], outputs[1].T) if self.case.phase == "generate" else (outputs, self.ids)
            error = relative_error(logits[rows], self.model.reference().prefill(ids[rows]))
            return Checks([Check.at_most("timed_error", error, LIMIT)])

        return compare


class LastOutputAgain(Honest):
    def run(self) -> Any:
        self.cached = super().run() if self.cached is None else self.cached
        return self.cached


class CopyOfTheLastOutput(LastOutputAgain):
    def run(self) -> Any:
        return super().run().clone()


class CachedByContent(Honest):
    """Computes outputs once for each content of the inputs, like a prefix cache. The outputs are always correct."""

    def run(self) -> Any:
        self.cached, content = self.cached or {}, self.ids.numpy().tobytes()
        if content not in self.cached:
            self.cached[content] = super().run()
        return self.cached[content]


class OneSequenceStale(Honest):
    """Returns the first call's logits for the last of 8 sequences. A check of two sequences may miss this mistake."""

    def run(self) -> Any:
        out = super().run()
        self.cached = out[-1].clone() if self.cached is None else self.cached
        out[-1] = self.cached
        return out


class TruncatedPrompt(Honest):
    """Reads only a prompt's last 64 tokens. At decay 0.85, the check `timed_error` does not notice this."""

    decay = 0.85

    def run(self) -> Any:
        return self.model.prefill(self.ids[:, -64:])


class HalfOfThePrompt(Honest):
    def claim(self, workload: Workload) -> None:
        self.ids = self.ids[:, : self.case.context // 2].contiguous()
        workload.inputs = {"ids": Input(self.ids, "tokens", VOCABULARY, 0, 1)}


class TokensOverstated(Honest):
    def claim(self, workload: Workload) -> None:
        workload.tokens *= 2


class EngineTokensOverstated(TokensOverstated):
    def claim(self, workload: Workload) -> None:
        super().claim(workload)
        workload.timed_check, workload.engine_samples = None, lambda: repeat([1.0])
        workload.metrics = {"sequences_at_once": workload.tokens}


class OneStepForSixteen(Honest):
    def run(self) -> Any:
        return self.model.generate(self.ids, 1)


class InputsChanged(Honest):
    def run(self) -> Any:
        self.ids.zero_()
        return super().run()


class NotANumber(Honest):
    def run(self) -> Any:
        return super().run() * math.nan


class NotANumberWhileTimed(Honest):
    """Returns correct outputs when checked, but NaN while timed, because a GPU needs less power for NaN."""

    def run(self) -> Any:
        return super().run() * (math.nan if self.cached is None else 1)

    def timed_check(self, rng: Random) -> Callable[[Any, int], Checks]:
        self.cached = True
        return super().timed_check(rng)


class SmallerModelTimed(Honest):
    def run(self) -> Any:
        return DecayingModel(WIDTH // 8, seed=1).prefill(self.ids)


class InventedSamples(Honest):
    def claim(self, workload: Workload) -> None:
        workload.timed_check, workload.engine_samples = None, lambda: repeat([1.0])
        workload.metrics = {"flops": 1e12, "bytes": 1e9, "product_tflops": 1.0, "copy_gbs": 10.0}  # roofline bound: 1 s


class NoOutputs(Honest):
    def run(self) -> Any:
        return None

    def claim(self, workload: Workload) -> None:
        workload.timed_check = None


class OneCallLate(NoOutputs):
    def run(self) -> Any:
        outputs, self.cached = self.cached, Honest.run(self)
        return self.cached if outputs is None else outputs


class RepositoryAdapter:
    """The repository's adapter without the check before timing. A subclass's `timed` replaces the timed call."""

    packages = ()
    adapters: ClassVar[dict[str, Any]] = {
        "mamba": TorchMamba,
        "transformer": TorchTransformer,
        "ttt-linear": TTTTorch,
        "ttt-mlp": TTTTorch,
    }

    def build(self, case: Case) -> Workload:
        self.adapter = self.adapters[case.system]()
        workload = self.adapter.build(case)
        work, run = workload.run.__self__, workload.run
        self.prepare(work)
        return replace(workload, check=None, run=torch.inference_mode()(lambda: self.timed(work, run)))

    def prepare(self, work: Any) -> None:
        """Let a subclass build data from `work`, which holds the case's model and tokens; by default, do nothing."""

    def timed(self, work: Any, run: Callable[[], Any]) -> Any:
        raise NotImplementedError


class StateReset(RepositoryAdapter):
    def timed(self, work: Any, run: Callable[[], Any]) -> Any:
        work.restart()
        return run()


class TokenLookup(RepositoryAdapter):
    def prepare(self, work: Any) -> None:
        tokens = torch.arange(work.model.config.vocabulary)
        self.table = work.model.prefill(tokens[:, None], work.model.init_state(len(tokens), 1))[0]

    def timed(self, work: Any, run: Callable[[], Any]) -> Any:
        read = [work.ids]
        while len(read) < work.units:
            read.append(self.table[read[-1]].argmax(-1))
        return self.table[read[-1]], torch.stack(read)


class Last64Tokens(RepositoryAdapter):
    tokens = 64

    def timed(self, work: Any, run: Callable[[], Any]) -> Any:
        return last_logits(work.model, work.ids[:, -self.tokens :])


class Last66Tokens(Last64Tokens):
    """Reads only a prompt's last 66 tokens. New tokens before the last 64 change its logits, but not as they should."""

    tokens = 66


class Int8Weights(RepositoryAdapter):
    def prepare(self, work: Any) -> None:
        self.quantized = self.adapter.load(work.case)
        for name, weight in self.quantized.weights().items():
            if weight.dim() == 2 and "A_log" not in name:
                scale = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-9) / 127
                weight.copy_((weight / scale).round() * scale)

    def timed(self, work: Any, run: Callable[[], Any]) -> Any:
        model, work.model = work.model, self.quantized
        try:
            return run()
        finally:
            work.model = model


class OneSequenceWrong(RepositoryAdapter):
    def timed(self, work: Any, run: Callable[[], Any]) -> Any:
        outputs = run()
        logits = outputs if work.case.phase == "forward" else outputs[0]
        logits[5] = logits[5].flip(-1)
        return outputs


def in_bfloat16(system: str, phase: str) -> Case:
    steps = (("steps", 16),) if phase == "request" else ()
    [adapter] = (each for each in ADAPTERS if (each.system, each.backend) == (system, "torch"))
    state_dtype = adapter.state_dtype or "bfloat16"
    return Case(system, "torch", "tiny", phase, 8, 136, "bfloat16", state_dtype, options=steps)


STAGGERED = replace(in_bfloat16("ttt-linear", "generate"), batch=32, options=(("positions", "staggered"),))
UNCHANGED = "outputs_unchanged_by_new_inputs"
EARLY, WRONG, SLOPE = "outputs_unchanged_by_early_tokens", "timed_logits_relative_error", "early_tokens_slope_error"
MISTAKES: tuple[tuple[type[Any], Case, str], ...] = (
    (LastOutputAgain, PROMPT, "outputs_not_finite"),
    (CopyOfTheLastOutput, PROMPT, UNCHANGED),
    (CachedByContent, replace(PROMPT, context=1024), "time_with_new_inputs_over_median"),
    (OneCallLate, PROMPT, UNCHANGED),
    (OneSequenceStale, PROMPT, UNCHANGED),
    (TruncatedPrompt, PROMPT, EARLY),
    (HalfOfThePrompt, PROMPT, "input_sizes_off_the_case"),
    (TokensOverstated, PROMPT, "tokens_off_the_case"),
    (EngineTokensOverstated, PROMPT, "tokens_off_the_case"),
    (EngineTokensOverstated, GENERATE, "tokens_off_the_case"),
    (OneStepForSixteen, GENERATE, "outputs_without_the_units"),
    (InputsChanged, PROMPT, "inputs_changed_by_the_work"),
    (NotANumber, PROMPT, "outputs_not_finite"),
    (NotANumberWhileTimed, PROMPT, "outputs_not_finite_while_timed"),
    (SmallerModelTimed, PROMPT, "timed_error"),
    (InventedSamples, PROMPT, "lower_bound_over_shortest_sample"),
    (InventedSamples, GENERATE, "lower_bound_over_median"),
    (NoOutputs, PROMPT, "outputs_that_are_no_tensors"),
    (StateReset, in_bfloat16("mamba", "generate"), EARLY),
    (StateReset, in_bfloat16("ttt-linear", "generate"), EARLY),
    (TokenLookup, in_bfloat16("mamba", "generate"), EARLY),
    (TokenLookup, in_bfloat16("ttt-mlp", "generate"), EARLY),
    (TokenLookup, in_bfloat16("transformer", "generate"), EARLY),
    (Last64Tokens, in_bfloat16("mamba", "forward"), EARLY),
    (Last64Tokens, in_bfloat16("ttt-linear", "forward"), EARLY),
    (Last64Tokens, in_bfloat16("ttt-mlp", "forward"), EARLY),
    (Last66Tokens, in_bfloat16("mamba", "forward"), SLOPE),
    (Int8Weights, in_bfloat16("mamba", "forward"), WRONG),
    (Int8Weights, in_bfloat16("transformer", "forward"), WRONG),
    (Int8Weights, in_bfloat16("ttt-linear", "generate"), WRONG),
    (Int8Weights, in_bfloat16("ttt-mlp", "request"), WRONG),
    (OneSequenceWrong, in_bfloat16("transformer", "forward"), WRONG),
    (OneSequenceWrong, in_bfloat16("ttt-linear", "generate"), WRONG),
    (OneSequenceWrong, STAGGERED, WRONG),
    (OneSequenceWrong, in_bfloat16("mamba", "generate"), WRONG),
    (OneSequenceWrong, in_bfloat16("transformer", "request"), WRONG),
)


def record_of(adapter: type[Any], case: Case, policy: Policy = POLICY, mode: Mode = "measure") -> Record:
    policy = ONCE if issubclass(adapter, RepositoryAdapter) else policy
    return CaseRun(case, policy, mode).record(adapter())
