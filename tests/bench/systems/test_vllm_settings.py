"""The vLLM adapter starts engines with the settings of a case, and shares them among cases."""

import os
import sys
import sysconfig
from dataclasses import replace

import fake_vllm
import pytest

from bench.models.config import cut
from bench.systems.vllm.engine import Settings
from bench.systems.vllm.mamba import VllmMamba
from bench.systems.vllm.transformer import VllmTransformer
from harness.measure.system import NeedsFreshProcess, Skip, Workload
from harness.schema.case import Case

CASE = Case("transformer", "vllm", "tiny", "generate", 4, 48, dtype="float32", timing="engine")


def test_an_engine_of_fewer_layers_holds_as_many_sequences(llm):
    settings = VllmTransformer()._settings(replace(CASE, size=cut("1.3b", 2), context=2048, batch=512))
    whole = VllmTransformer()._settings(replace(CASE, size="1.3b", context=2048, batch=512))
    assert replace(settings, size="1.3b", cache_bytes=None) == whole
    assert settings.arguments()["kv_cache_memory_bytes"] == pytest.approx(66.9e9 / 12, rel=1e-2)
    assert "kv_cache_memory_bytes" not in whole.arguments()


@pytest.mark.parametrize(("phase", "graphs"), [("forward", True), ("generate", False), ("request", False)])
def test_only_forwards_have_graphs_of_prompts_and_a_set_cache_size(llm, phase, graphs):
    arguments = VllmTransformer()._settings(replace(CASE, phase=phase, size="1.3b", context=2048)).arguments()
    assert (max(arguments.get("compilation_config", {}).get("cudagraph_capture_sizes", [0])) == 8192) is graphs
    assert arguments.get("kv_cache_memory_bytes", 0) == (pytest.approx(64.9e9, rel=1e-2) if graphs else 0)
    assert arguments.get("attention_config", {}) == ({"flash_attn_max_num_splits_for_cuda_graph": 1} if graphs else {})


@pytest.mark.parametrize(
    ("batch", "context", "system", "major", "chosen"),
    [
        (64, 1025, "transformer 760m", 9, ""),
        (64, 1024, "transformer", 9, "TRITON_ATTN"),
        (64, 1025, "transformer", 9, "FLASHINFER"),
        (64, 1025, "transformer", 10, ""),
        (256, 1024, "transformer-gqa", 9, ""),
        (256, 1025, "transformer-gqa", 9, "FLASHINFER"),
        (255, 1025, "transformer-gqa", 9, ""),
    ],
)
def test_many_sequences_have_other_attention_kernels_on_hopper(
    llm, monkeypatch, tmp_path, batch, context, system, major, chosen
):
    for name, status in (("nvcc", 0), ("nvcc-without-curand", 1)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *device: (major, 0))
    monkeypatch.setattr("bench.systems.vllm.transformer.find_spec", lambda name: name == "flashinfer")
    monkeypatch.setattr("bench.systems.vllm.transformer.find_nvcc", lambda: tmp_path / "nvcc")
    name, _, size = system.partition(" ")
    case = replace(CASE, system=name, size=size or "1.3b", batch=batch, context=context)
    settings = VllmTransformer()._settings(case)
    assert (settings.block_size, settings.attention) == (64 if chosen else 128, chosen)
    assert VllmTransformer()._settings(replace(case, phase="request")).attention == ""
    own = VllmTransformer()._settings(replace(case, options=(("attention", "FLASH_ATTN-3"), ("block_size", 16))))
    assert (own.block_size, own.attention) == (16, "FLASH_ATTN-3")
    monkeypatch.setattr("bench.systems.needs.versions_of", lambda packages: {"vllm": "0.24.0"})
    assert VllmTransformer()._settings(case).attention == chosen.replace("FLASHINFER", "")
    monkeypatch.setattr("bench.systems.needs.versions_of", lambda packages: {"vllm": "0.25.0"})
    for nvcc in (None, tmp_path / "nvcc-without-curand"):
        monkeypatch.setattr("bench.systems.vllm.transformer.find_nvcc", lambda nvcc=nvcc: nvcc)
        assert VllmTransformer()._settings(case).attention == chosen.replace("FLASHINFER", "")


