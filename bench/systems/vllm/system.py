"""Run a case in vLLM: start the engine, time the case's phase, and check the timed outputs."""

import importlib
import os
import sysconfig
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import accumulate, chain
from random import Random
from statistics import fmean
from typing import Any, ClassVar

import torch

from bench.cost import model_work, total
from bench.models.case_model import config_of
from bench.models.config import parameter_count, split_size
from bench.state_size import state_bytes
from bench.systems import token_times
from bench.systems.blockwise import last_logits
from bench.systems.checked_sequences import draw_sequences, not_compared
from bench.systems.logits import choice_check, limit_factor, limit_settings
from bench.systems.measured_peaks import peaks_of
from bench.systems.model_calls import STEPS, model_of
from bench.systems.needs import cannot_import, import_or_skip, no_gpu, unsupported_release
from bench.systems.on_device import device
from bench.systems.vllm.engine import DEFAULT_SEQS, MEMORY_SHARE, Batch, Engine, Settings
from harness.measure.correctness import Check, Checks
from harness.measure.system import NeedsFreshProcess, Workload
from harness.schema.case import Case

# The engine core runs in this process: a separate process admits requests one by one and splits a batch.
# The other variables turn off FlashInfer's sampler, which compiles at the first request, and network access.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
CORE = "in the benchmark's process, without output processing; vLLM's default is a separate process"
STEADY_STEPS = 32  # minimum steps of a generate batch in which every sequence generates
GENERATE_PROMPT = 128  # longest generate prompt of a recurrent model, whose steps do not depend on the prompt
PROFILED_STEPS = 16  # generate steps per profile
MANY_SEQUENCES = 4096  # largest batch of the suites; one engine serves all batches from DEFAULT_SEQS + 1 to this
ENGINE_BYTES = 2_500_000_000  # a 1.3b engine's memory except weights and cache, on an H100 and an H200
PROMPT_GRAPH_BYTES = 2_000_000_000  # additional memory for CUDA graphs of prompts
MODEL_LENGTH = 33_024  # minimum max_model_len, so that most cases share an engine
ARRIVALS_SEED = 0
EXTENSIONS = {"FLASHINFER": ("flashinfer",), "FLASH_ATTN-2": ("vllm.vllm_flash_attn._vllm_fa2_C",)}
MODEL_OPTIONS = ("backbone", "checkpoint", "mini_batch")  # options of a case that choose another model


