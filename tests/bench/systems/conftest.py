"""A fixture that replaces vLLM by `fake_vllm`, for tests of the vLLM adapter."""

import sys
from dataclasses import replace

import fake_vllm
import pytest

from bench.systems.vllm import mamba as vllm_mamba
from bench.systems.vllm import system as vllm_system
from bench.systems.vllm.system import VllmSystem
from bench.systems.vllm.transformer import VllmTransformer


@pytest.fixture
def llm(monkeypatch):
    class FreshLLM(fake_vllm.LLM):
        started: list = []  # noqa: RUF012
        compute = False

    modules: dict = {}
    FreshLLM.registered = fake_vllm.install(FreshLLM, modules)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "bench.serving.settings", raising=False)  # it was imported with another vLLM
    monkeypatch.setattr(vllm_system, "gpu_memory", lambda: 80 * 10**9)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *device: (9, 0))
    # The small engine and its reference compute on the CPU.
    for module in (vllm_system, vllm_mamba):
        monkeypatch.setattr(module, "device", lambda: "cpu")
    for name in ("bench.systems.vllm.ttt", "bench.systems.model_calls"):  # not imported above: they import kernels
        monkeypatch.setattr(f"{name}.device", lambda: "cpu")
    build = VllmSystem.build
    monkeypatch.setattr(VllmSystem, "build", lambda system, case: replace(build(system, case), device="cpu"))
    monkeypatch.setattr(VllmTransformer, "max_num_batched_tokens", 64)
    monkeypatch.setattr("bench.systems.vllm.ttt.VllmTTT.max_num_batched_tokens", 256)
    monkeypatch.setattr(vllm_system, "DEFAULT_SEQS", 64)
    return FreshLLM