def test_flashinfer_finds_ninja_and_its_variable_is_set_before_vllm_is_imported(llm, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setitem(sys.modules, "flashinfer", fake_vllm)
    monkeypatch.setattr(fake_vllm.FakeAttention, "name", "FLASHINFER")
    variable, imports = "VLLM_HAS_FLASHINFER_CUBIN", []
    monkeypatch.setenv(variable, "0")
    monkeypatch.setattr("bench.systems.vllm.system.import_or_skip", lambda *_: imports.append(os.environ[variable]))
    VllmTransformer().build(replace(CASE, options=(("attention", "FLASHINFER"),)))
    assert imports[0] == "1"
    assert os.environ["PATH"] == f"{sysconfig.get_path('scripts')}:/usr/bin"


def test_a_case_chooses_the_model_runner_and_the_graphs(llm, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    options = (("cuda_graphs", "FULL_DECODE_ONLY"), ("model_runner", "V1"))
    VllmTransformer().engine(replace(CASE, options=options))
    assert os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert llm.started[0].arguments["compilation_config"] == {"cudagraph_mode": "FULL_DECODE_ONLY"}
    VllmTransformer().engine(replace(CASE, options=(("model_runner", "V2"),)))
    assert os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert "compilation_config" not in llm.started[1].arguments


def test_graphs_of_prompts_keep_the_requested_attention():
    settings = Settings("1.3b", "bfloat16", 1024, 512, None, 8192, "FLASH_ATTN-2", "prompts")
    assert settings.arguments()["attention_config"] == {
        "backend": "FLASH_ATTN",
        "flash_attn_version": 2,
        "flash_attn_max_num_splits_for_cuda_graph": 1,
    }


def test_cases_with_equal_settings_share_an_engine_and_other_settings_need_another_process(llm):
    system = VllmTransformer()
    system.build(CASE)
    system.build(replace(CASE, batch=2, context=64))
    other = replace(CASE, options=(("block_size", 8),))
    with pytest.raises(NeedsFreshProcess):
        system.build(other)
    assert len(llm.started) == 1
    VllmTransformer().build(other)
    assert llm.started[1].arguments["block_size"] == 8


def test_settings_are_read_from_the_engine(llm):
    settings = VllmTransformer().build(CASE).settings
    assert settings["attention"] == "FLASH_ATTN"
    assert settings["attention_version"] == "3"
    assert settings["max_num_batched_tokens"] == "64"
    assert settings["cache_dtype"] == "bfloat16"
    assert settings["cuda_graphs"] == "FULL_AND_PIECEWISE"
    assert settings["prefix_cache"] == "off"
    assert settings["token_ids"] == "uniform over the vocabulary, new for each sample"


def test_another_attention_fails_unless_it_is_requested(llm, monkeypatch):
    monkeypatch.setattr(fake_vllm.FakeAttention, "version", 2)
    with pytest.raises(RuntimeError, match="uses FLASH_ATTN-2, expected FLASH_ATTN-3"):
        VllmTransformer().build(CASE)
    system, requested = VllmTransformer(), replace(CASE, options=(("attention", "FLASH_ATTN-2"),))
    with pytest.raises(Skip, match="cannot be imported"):
        system.build(requested)
    monkeypatch.setitem(sys.modules, "vllm.vllm_flash_attn._vllm_fa2_C", fake_vllm)
    assert isinstance(system.build(requested), Workload)
    assert llm.started[-1].arguments["attention_config"] == {"backend": "FLASH_ATTN", "flash_attn_version": 2}
    with pytest.raises(RuntimeError, match="expected TRITON_ATTN"):
        VllmTransformer().build(replace(CASE, options=(("attention", "TRITON_ATTN"),)))


def graph_sizes(sequences, graphs="engine"):
    settings = Settings("1.3b", "bfloat16", 1024, sequences, None, 8192, graphs=graphs)
    return settings.arguments().get("compilation_config", {}).get("cudagraph_capture_sizes")


def test_graphs_reach_every_batch_in_flight():
    assert graph_sizes(512) is None  # vLLM's own list ends there
    assert {1, 8, 248, 256, 496, 512, 768, 1024, 4096} <= set(graph_sizes(4096))
    assert max(graph_sizes(4096)) == 4096


@pytest.mark.parametrize("sequences", [512, 4096])
def test_launch_bound_prompts_have_graphs(sequences):
    sizes = graph_sizes(sequences, "prompts")
    assert set(sizes) >= {1, 496, 512, 1024, 2048, 4096, 8192}
    assert (max(sizes), sizes) == (8192, sorted(set(sizes)))
    assert [size for size in sizes if size > sequences][-4:] == [5120, 6144, 7168, 8192]


def test_unknown_graph_sizes_are_an_error():
    with pytest.raises(ValueError, match="graphs 'none': must be one of engine, prompts"):
        graph_sizes(512, "none")


@pytest.mark.parametrize("gigabytes", [24, 80])
def test_vllm_starts_only_if_its_cache_holds_the_states_of_all_sequences_of_mamba(llm, monkeypatch, gigabytes):
    monkeypatch.setattr("bench.systems.vllm.system.gpu_memory", lambda: gigabytes * 10**9)
    settings = VllmMamba()._settings(replace(CASE, system="mamba", size="1.3b", batch=1024, dtype="bfloat16"))
    assert 1024 <= settings.max_num_seqs <= min(4096, (0.9 * gigabytes - 2.6 - 2.5) * 1e9 // 7_471_104)
    assert max(settings.graph_sizes()) == settings.max_num_seqs


@pytest.mark.parametrize(("batch", "sequences"), [(8192, 8192), (4096, 4096), (100, 4096), (64, 64), (7, 64)])
def test_max_num_seqs_counts_only_sequences_that_fit_in_memory(llm, monkeypatch, batch, sequences):
    monkeypatch.setattr(VllmTransformer, "_state_bytes", lambda system, case: 5 * 10**6)
    assert VllmTransformer()._settings(replace(CASE, batch=batch)).max_num_seqs == sequences
