"""Run vLLM's engine in this process, and time each of its steps."""

import gc
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from bench import model_facts
from bench.catalogue.systems import LAUNCH_BOUND_TOKENS
from bench.models import checkpoint
from bench.models.base import CausalLM
from bench.models.config import ModelConfig
from bench.systems.language_model import CHECK_BATCH, CHECK_PROMPT, CHECK_STEPS
from bench.systems.logits import check_logits, limit_factor
from bench.systems.vllm.model_folder import ModelFolder
from harness.measure.correctness import Checks
from harness.schema.case import Case, Scalar

DEFAULT_SEQS = 512  # largest batch of vLLM's own CUDA graphs
GRAPH_STEP = 256  # distance between graph sizes above DEFAULT_SEQS, in tokens
PROMPT_STEP = 1024  # distance between graph sizes for prompts, in tokens
# Step sizes, in tokens, that get a CUDA graph. engine: vLLM's own list. prompts: also sizes of launch-bound prompts.
# prompts needs `cache_bytes`: to size the cache itself, vLLM first allocates a block per token of its largest graph.
GRAPHS = ("engine", "prompts")
MEMORY_SHARE = 0.9  # vLLM's share of the GPU's memory; the rest is for the float32 reference
# Errors of vLLM on a GPU too small for weights and cache, or shared with another program.
OOM = ("memory for the cache blocks", "available KV cache memory", "not enough GPU memory", "Free memory on device")
SPARE_BLOCKS = 0.01  # share of the cache's blocks left free; the engine preempts sequences when the cache is full


@dataclass(frozen=True)
class Settings:
    """An engine's settings; cases with equal settings share an engine.

    graphs: one of GRAPHS; selects the step sizes, in tokens, that get a CUDA graph. cuda_graphs: vLLM's cudagraph_mode.
    attention: BACKEND-VERSION, such as FLASH_ATTN-2.
    If attention, model_runner or cuda_graphs is "", vLLM chooses.
    """

    size: str
    dtype: str
    max_model_len: int
    max_num_seqs: int
    block_size: int | None
    max_num_batched_tokens: int
    attention: str = ""
    graphs: str = "engine"
    model_runner: str = ""  # V1 or V2; for Llama, vLLM chooses V1 in 0.22 and V2 in 0.33
    cuda_graphs: str = ""
    cache_bytes: int | None = None  # None: MEMORY_SHARE minus weights and activations
    model: tuple[tuple[str, Scalar], ...] = ()  # the case's options that choose another model

    def __post_init__(self) -> None:
        if self.graphs not in GRAPHS:
            raise ValueError(f"graphs {self.graphs!r}: must be one of {', '.join(GRAPHS)}")

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of vllm.LLM."""
        graphs: dict[str, Any] = {"cudagraph_capture_sizes": sizes} if (sizes := self.graph_sizes()) else {}
        graphs |= {"cudagraph_mode": self.cuda_graphs} if self.cuda_graphs else {}
        attention: dict[str, Any] = {}
        if self.attention:
            backend, _, version = self.attention.partition("-")
            attention = {"backend": backend} | ({"flash_attn_version": int(version)} if version else {})
        if self.graphs == "prompts":
            # Attention of prompts does not split keys; the default reserves buffers for 32 splits in each graph.
            attention |= {"flash_attn_max_num_splits_for_cuda_graph": 1}
        return {
            "skip_tokenizer_init": True,
            "load_format": "safetensors",
            "dtype": self.dtype,
            "enable_prefix_caching": False,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "gpu_memory_utilization": MEMORY_SHARE,
            "max_logprobs": -1,  # this and the next option are for checks
            "logprobs_mode": "raw_logits",
            "disable_log_stats": True,
            **({"block_size": self.block_size} if self.block_size else {}),
            **({"attention_config": attention} if attention else {}),
            **({"kv_cache_memory_bytes": self.cache_bytes} if self.cache_bytes else {}),
            **({"compilation_config": graphs} if graphs else {}),
        }

    def graph_sizes(self) -> list[int]:
        """Return the step sizes, in tokens, that get a CUDA graph; [] for vLLM's own list."""
        prompts = range(PROMPT_STEP, LAUNCH_BOUND_TOKENS + 1, PROMPT_STEP) if self.graphs == "prompts" else ()
        if self.max_num_seqs <= DEFAULT_SEQS and not prompts:
            return []
        own = [1, 2, 4, *range(8, 256, 8), *range(256, DEFAULT_SEQS + 1, 16), self.max_num_seqs]
        return sorted({*own, *range(DEFAULT_SEQS + GRAPH_STEP, self.max_num_seqs, GRAPH_STEP), *prompts})