class VllmSystem:
    """Base class of adapters that run one architecture in vLLM; a process has one engine.

    implementation: the class that vLLM runs, MODULE:CLASS. releases: oldest and newest supported minor release of vLLM.
    max_num_batched_tokens: most tokens per step. steps_grow: whether a generate step reads more as the context grows.
    """

    packages: tuple[str, ...] = ("vllm",)
    implementation: ClassVar[str]
    releases: ClassVar[tuple[str, str]] = ("0.22", "0.33")
    max_num_batched_tokens: ClassVar[int]
    steps_grow: ClassVar[bool] = True

    def __init__(self) -> None:
        os.environ.update(ENVIRONMENT)
        self._engine: Engine | None = None
        self._checked: Checks | None = None

    def unavailable(self) -> str:
        # vllm.platforms.cuda imports the CUDA kernels; starting an engine imports the rest
        return no_gpu() or unsupported_release("vllm", *self.releases) or cannot_import("vllm", "vllm.platforms.cuda")

    def register(self) -> None:
        """Register the model's class object, so that vLLM needs no subprocess to inspect it."""
        from vllm import ModelRegistry

        module = importlib.import_module(self.implementation.partition(":")[0])
        ModelRegistry.register_model(self.architecture, getattr(module, self.architecture))

    @property
    def architecture(self) -> str:
        """Name of the model's class, which is also the architecture in config.json."""
        return self.implementation.partition(":")[2]

    def hugging_face(self, config: Any, length: int) -> dict[str, Any]:
        """Return the contents of config.json for sequences of up to `length` tokens."""
        raise NotImplementedError

    def settings(self, case: Case) -> dict[str, str]:
        return limit_settings(case)

    def defaults(self, case: Case) -> dict[str, Any]:
        """Return the fastest values of the options graphs, block_size and attention; vLLM chooses those left out."""
        return {}

    def check(self, engine: Engine, case: Case) -> None:
        """Raise RuntimeError if the engine runs unexpected kernels. By default, do nothing."""

    def last_logits(self, reference: Any, ids: torch.Tensor, last: int) -> torch.Tensor:
        """Return the reference's logits [B, last, V] for the final `last` tokens of ids [B, T]."""
        return last_logits(reference, ids, last, torch.device(device()))

    def prompt_tokens(self, case: Case) -> int:
        """Return the tokens per prompt: the context; recurrent generate: at most GENERATE_PROMPT."""
        short = case.phase == "generate" and not self.steps_grow
        return min(case.context, GENERATE_PROMPT) if short else case.context

    def build(self, case: Case) -> Workload:
        peaks = peaks_of(device())  # measured before the engine takes the GPU's memory
        engine = self.engine(case)
        read = replace(case, context=self.prompt_tokens(case))
        request = EngineArrivals if case.option("rate") else EngineRequest
        work = {"forward": EngineForward, "generate": EngineGenerate, "request": request}[case.phase](engine, read)
        prompt = {"prompt_tokens": str(read.context)}
        if isinstance(work, EngineGenerate) and self.steps_grow:
            work.center_on_context()
            prompt = {}
        facts = engine.facts()
        state = {"state_bytes": work.concurrent * self._state_bytes(case)}
        cost = model_work(config_of(case), facts.parameters, replace(read, batch=work.batch))
        return Workload(
            run=work.run_batch,
            units=work.units,
            tokens=work.tokens,
            device="cuda",
            check=lambda: self._check(engine, case),
            engine_samples=work.samples,
            engine_batch=work.run_profiled,
            timed_check=lambda rng: work.timed_check(rng, self.last_logits),
            measured=work.measured,
            metrics=facts.metrics() | work.metrics() | total(cost).metrics() | state | peaks,
            work=cost,
            settings=facts.settings()
            | engine.running_settings()
            | {"timed": work.timed, "engine_core": CORE}
            | self.settings(case)
            | prompt,
        )

    def engine(self, case: Case) -> Engine:
        """Return this process's engine; the first call starts it.

        Raises NeedsFreshProcess if the case needs an engine with other settings, and Skip if vLLM cannot be imported.
        """
        settings = self._settings(case)
        if self._engine is None:
            if settings.attention == "FLASHINFER":  # compiles its kernels with this environment's ninja
                os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
                # The XQA kernel, for Hopper's generate steps, otherwise depends on a server of precompiled kernels.
                # vLLM reads this variable once, when it imports FlashInfer.
                os.environ["VLLM_HAS_FLASHINFER_CUBIN"] = "1"
            import_or_skip("vllm.entrypoints.llm", "vllm.v1.engine.llm_engine", *EXTENSIONS.get(settings.attention, ()))
            config = config_of(case)
            config_json = self.hugging_face(config, settings.max_model_len)
            self.register()
            self._engine = Engine(lambda: model_of(case), config, config_json, settings)
        elif self._engine.settings != settings:
            raise NeedsFreshProcess
        self.check(self._engine, case)
        return self._engine

    def _settings(self, case: Case) -> Settings:
        options = self.defaults(case) | dict(case.options)
        block, graphs = options.get("block_size"), str(options.get("graphs", Settings.graphs))
        context, answer = case.context, case.new_tokens + 1
        if case.option("rate"):  # the longest of `EngineArrivals`
            context, answer = context * 3 // 2, answer * 3 // 2
        return Settings(
            size=case.size,
            dtype=case.dtype,
            max_model_len=max(MODEL_LENGTH, context + max(MODEL_LENGTH - 32768, answer)),
            max_num_seqs=self._sequences(case),
            block_size=None if block is None else int(block),
            max_num_batched_tokens=int(case.option("max_num_batched_tokens", self.max_num_batched_tokens)),
            attention=str(options.get("attention", "")),
            graphs=graphs,
            model_runner=str(case.option("model_runner", "")),
            cuda_graphs=str(case.option("cuda_graphs", "")),
            cache_bytes=self._cache_bytes(case, graphs),
            model=tuple(pair for pair in case.options if pair[0] in MODEL_OPTIONS),
        )

    def _cache_bytes(self, case: Case, graphs: str) -> int | None:
        """Return the cache's size in bytes, or None if vLLM chooses it."""
        name, layers = split_size(case.size)
        if not layers and graphs != "prompts":
            return None
        config, part = config_of(replace(case, size=name)), config_of(case)
        outside = ENGINE_BYTES + (PROMPT_GRAPH_BYTES if graphs == "prompts" else 0)
        cache = int(MEMORY_SHARE * gpu_memory()) - 2 * parameter_count(config) - outside
        return cache * part.layers // config.layers  # as many per layer as in the full model

    def _sequences(self, case: Case) -> int:
        """Return max_num_seqs, rounded to few values: each new value starts another engine."""
        whole = replace(case, size=split_size(case.size)[0])
        each, cache = self._state_bytes(whole), self._cache_bytes(whole, "prompts")  # the smallest cache, as a margin
        possible = min(case.batch, gpu_memory() // each)
        most = DEFAULT_SEQS if possible <= DEFAULT_SEQS else max(MANY_SEQUENCES, 1 << (possible - 1).bit_length())
        # vLLM starts only if its cache holds max_num_seqs states.
        return most if self.steps_grow or cache is None else min(most, max(1, cache // each))

    def _state_bytes(self, case: Case) -> int:
        phase = "generate" if case.phase == "forward" else case.phase
        return state_bytes(config_of(case), replace(case, phase=phase, context=max(1, case.context)))

    def _check(self, engine: Engine, case: Case) -> Checks:
        if self._checked is None:
            self._checked = engine.check(case, self.last_logits)
        return self._checked


def gpu_memory() -> int:
    """Return the GPU's memory in bytes."""
    return torch.cuda.get_device_properties(0).total_memory


class _TimedBatches:
    """Base class that runs and times a phase's batches in vLLM."""

    timed: str  # the timed span in words, for the record
    units = 1  # steps of a sample of the generate phase
    due: Sequence[float] = ()  # seconds after the start at which each prompt arrives; () for all at once

    def __init__(self, engine: Engine, case: Case) -> None:
        self.engine, self.context, self.dtype = engine, case.context, case.dtype
        self.limit_factor = limit_factor(case)
        self.new_tokens = self.tokens_to_generate(case)
        self.concurrent = min(case.batch, engine.sequences_that_fit(case.context + self.new_tokens))
        if self.concurrent < 1:
            raise MemoryError(f"the cache of {engine.cache_blocks()} blocks does not hold one sequence")
        self.batch = case.batch

    def tokens_to_generate(self, case: Case) -> int:
        return 1

    @property
    def tokens(self) -> int:
        """Tokens that a batch reads: prompts, and each sequence's generated tokens except the last."""
        return self.batch * (self.context + self.new_tokens - 1)

    def samples_of(self, batch: Batch) -> list[float]:
        """Return the samples of a batch in ms; by default one sample, the batch's total time."""
        return [batch.total_ms()]

    def metrics(self) -> dict[str, float | None]:
        return {"sequences_at_once": self.concurrent, "cache_blocks": self.engine.cache_blocks()}

    def measured(self, calls: int) -> dict[str, float | None]:
        return {}

    def run_batch(self) -> Batch:
        """Run and return a batch of new prompts; `timed_check` then checks this batch."""
        self._prompts = self.prompts()
        self._last_batch = self.run_prompts(self._prompts)
        return self._last_batch

    def prompts(self) -> list[list[int]]:
        return self.engine.prompts(self.batch, self.context)

    def answers(self) -> list[int]:
        """Return how many tokens the engine generates after each prompt."""
        return [self.new_tokens] * self.batch

    def run_prompts(self, prompts: list[list[int]], **how: Any) -> Batch:
        return self.engine.run(prompts, self.answers(), self.due, **how)

    def run_profiled(self, around: AbstractContextManager[object]) -> int:
        self.run_prompts(self.prompts(), around=around)
        return 1

    def samples(self) -> Iterator[list[float]]:
        """Run batches without end; after each batch, yield its samples in ms."""
        while True:
            yield self.samples_of(self.run_batch())

    def timed_check(self, rng: Random, last_logits: Callable[..., torch.Tensor]) -> Callable[[Any, int], Checks]:
        """Return a check of the last tokens that random sequences of the batch generated.

        last_logits(reference, ids [B, T], last): returns a reference model's logits [B, last, V].
        If sequences have more than MODEL_LENGTH tokens on average, nothing is compared.
        """
        tokens = self.context + self.new_tokens - 1
        if tokens > MODEL_LENGTH:  # the engine leaves the reference no memory for more
            return not_compared(tokens, MODEL_LENGTH)
        rows = draw_sequences(rng, self.batch, tokens)

        def compare(outputs: Any, calls: int) -> Checks:
            requests = self._last_batch.requests()
            made = {row: requests[row][0] for row in rows}
            missing = sum(abs(len(each) - self.answers()[row]) for row, each in made.items())
            if missing:
                return Checks([Check.at_most("timed_tokens_missing", missing, 0)])
            alike: dict[tuple[int, int], list[int]] = defaultdict(list)
            for row in rows:
                alike[len(self._prompts[row]), len(made[row])].append(row)
            checks = []
            for (_, count), some in alike.items():
                last = min(STEPS, count)
                ids = torch.tensor([self._prompts[row] + made[row][:-1] for row in some])
                logits = last_logits(self.engine.reference(), ids, last).cpu()
                chosen = torch.tensor([made[row][-last:] for row in some])
                checks.append(choice_check("timed_choice_below_best", logits, chosen, self.dtype, self.limit_factor))
            return Checks(checks)

        return compare


class EngineForward(_TimedBatches):
    """Timed forward batches: each prompt generates one token, then frees its cache blocks."""

    timed = "all prompts, from the first step to the last prompt's first token"

    def __init__(self, engine: Engine, case: Case) -> None:
        super().__init__(engine, case)
        self.concurrent = min(self.concurrent, -(-2 * engine.settings.max_num_batched_tokens // self.context))

    def metrics(self) -> dict[str, float | None]:
        return {"cache_blocks": self.engine.cache_blocks()}


class EngineGenerate(_TimedBatches):
    """Timed generate batches; a sample is the mean time of `units` steps, a mini-batch for TTT."""

    timed = "each step in which every sequence in flight generates"

    def __init__(self, engine: Engine, case: Case) -> None:
        # A TTT model rewrites its weights in one step of each mini-batch.
        self.units = getattr(engine.model_config, "mini_batch", 1)
        super().__init__(engine, case)
        self.batch = self.concurrent
        if self.units > 1:
            self.timed = f"{self.timed}; a sample is the mean of {self.units} steps"

    def center_on_context(self) -> None:
        """Shorten prompts by half the new tokens, to center the timed steps on the context."""
        self.context = max(1, self.context - self.new_tokens // 2)
        self.timed = f"{self.timed}; prompts of {self.context} tokens, so that these steps are centered on the context"

    def tokens_to_generate(self, case: Case) -> int:
        """Return how many tokens to generate: at least STEADY_STEPS after the last prompt is read."""
        limit, steady = self.engine.settings.max_num_batched_tokens, max(STEADY_STEPS, self.units + 1)
        sequences = min(case.batch, self.engine.sequences_that_fit(case.context + steady))
        reading = -(-sequences * case.context // max(1, limit - sequences))
        return steady + reading + 2

    @property
    def tokens(self) -> int:
        return self.batch

    def run_profiled(self, around: AbstractContextManager[object]) -> int:
        batch = self.run_prompts(self.prompts(), around=around, steady_steps=PROFILED_STEPS)
        steady = len(batch.steady_ms(self.batch))
        if steady < PROFILED_STEPS:
            raise RuntimeError(f"all sequences generated in only {steady} steps; a profile needs {PROFILED_STEPS}")
        return PROFILED_STEPS

    def samples_of(self, batch: Batch) -> list[float]:
        steps = batch.steady_ms(self.batch)
        return [fmean(steps[end - self.units : end]) for end in range(self.units, len(steps) + 1, self.units)]

    def metrics(self) -> dict[str, float | None]:
        return super().metrics() | {"context_at_last_step": self.context + self.new_tokens}


class EngineRequest(_TimedBatches):
    """Timed request batches: each prompt is followed by 1 + `Case.new_tokens` generated tokens."""

    timed = "all prompts and their tokens, from the first step to the last token"

    def __init__(self, engine: Engine, case: Case) -> None:
        super().__init__(engine, case)
        self._batches: deque[Batch] = deque(maxlen=token_times.TIMED_REQUESTS)

    def samples_of(self, batch: Batch) -> list[float]:
        self._batches.append(batch)
        return super().samples_of(batch)

    def samples(self) -> Iterator[list[float]]:
        """Warm up with short answers; then run batches without end, and yield [time in ms] of each."""
        self.engine.run(self.prompts(), [min(count, STEADY_STEPS) for count in self.answers()])
        yield from super().samples()

    def measured(self, calls: int) -> dict[str, float | None]:
        """Return TTFT, which includes the wait for earlier prompts, and ITL in ms."""
        return token_times.metrics([batch.requests_ms() for batch in list(self._batches)[-calls:]])

    def tokens_to_generate(self, case: Case) -> int:
        return case.new_tokens + 1


class EngineArrivals(EngineRequest):
    """Timed request batches with option `rate`: Poisson arrivals with a mean interval of exactly 1 / `rate` seconds.

    The lengths of prompts and answers vary from 0.5 to 1.5 times the case's.
    One seed draws arrivals and lengths for all systems. Times exclude HTTP, because the engine runs in this process.
    """

    timed = "from the first arrival to the last token, at the exact mean rate; a request's TTFT includes its wait"

    def __init__(self, engine: Engine, case: Case) -> None:
        super().__init__(engine, case)
        rng = Random(ARRIVALS_SEED)
        intervals = [rng.expovariate(1.0) for _ in range(1, self.batch)]
        faster = fmean(intervals or [1.0]) * float(case.option("rate"))  # with 128 draws, the mean was 16% off
        self.due = [0.0, *accumulate(interval / faster for interval in intervals)]
        self._lengths = _lengths_around(rng, self.context, self.batch)
        self._answers = [1 + steps for steps in _lengths_around(rng, self.new_tokens - 1, self.batch)]

    def prompts(self) -> list[list[int]]:
        return [self.engine.prompts(1, length)[0] for length in self._lengths]

    def answers(self) -> list[int]:
        return self._answers

    def measured(self, calls: int) -> dict[str, float | None]:
        last = list(self._batches)[-calls:]
        requests = [batch.requests_ms() for batch in last]
        seconds = sum(batch.total_ms() for batch in last) / 1e3
        return token_times.metrics(requests) | token_times.arrival_metrics([*chain(*requests)], seconds)


def _lengths_around(rng: Random, mean: int, count: int) -> list[int]:
    """Draw `count` shuffled lengths, 0.5 to 1.5 times `mean`, in pairs mean - x and mean + x."""
    away = [rng.randint(0, mean // 2) for _ in range(count // 2)]
    lengths = [mean] * (count % 2) + [mean + sign * each for each in away for sign in (-1, 1)]
    rng.shuffle(lengths)
    return lengths
