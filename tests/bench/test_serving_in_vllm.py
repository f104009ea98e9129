"""The plug-in's classes for vLLM, tested with stand-ins for their base classes in vLLM."""

import json
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest
import torch

from bench.models.config import model_config
from bench.models.factory import from_seed
from bench.models.hugging_face import config_values
from tests.interpreter import DEVICE

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = replace(model_config("ttt-linear", "tiny"), layers=1)


@dataclass
class Metadata:
    num_prefills: int
    num_decodes: int
    num_reqs: int
    state_indices_tensor_p: torch.Tensor | None
    state_indices_tensor_d: torch.Tensor | None


class Builder:
    """Stands in for vLLM's metadata builder; tests set `split`, the number of requests that generate."""

    split = 0

    def __class_getitem__(cls, _):
        return cls

    def __init__(self, spec, layer_names, vllm_config, device):
        pass

    def _compute_common_metadata(self, common):
        slots, decodes = common.block_table_tensor, self.split
        return self.metadata_cls(common.num_reqs - decodes, decodes, common.num_reqs, slots[decodes:, 0], slots)

    def _prefill_cpu_metadata(self, common, requests, prefills, decode_tokens):
        ends = common.query_start_loc_cpu[-prefills - 1 :] - decode_tokens
        return common.seq_lens_cpu_upper_bound[requests - prefills : requests] - ends.diff(), ends


class Context:
    attn_metadata = None


@pytest.fixture
def vllm(monkeypatch, tmp_path):
    names = {
        "config": {"CUDAGraphMode": SimpleNamespace(NONE=0)},
        "forward_context": {"get_forward_context": lambda: Context},
        "model_executor.layers.mamba.abstract": {"MambaBase": object},
        "model_executor.layers.mamba.mamba_utils": {"get_temporal_copy_spec": None},
        "model_executor.models.interfaces": {
            name: type(name, (), {}) for name in ("HasInnerState", "IsAttentionFree", "SupportsMambaPrefixCaching")
        },
        "v1.attention.backends.registry": {"MambaAttentionBackendEnum": SimpleNamespace(CUSTOM="custom")},
        "v1.attention.backend": {
            "AttentionBackend": object,
            "AttentionCGSupport": SimpleNamespace(UNIFORM_SINGLE_TOKEN_DECODE=1),
            "CommonAttentionMetadata": object,
        },
        "v1.attention.backends.mamba_attn": {
            "BaseMambaAttentionMetadata": Metadata,
            "BaseMambaAttentionMetadataBuilder": Builder,
        },
    }
    for name, values in names.items():
        module = ModuleType(f"vllm.{name}")
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, f"vllm.{name}", module)
    for name in ("bench.serving.model", "bench.serving.metadata"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "config.json").write_text(json.dumps(config_values(CONFIG)))
    return SimpleNamespace(
        model_config=SimpleNamespace(model=str(tmp_path), dtype=torch.bfloat16),
        device_config=SimpleNamespace(device=torch.device(DEVICE)),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        compilation_config=SimpleNamespace(static_forward_context={}, cudagraph_mode=0),
    )


def builder_of(vllm, split):
    made = import_module("bench.serving.metadata").TTTMetadataBuilder(None, [], vllm, torch.device(DEVICE))
    made.split = split
    return made


def requests(lengths, seq_lens, slots):
    ends = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    total = torch.tensor(seq_lens, dtype=torch.int32)
    return SimpleNamespace(
        num_reqs=len(lengths),
        query_start_loc=ends.to(DEVICE),
        query_start_loc_cpu=ends,
        seq_lens=total.to(DEVICE),
        seq_lens_cpu_upper_bound=total,
        block_table_tensor=torch.tensor(slots, dtype=torch.int32, device=DEVICE)[:, None],
    )