@dataclass
class Batch:
    """Times of one finished batch, in seconds of the host's monotonic clock.

    started: when the engine began the first step.
    steps: (end, number of sequences that generated) of each engine step. A step ends when its tokens are on the host.
    received: for each step, the engine core's timestamp and a tuple (request id, *new tokens) for each request.
    outputs: vLLM's output for each request, with its logits, in order of arrival; [] without logits.
    due: arrival time of each request; empty if all requests arrived before the first step.
    """

    started: float
    steps: list[tuple[float, int]] = field(default_factory=list)
    received: list[tuple[float, tuple[tuple[Any, ...], ...]]] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    due: list[float] = field(default_factory=list)

    def total_ms(self) -> float:
        """Return the time in ms from the first step's start to the last token."""
        ends = [end for end, tokens in self.steps if tokens]
        return (ends[-1] - self.started) * 1e3

    def requests(self) -> list[tuple[list[int], list[float]]]:
        """Return (new tokens, their engine-core timestamps) for each request, in order of arrival."""
        found: dict[str, tuple[list[int], list[float]]] = {}
        for at, outputs in self.received:
            for request_id, *tokens in outputs:
                made, ends = found.setdefault(request_id, ([], []))
                made += tokens
                ends += [at] * len(tokens)
        return [found[request_id] for request_id in sorted(found, key=_number)]

    def requests_ms(self) -> list[tuple[float, list[float]]]:
        """Return (TTFT, ITLs) of each request in ms. TTFT starts at the request's arrival."""
        requests = self.requests()
        due = self.due or [self.started] * len(requests)
        return [
            ((at[0] - arrived) * 1e3, [(later - earlier) * 1e3 for earlier, later in pairwise(at)])
            for arrived, (_, at) in zip(due, requests, strict=True)
        ]

    def steady_ms(self, sequences: int) -> list[float]:
        """Return the durations in ms of steps in which all `sequences` sequences generated.

        Only steps that follow another such step count. Raises RuntimeError if no step counts.
        """
        pairs = pairwise(self.steps)
        samples = [(end - began) * 1e3 for (began, before), (end, now) in pairs if before == now == sequences]
        if not samples:
            most = max((tokens for _, tokens in self.steps), default=0)
            raise RuntimeError(f"at most {most} of {sequences} sequences generated at once")
        return samples


