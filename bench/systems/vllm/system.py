"""Answer a case by vLLM: which engine serves it, what a sample is in each phase, and the check of what was timed."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

import torch

from bench.cost import model_work, total
from bench.kept import kept_bytes
from bench.models.config import ModelConfig, parameter_count, uncut
from bench.systems import token_times
from bench.systems.ceilings import ceilings_of
from bench.systems.logits import choice_check
from bench.systems.model_calls import STEPS
from bench.systems.needs import cannot_import, import_or_skip, no_gpu, other_release
from bench.systems.on_device import device
from bench.systems.vllm.engine import MEMORY_SHARE, SEQUENCES, Batch, Engine, Settings
from bench.systems.witness import drawn, not_compared
from harness.measure.gate import Check, Verdict
from harness.measure.system import NeedsFreshProcess, Workload
from harness.schema.case import Case
from harness.schema.policy import Policy

# In this process, or requests are admitted piecemeal and a batch splits; offline; without flashinfer's sampler, which
# would be compiled at the first request.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
SUPPORTED = ("0.22", "0.33")  # oldest and newest minor release
CORE = "in the process that asks, where vLLM's default is one of its own"
STEADY_STEPS = 32  # of a generate batch, at the least, in which every sequence takes part
STEPS_SEEN = 16  # of those by a profiler
MANY_SEQUENCES = 4096  # the figures' largest batch: an engine of more than SEQUENCES is made for all of them
BESIDE_CACHE = 2_500_000_000  # bytes that an engine of 1.3b took beside weights and cache, on an H100 and an H200
BESIDE_PROMPTS = 2_000_000_000  # more for graphs of prompts: a forward holds the prompts of two steps alone
MODEL_LENGTH = 33_024  # the figures' longest prompt, 32,768, and its steps; one engine then serves them all


class VllmSystem:
    """An adapter (`harness.measure.system.SystemAdapter`) of one architecture in vLLM, with one engine a process."""

    packages: tuple[str, ...] = ("vllm",)
    implementation: ClassVar[str]  # vLLM's own, MODULE:CLASS
    # Tokens of a step; and by phase of a block of the cache, the engine's choice where it is not named. The suite
    # vllm-settings tries them.
    max_num_batched_tokens: ClassVar[int]
    block_sizes: ClassVar[Mapping[str, int]] = {}
    graphs: ClassVar[Mapping[str, str]] = {}  # by phase; the engine's own where it is not named
    steps_grow: ClassVar[bool] = True  # whether a step of generate reads more with each token that a sequence has

    def __init__(self) -> None:
        os.environ.update(ENVIRONMENT)
        self._engine: Engine | None = None
        self._verdict: Verdict | None = None

    def unavailable(self) -> str:
        """vllm.platforms.cuda imports the kernels under the names of each release; an engine imports the rest, 4 s."""
        return no_gpu() or other_release("vllm", *SUPPORTED) or cannot_import("vllm", "vllm.platforms.cuda")

    def config(self, size: str) -> ModelConfig:
        """The repository's configuration of a size."""
        raise NotImplementedError

    @property
    def architecture(self) -> str:
        """How a config.json names the model."""
        return self.implementation.partition(":")[2]

    def hugging_face(self, config: Any, length: int) -> dict[str, Any]:
        """The same as a Hugging Face config.json, for sequences of up to `length` tokens."""
        raise NotImplementedError

    def cache_bytes(self, config: Any, context: int) -> int:
        """Bytes of cache that a sequence of `context` tokens needs."""
        raise NotImplementedError

    def check(self, engine: Engine, case: Case) -> None:
        """Raise RuntimeError where the engine does not run as this system says it does."""

    def last_logits(self, reference: Any, ids: torch.Tensor, last: int) -> torch.Tensor:
        """The logits [B, last, V] after the last of ids [B, T], by a model of this repository that is on the host."""
        raise NotImplementedError

    def prompt_tokens(self, case: Case) -> int:
        """How many tokens each prompt has: those of the context."""
        return case.context

    def build(self, case: Case) -> Workload:
        """The workload of a case; it times itself."""
        ceilings = ceilings_of(device())  # measured while the engine has not taken the GPU's memory
        engine = self.engine(case)
        read = replace(case, context=self.prompt_tokens(case))
        work = {"forward": Prefill, "generate": EngineGenerate, "request": EngineRequest}[case.phase](engine, read)
        prompt = {"prompt_tokens": str(read.context)}
        if isinstance(work, EngineGenerate) and self.steps_grow:
            work.centre()
            prompt = {}
        facts = engine.facts()
        kept = {"state_bytes": work.at_once * kept_bytes(self.config(case.size), case)}
        cost = model_work(self.config(case.size), facts.parameters, replace(read, batch=work.batch))
        return Workload(
            run=work.once,
            tokens=work.tokens,
            device="cuda",
            gate=lambda: self._gate(engine, case),
            engine_samples=work.samples,
            engine_batch=work.inside,
            witness=lambda chance: work.witness(chance, self.last_logits),
            measured=work.measured,
            metrics=facts.metrics() | work.metrics() | total(cost).metrics() | kept | ceilings,
            work=cost,
            settings=facts.settings() | engine.described() | {"timed": work.timed, "engine_core": CORE} | prompt,
        )

    def engine(self, case: Case) -> Engine:
        """The engine of this process, started for its first case.

        NeedsFreshProcess where it does not serve this one, Skip where a part of vLLM cannot be imported.
        """
        settings = self._settings(case)
        if self._engine is None:
            import_or_skip("vllm.entrypoints.llm", "vllm.v1.engine.llm_engine")
            config = self.config(case.size)
            described = self.hugging_face(config, settings.max_model_len)
            self._engine = Engine(config, described, settings, self.implementation)
        elif self._engine.settings != settings:
            raise NeedsFreshProcess
        self.check(self._engine, case)
        return self._engine

    def _settings(self, case: Case) -> Settings:
        block = case.option("block_size", self.block_sizes.get(case.phase))
        graphs = str(case.option("graphs", self.graphs.get(case.phase, Settings.graphs)))
        return Settings(
            size=case.size,
            dtype=case.dtype,
            max_model_len=max(MODEL_LENGTH, case.context + max(MODEL_LENGTH - 32768, case.new_tokens + 1)),
            max_num_seqs=self._sequences(case),
            block_size=None if block is None else int(block),
            max_num_batched_tokens=int(case.option("max_num_batched_tokens", self.max_num_batched_tokens)),
            attention=str(case.option("attention", "")),
            graphs=graphs,
            cache_bytes=self._cache_bytes(case.size, graphs),
        )

    def _cache_bytes(self, size: str, graphs: str) -> int | None:
        """What the cache takes; None for what the engine finds to be left.

        Of a size that was cut its layers' share of the whole model's cache, so that as many sequences fit.
        """
        name, layers = uncut(size)
        if not layers and graphs != "prompts":
            return None
        config, part = self.config(name), self.config(size)
        beside = BESIDE_CACHE + (BESIDE_PROMPTS if graphs == "prompts" else 0)
        cache = int(MEMORY_SHARE * gpu_memory()) - 2 * parameter_count(config) - beside
        return cache * part.layers // config.layers

    def _sequences(self, case: Case) -> int:
        """SEQUENCES where no more could ever be in flight of the case's batch, else MANY_SEQUENCES, doubled if need be.

        So a figure's batches share one or two engines; each start of one costs as much as the cases of a figure.
        """
        each = self.cache_bytes(self.config(uncut(case.size)[0]), case.context)
        possible = min(case.batch, gpu_memory() // each)
        return SEQUENCES if possible <= SEQUENCES else max(MANY_SEQUENCES, 1 << (possible - 1).bit_length())

    def _gate(self, engine: Engine, case: Case) -> Verdict:
        if self._verdict is None:
            self._verdict = engine.gate(case)
        return self._verdict


def gpu_memory() -> int:
    """Bytes of the GPU."""
    return torch.cuda.get_device_properties(0).total_memory


class _Work:
    """What a phase is in an engine: prompts of `context` tokens, `new_tokens` each, and the samples of one batch."""

    timed: str

    def __init__(self, engine: Engine, case: Case) -> None:
        self.engine, self.context, self.dtype = engine, case.context, case.dtype
        self.new_tokens = self.wanted_tokens(case)
        self.at_once = min(case.batch, engine.sequences_that_fit(case.context + self.new_tokens))
        if self.at_once < 1:
            raise MemoryError(f"the cache of {engine.cache_blocks()} blocks does not hold one sequence")
        self.batch = case.batch

    def wanted_tokens(self, case: Case) -> int:
        """How many tokens each sequence generates."""
        return 1

    @property
    def tokens(self) -> int:
        """How many tokens one sample stands for."""
        return self.batch * self.context

    def samples_of(self, batch: Batch) -> list[float]:
        """The samples in ms that one batch gives."""
        return [batch.total_ms()]

    def metrics(self) -> dict[str, float | None]:
        """How many sequences the cache holds at once, of those asked for."""
        return {"sequences_at_once": self.at_once, "cache_blocks": self.engine.cache_blocks()}

    def measured(self, calls: int) -> dict[str, float | None]:
        """See Workload.measured."""
        return {}

    def once(self) -> Batch:
        """One batch of fresh prompts, which `witness` finds until the next one."""
        self._prompts = self.engine.prompts(self.batch, self.context)
        self._ran = self.engine.run(self._prompts, self.new_tokens)
        return self._ran

    def inside(self, around: AbstractContextManager[object]) -> int:
        """See Workload.engine_batch."""
        self.engine.run(self.engine.prompts(self.batch, self.context), self.new_tokens, around=around)
        return 1

    def samples(self, policy: Policy) -> Iterator[list[float]]:
        """Those of batch after batch, without an end."""
        while True:
            yield self.samples_of(self.once())

    def witness(self, chance: Random, last_logits: Callable[..., torch.Tensor]) -> Callable[[Any, int], Verdict]:
        """Drawn sequences of the last batch: their last tokens must be the reference's choice, given those before."""
        tokens = self.context + self.new_tokens - 1
        if tokens > MODEL_LENGTH:  # beside the engine is no room for more
            return not_compared(tokens, MODEL_LENGTH)
        rows = drawn(chance, self.batch, tokens)

        def judge(outputs: Any, calls: int) -> Verdict:
            made = [list(self._ran.outputs[row].outputs[0].token_ids) for row in rows]
            missing = sum(abs(len(each) - self.new_tokens) for each in made)
            if missing:
                return Verdict([Check.at_most("timed_tokens_missing", missing, 0)])
            last = min(STEPS, self.new_tokens)
            ids = torch.tensor([self._prompts[row] + each[:-1] for row, each in zip(rows, made, strict=True)])
            logits = last_logits(self.engine.reference(), ids, last).cpu()
            chosen = torch.tensor(made)[:, -last:]
            return Verdict([choice_check("timed_choice_below_best", logits, chosen, self.dtype)])

        return judge


class Prefill(_Work):
    """Forward: prompts that end with their first token, and leave the cache with it.

    So it need not hold them all: a step reads as many as its tokens allow, while those of the step before may be there.
    """

    timed = "all prompts, from the first step to the last prompt's first token"

    def __init__(self, engine: Engine, case: Case) -> None:
        super().__init__(engine, case)
        self.at_once = min(self.at_once, -(-2 * engine.settings.max_num_batched_tokens // self.context))

    def metrics(self) -> dict[str, float | None]:
        """Of the cache alone."""
        return {"cache_blocks": self.engine.cache_blocks()}


class EngineGenerate(_Work):
    """Steps of as many sequences as the cache holds; a sample is a step in which all of them take part."""

    timed = "each step in which every sequence in flight generates"

    def __init__(self, engine: Engine, case: Case) -> None:
        super().__init__(engine, case)
        self.batch = self.at_once

    def centre(self) -> None:
        """Shorten the prompts by half of the tokens that follow, so that the timed steps lie around the context."""
        self.context = max(1, self.context - self.new_tokens // 2)
        self.timed = f"{self.timed}; prompts of {self.context} tokens, so that these steps lie around the context"

    def wanted_tokens(self, case: Case) -> int:
        """Enough that all generate STEADY_STEPS together: the first prompt read waits for the last one."""
        limit = self.engine.settings.max_num_batched_tokens
        sequences = min(case.batch, self.engine.sequences_that_fit(case.context + STEADY_STEPS))
        reading = -(-sequences * case.context // max(1, limit - sequences))
        return STEADY_STEPS + reading + 2

    @property
    def tokens(self) -> int:
        """One a sequence in flight."""
        return self.batch

    def inside(self, around: AbstractContextManager[object]) -> int:
        """See Workload.engine_batch."""
        prompts = self.engine.prompts(self.batch, self.context)
        batch = self.engine.run(prompts, self.new_tokens, around=around, steady_steps=STEPS_SEEN)
        steady = len(batch.steady_ms(self.batch))
        if steady < STEPS_SEEN:
            raise RuntimeError(f"all sequences generated in {steady} steps, a profiler sees {STEPS_SEEN}")
        return STEPS_SEEN

    def samples_of(self, batch: Batch) -> list[float]:
        """Every steady step."""
        return batch.steady_ms(self.batch)

    def metrics(self) -> dict[str, float | None]:
        """Where the steps stand, too."""
        return super().metrics() | {"context_at_last_step": self.context + self.new_tokens}


class EngineRequest(_Work):
    """Prompts, then `steps` tokens after each one's first."""

    timed = "all prompts and their tokens, from the first step to the last token"

    def __init__(self, engine: Engine, case: Case) -> None:
        super().__init__(engine, case)
        self._requests: deque[list[tuple[float, list[float]]]] = deque(maxlen=token_times.TIMED_REQUESTS)

    def samples_of(self, batch: Batch) -> list[float]:
        """The whole batch; its requests' own times are kept."""
        self._requests.append(batch.requests_ms())
        return super().samples_of(batch)

    def measured(self, calls: int) -> dict[str, float | None]:
        """See token_times.metrics, of the last batches: a request waits while prompts before its own are read."""
        return token_times.metrics(list(self._requests)[-calls:])

    def wanted_tokens(self, case: Case) -> int:
        """The token after the prompt is no step of its own."""
        return case.new_tokens + 1

    @property
    def tokens(self) -> int:
        """Prompt and steps."""
        return self.batch * (self.context + self.new_tokens - 1)
