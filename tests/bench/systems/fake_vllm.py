"""A fake vLLM for CPU tests: continuous batching, no preemption, this repository's models."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch

from bench.models import checkpoint
from bench.models.config import MambaConfig, TransformerConfig
from bench.models.hugging_face import read_config

MODELS = "vllm.model_executor.models"


def install(engine, modules):
    vllm, llama, mamba = map(ModuleType, ("vllm", f"{MODELS}.llama", f"{MODELS}.mamba"))
    registered, settings = {}, ModuleType(f"{MODELS}.config")
    llama.LlamaForCausalLM = mamba.MambaForCausalLM = FakeModel
    vllm.LLM, vllm.SamplingParams, vllm.__version__ = engine, SamplingParams, "0.33.0"
    vllm.ModelRegistry = SimpleNamespace(register_model=registered.__setitem__, get_supported_archs=registered.keys)
    settings.MODELS_CONFIG_MAP, settings.MambaModelConfig = {}, object
    registry = ModuleType("vllm.v1.attention.backends.registry")
    registry.MambaAttentionBackendEnum = SimpleNamespace(CUSTOM="custom")
    registry.register_backend = lambda name, backend, is_mamba: None
    served = ModuleType("bench.serving.model")  # needs more of vLLM than there is here
    served.TTTForCausalLM = FakeModel
    parts = ("platforms.cuda", "model_executor", "model_executor.models", "entrypoints.llm", "v1.engine.llm_engine")
    modules.update({f"vllm.{name}": ModuleType(f"vllm.{name}") for name in parts})
    modules.update({each.__name__: each for each in (vllm, llama, mamba, settings, registry, served)})
    return registered


@dataclass
class SamplingParams:
    temperature: float
    ignore_eos: bool
    max_tokens: int
    detokenize: bool
    logprobs: int | None = None


@dataclass
class Sequence:
    request_id: str
    prompt: list[int]
    params: SamplingParams
    computed_prompt_tokens: int = 0
    output_token_ids: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Output:
    request_id: str
    new_token_ids: list[int]
    finished: bool
    sequence: Sequence


class FakeAttention(torch.nn.Module):
    name, version = "FLASH_ATTN", 3

    def __init__(self):
        super().__init__()
        self.attn_backend = SimpleNamespace(get_name=lambda: self.name)
        self.impl = SimpleNamespace(vllm_flash_attn_version=self.version)


class FakeModel(torch.nn.Module):
    def __init__(self, folder, dtype):
        super().__init__()
        config = json.loads((Path(folder) / "config.json").read_text())
        self.config = read_config(folder) if config["model_type"] == "ttt" else _config_of(config)
        self.architectures = config["architectures"]
        self.inner = checkpoint.load_weights(self.config, folder, "cpu", getattr(torch, dtype))
        self.attention = FakeAttention() if isinstance(self.config, TransformerConfig) else None

    def hidden(self, ids):
        state = self.inner.init_state(1, len(ids))
        return self.inner._hidden(torch.tensor([ids]), state)[0, -1]

    def compute_logits(self, hidden):
        return self.inner._logits(hidden)


def _config_of(config):
    if config["model_type"] == "mamba":
        return MambaConfig(config["hidden_size"], config["num_hidden_layers"], config["vocab_size"])
    return TransformerConfig(
        config["hidden_size"],
        config["intermediate_size"],
        config["num_hidden_layers"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["vocab_size"],
    )


class LLM:
    """A stand-in for vllm.LLM; generating requests get a step's token budget before prompts do."""

    blocks = 100
    compute = True  # False: every token is 0
    started: list["LLM"] = []  # noqa: RUF012
    fails_with: Exception | None = None

    def __init__(self, folder, **arguments):
        if self.fails_with:
            raise self.fails_with
        self.arguments, self.folder = arguments, folder
        self.block = arguments.get("block_size") or 16
        self.model = FakeModel(folder, arguments["dtype"])
        self.waiting, self.running, self.count = [], [], 0
        group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=self.block, dtype=torch.bfloat16))
        cache = SimpleNamespace(num_blocks=self.blocks, kv_cache_groups=[group])
        core = SimpleNamespace(scheduler=SimpleNamespace(kv_cache_config=cache))
        client = SimpleNamespace(engine_core=core, get_output=self._step)
        self.llm_engine = SimpleNamespace(
            engine_core=client,
            vllm_config=self._config(),
            output_processor=SimpleNamespace(process_outputs=_processed),
        )
        self.started.append(self)

    def _config(self):
        arguments = self.arguments
        return SimpleNamespace(
            use_v2_model_runner=True,
            scheduler_config=SimpleNamespace(
                max_num_batched_tokens=arguments["max_num_batched_tokens"],
                max_num_seqs=arguments["max_num_seqs"],
                async_scheduling=True,
            ),
            compilation_config=SimpleNamespace(
                cudagraph_mode=SimpleNamespace(name="FULL_AND_PIECEWISE"), cudagraph_capture_sizes=[1, 2, 512]
            ),
            cache_config=SimpleNamespace(
                enable_prefix_caching=arguments["enable_prefix_caching"],
                gpu_memory_utilization=arguments["gpu_memory_utilization"],
            ),
        )

    def enqueue(self, prompts, params, use_tqdm):
        for prompt, own in zip(prompts, params, strict=True):
            self.waiting.append(Sequence(str(self.count), prompt["prompt_token_ids"], own))
            self.count += 1

    def apply_model(self, function):
        return [function(self.model)]

    def _step(self):
        budget, got = self.arguments["max_num_batched_tokens"], []
        for sequence in [s for s in self.running if s.computed_prompt_tokens == len(s.prompt)]:
            budget -= 1
            got.append(sequence)
        while budget > 0:
            reading = [s for s in self.running if s.computed_prompt_tokens < len(s.prompt)] or self._admitted()
            if not reading:
                break
            taken = min(budget, len(reading[0].prompt) - reading[0].computed_prompt_tokens)
            reading[0].computed_prompt_tokens += taken
            budget -= taken
            if reading[0].computed_prompt_tokens == len(reading[0].prompt):
                got.append(reading[0])
        for sequence in got:
            self._generate(sequence)
        self.running = [s for s in self.running if len(s.output_token_ids) < s.params.max_tokens]
        outputs = [
            Output(s.request_id, s.output_token_ids[-1:], len(s.output_token_ids) == s.params.max_tokens, s)
            for s in got
        ]
        return SimpleNamespace(outputs=outputs, timestamp=time.monotonic())

    def _admitted(self):
        if not self.waiting or len(self.running) >= self.arguments["max_num_seqs"]:
            return []
        used = sum(self._blocks_of(s) for s in self.running)
        if used + self._blocks_of(self.waiting[0]) > self.blocks:
            return []
        self.running.append(self.waiting.pop(0))
        return [self.running[-1]]

    def _blocks_of(self, sequence):
        return -(-(len(sequence.prompt) + sequence.params.max_tokens) // self.block)

    @torch.inference_mode()
    def _generate(self, sequence):
        if not self.compute:
            sequence.output_token_ids.append(0)
            return
        logits = self.model.compute_logits(self.model.hidden(sequence.prompt + sequence.output_token_ids)[None])[0]
        sequence.output_token_ids.append(int(logits.argmax()))
        if sequence.params.logprobs == -1:
            sequence.logits.append(logits)


def _processed(outputs):
    done = [each.sequence for each in reversed(outputs) if each.finished]
    return SimpleNamespace(
        request_outputs=[SimpleNamespace(request_id=s.request_id, outputs=[_completion(s)]) for s in done]
    )


def _completion(sequence):
    logprobs = [
        {token: SimpleNamespace(logprob=value) for token, value in enumerate(row.tolist())} for row in sequence.logits
    ]
    return SimpleNamespace(token_ids=sequence.output_token_ids, logprobs=logprobs)