class Engine:
    """A vLLM engine with a model of this repository; its memory is freed only when the process exits.

    model: function that builds the model. config: the model's configuration. hugging_face: contents of config.json.
    Raises MemoryError if the GPU has too little free memory for the weights and the cache of one sequence.
    """

    def __init__(
        self, model: Callable[[], CausalLM], config: ModelConfig, hugging_face: dict[str, Any], settings: Settings
    ) -> None:
        self.settings, self.model_config = settings, config
        self._folder = ModelFolder()
        self._reference: CausalLM | None = None
        checkpoint.save(model(), self._folder.path, hugging_face)
        gc.collect()  # free the model
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if settings.model_runner:
            os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(settings.model_runner == "V2"))
        from vllm import LLM

        try:
            self.llm: Any = LLM(str(self._folder.path), **settings.arguments())
        except ValueError as error:
            if any(words in str(error) for words in OOM):
                raise MemoryError(str(error)) from error
            raise
        self.core = self.llm.llm_engine.engine_core.engine_core

    def prompts(self, batch: int, tokens: int) -> list[list[int]]:
        return torch.randint(0, self.model_config.vocabulary, (batch, tokens)).tolist()

    def run(
        self,
        prompts: list[list[int]],
        new_tokens: Sequence[int],
        due: Sequence[float] = (),
        logits: bool = False,
        around: AbstractContextManager[object] | None = None,
        steady_steps: int = 0,
    ) -> Batch:
        """Generate new_tokens[i] tokens greedily after prompts[i]; return the timed batch.

        due: for each prompt, its arrival in seconds after the start, ascending; () for all at once.
        logits: whether to store the logits of each token. around: context manager entered around all steps.
        steady_steps: if not 0, `around` covers only this many steps, after the first in which all sequences generated.
        """
        from vllm import SamplingParams

        params = [
            SamplingParams(
                temperature=0, ignore_eos=True, max_tokens=count, detokenize=False, logprobs=-1 if logits else None
            )
            for count in new_tokens
        ]
        requests = list(zip(({"prompt_token_ids": ids} for ids in prompts), params, strict=True))
        if not due:
            self._enqueue(requests)
        engine, collected, unfinished = self.llm.llm_engine, list[Any](), len(requests)
        batch, first = Batch(time.monotonic()), -1
        batch.due = [batch.started + seconds for seconds in due]
        pending = deque(zip(batch.due, requests, strict=True)) if due else deque()
        with ExitStack() as region:
            while unfinished:
                if len(pending) == unfinished:
                    time.sleep(max(0.0, pending[0][0] - time.monotonic()))
                while pending and pending[0][0] <= time.monotonic():
                    self._enqueue([pending.popleft()[1]])
                begins = not steady_steps or (bool(batch.steps) and batch.steps[-1][1] == len(prompts))
                if around is not None and first < 0 and begins:
                    region.enter_context(around)
                    first = len(batch.steps)
                elif steady_steps and first >= 0 and len(batch.steps) == first + steady_steps:
                    region.close()
                step = engine.engine_core.get_output()
                batch.steps.append((time.monotonic(), len(step.outputs)))
                # The garbage collector soon stops visiting such tuples, so they do not delay later steps.
                made = tuple([(each.request_id, *each.new_token_ids) for each in step.outputs])
                batch.received.append((step.timestamp, made))
                last = [each for each in step.outputs if each.finished]
                unfinished -= len(last)
                collected += step.outputs if logits else last
        # vLLM's server processes outputs in a separate process, so here they are processed after the timed steps.
        done = engine.output_processor.process_outputs(collected).request_outputs
        batch.outputs = sorted(done, key=lambda output: _number(output.request_id)) if logits else []
        return batch

    def _enqueue(self, requests: Sequence[tuple[dict[str, list[int]], Any]]) -> None:
        prompts, params = map(list, zip(*requests, strict=True))
        self.llm.enqueue(prompts, params, use_tqdm=False)

    def cache_blocks(self) -> int:
        return self.core.scheduler.kv_cache_config.num_blocks

    def sequences_that_fit(self, tokens: int) -> int:
        """Return how many sequences of `tokens` tokens fit with a margin, up to max_num_seqs."""
        blocks_each = sum(-(-tokens // size) for size in self._block_sizes())
        return min(int(self.cache_blocks() * (1 - SPARE_BLOCKS)) // blocks_each, self.settings.max_num_seqs)

    def running_settings(self) -> dict[str, str]:
        """Return the settings of the running engine, for the record."""
        config = self.llm.llm_engine.vllm_config
        scheduler, compilation = config.scheduler_config, config.compilation_config
        name, version = self.attention()
        return {
            "attention": name,
            "attention_version": version,
            "block_size": ", ".join(map(str, self._block_sizes())),
            "cache_dtype": ", ".join(dict.fromkeys(map(_cache_dtype, self._cache_specs()))),
            "max_num_batched_tokens": str(scheduler.max_num_batched_tokens),
            "max_num_seqs": str(scheduler.max_num_seqs),
            "cuda_graphs": str(getattr(compilation.cudagraph_mode, "name", compilation.cudagraph_mode)),
            "graph_sizes": str(len(compilation.cudagraph_capture_sizes or [])),
            "largest_graph": str(max(compilation.cudagraph_capture_sizes or [0])),
            "asynchronous_scheduling": str(scheduler.async_scheduling),
            "model_runner": "V2" if config.use_v2_model_runner else "V1",
            "prefix_cache": "on" if config.cache_config.enable_prefix_caching else "off",
            "gpu_memory_utilization": str(config.cache_config.gpu_memory_utilization),
        }

    def attention(self) -> tuple[str, str]:
        """Return the attention kernel's (name, version); ("none", "") without attention."""
        (layers,) = self.llm.apply_model(lambda model: [_attention_of(layer) for layer in model.modules()])
        found = sorted({each for each in layers if each})
        if not found:
            return "none", ""
        names, versions = zip(*found, strict=True)
        return ", ".join(dict.fromkeys(names)), ", ".join(dict.fromkeys(versions))

    def facts(self, head_rows: float | None = None) -> model_facts.Facts:
        """Return the `Facts` about vLLM's model that `model_facts.checks` compares with the case.

        head_rows: mean number of positions per prompt for which the model computes logits; None: not checked.
        """
        (weights,) = self.llm.apply_model(lambda model: dict(model.named_parameters()))
        cached = self.llm.llm_engine.vllm_config.cache_config.enable_prefix_caching
        return model_facts.facts_of(
            weights, self.model_config.vocabulary, kept="a prefix cache" if cached else "nothing", head_rows=head_rows
        )

    def check(self, case: Case, last_logits: Callable[..., torch.Tensor]) -> Checks:
        """Check logits after prompts and after greedy generate steps, and `Facts` about the model.

        last_logits(reference, ids [B, T], last): returns a reference model's logits [B, last, V].
        """
        prompts = self.prompts(CHECK_BATCH, CHECK_PROMPT)
        head_rows = self._head_rows(prompts)
        batch = self.run(prompts, [CHECK_STEPS + 1] * CHECK_BATCH, logits=True)
        tokens = [made for made, _ in batch.requests()]
        got = torch.stack([_logits(output, self.model_config.vocabulary) for output in batch.outputs])
        read = torch.tensor([p + t[:-1] for p, t in zip(prompts, tokens, strict=True)])
        expected = last_logits(self.reference(), read, CHECK_STEPS + 1).cpu()
        fair = model_facts.checks(self.facts(head_rows), case)
        return check_logits(got, expected, case.dtype, limit_factor(case)) + Checks(fair)

    def _head_rows(self, prompts: list[list[int]]) -> float:
        (model,) = self.llm.apply_model(lambda model: model)
        rows, original = list[int](), model.compute_logits

        def compute_logits(hidden: torch.Tensor, *rest: Any) -> Any:
            rows.append(hidden.shape[0])
            return original(hidden, *rest)

        model.compute_logits = compute_logits
        try:
            self.run(prompts, [1] * len(prompts))
        finally:
            del model.compute_logits
        return sum(rows) / len(prompts)

    def reference(self) -> CausalLM:
        """Return this repository's model with the engine's weights in float32, on the host."""
        if self._reference is None:
            self._reference = checkpoint.load_weights(self.model_config, self._folder.path, "cpu", torch.float32)
            for weight in self._reference.parameters() if torch.cuda.is_available() else ():
                weight.data = weight.data.pin_memory()
        return self._reference

    def _block_sizes(self) -> list[int]:
        return [spec.block_size for spec in self._cache_specs()]

    def _cache_specs(self) -> list[Any]:
        return [group.kv_cache_spec for group in self.core.scheduler.kv_cache_config.kv_cache_groups]


def _number(request_id: str) -> int:
    # vLLM appends -SUFFIX to the number
    return int(request_id.partition("-")[0])


def _cache_dtype(spec: Any) -> str:
    dtypes = getattr(spec, "dtypes", None) or [getattr(spec, "dtype", "")]
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _attention_of(layer: Any) -> tuple[str, str] | None:
    backend, kernel = getattr(layer, "attn_backend", None), getattr(layer, "impl", None)
    if backend is None or kernel is None:
        return None
    return backend.get_name(), str(getattr(kernel, "vllm_flash_attn_version", None) or "")


def _logits(output: Any, vocabulary: int) -> torch.Tensor:
    """Return a request's logits [steps, V], which vLLM returns as {token id: logit} per step."""
    rows = [[step[token].logprob for token in range(vocabulary)] for step in output.outputs[0].logprobs]
    return torch.tensor(rows)