def test_requests_that_pad_a_graph_use_the_spare_slot(vllm):
    builder = builder_of(vllm, split=4)
    first = builder.build(0, requests([1, 1, 1, 1], [17, 16, 33, 5], [4, 2, 6, 1])).step
    address = first.slots.data_ptr(), first.positions.data_ptr()
    step = builder.build(0, requests([1, 1, 0, 0], [18, 17, 0, 0], [4, 2, 7, 7])).step
    assert step.slots.tolist() == [4, 2, 0, 0]
    assert step.positions.tolist() == [1, 0, 0, 0]
    assert (step.slots.data_ptr(), step.positions.data_ptr()) == address


def test_prompts_after_generating_requests(vllm):
    step = builder_of(vllm, split=2).build(0, requests([1, 1, 5, 1, 20], [9, 32, 5, 1, 41], [3, 5, 1, 6, 2])).step
    assert step.cu_seqlens.tolist() == [0, 1, 2, 7, 8, 28]
    assert step.start.tolist() == [8, 31, 0, 0, 21]
    assert step.slots.tolist() == [3, 5, 1, 6, 2]
    found = [x.dtype for x in (step.cu_seqlens, step.start, step.slots, step.chunks)]
    assert found == [torch.int32, torch.int32, torch.int64, torch.int32]
    assert (step.tokens, step.length) == (28, 0)


def test_prompts_of_one_length_can_run_as_one_batch(vllm):
    step = builder_of(vllm, split=0).build(0, requests([8192, 8192], [8192, 8224], [1, 2])).step
    assert (step.length, step.start.tolist()) == (8192, [0, 32])
    step = builder_of(vllm, split=1).build(0, requests([1, 16384], [9, 16384], [1, 2])).step
    assert (step.length, step.start.tolist()) == (0, [8, 0])


@pytest.fixture
def model(vllm):
    made = import_module("bench.serving.model").TTTForCausalLM(vllm_config=vllm, prefix="")
    made.ttt.copy_weights(from_seed(CONFIG, 0, DEVICE, torch.bfloat16))
    return made


@pytest.mark.usefixtures("triton_kernels")
@pytest.mark.parametrize("metadata", [None, {}])
def test_a_step_without_requests_warms_up_once_and_runs_one_prompt(model, monkeypatch, metadata):
    """Both kinds of vLLM's dummy steps run: metadata is None to measure memory, and {} to tune FlashInfer."""
    warmed = []
    monkeypatch.setattr(import_module("bench.serving.model"), "warm_up", lambda *given: warmed.append(given))
    monkeypatch.setattr(Context, "attn_metadata", metadata)
    with torch.no_grad():
        for tokens in (5, 3):
            assert model(torch.zeros(tokens, dtype=torch.int64, device=DEVICE), None).shape == (tokens, CONFIG.width)
    assert warmed == [(model.ttt, model.layout)]
    with pytest.raises(ValueError, match="start vLLM again"):
        model.load_weights([])


@pytest.mark.usefixtures("triton_kernels")
def test_padding_tokens_are_zeros(vllm, model, monkeypatch):
    (states,) = vllm.compilation_config.static_forward_context.values()
    states.bind_kv_cache(torch.zeros(3, 1, 1, model.layout.page_bytes, dtype=torch.int8, device=DEVICE))
    metadata = builder_of(vllm, split=0).build(0, requests([3], [3], [2]))
    monkeypatch.setattr(Context, "attn_metadata", {"model.layers.0": metadata})
    with torch.no_grad():
        found = model(torch.arange(8, device=DEVICE), None)
    assert found.shape == (8, CONFIG.width)
    assert not found[3:].any()
    pages = states.kv_cache[0].any(1)
    assert pages.tolist() == [False, False, True]


def test_a_cache_that_vllm_frees_is_released(vllm, model):
    (states,) = vllm.compilation_config.static_forward_context.values()
    assert isinstance(states.kv_cache, tuple)
    states.bind_kv_cache(torch.zeros(3, 1, 1, model.layout.page_bytes, dtype=torch.int8))
    assert states.state.block_conv.data_ptr() == states.kv_cache[0].data_ptr()
    states.kv_cache = []  # as vLLM does
    assert states.state is None
