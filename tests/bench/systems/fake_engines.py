"""vLLM's adapter over an engine that fails as the case's option `fault` names."""

import os
import sys
import time
from dataclasses import replace

import fake_vllm
import torch

from bench.systems.vllm import system, transformer
from bench.systems.vllm.transformer import VllmTransformer
from harness.measure.system import Workload
from harness.schema.case import Case

HELD_BYTES = 4 << 30


def hold_gpu_memory() -> None:
    """Allocate 4 GiB of GPU memory, if there is a GPU, that a failing engine would leak."""
    if torch.cuda.is_available():
        held.append(torch.empty(HELD_BYTES, dtype=torch.uint8, device="cuda"))


held: list[torch.Tensor] = []


def die() -> None:
    print("EngineDeadError: the core is gone", file=sys.stderr, flush=True)
    os._exit(7)


FAULTS = {
    "dies": die,
    "hangs": lambda: time.sleep(600),
    "none": lambda: None,
}
# Faults in a step of an engine that started.
LATER = {
    "dies later": FAULTS["dies"],
    "hangs later": FAULTS["hangs"],
    "memory later": lambda: _raise(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")),
}


def _raise(error: Exception) -> None:
    raise error


class LLM(fake_vllm.LLM):
    fault = "none"
    compute = True

    def __init__(self, folder, **arguments):
        hold_gpu_memory()
        FAULTS.get(self.fault, FAULTS["none"])()
        super().__init__(folder, **arguments)

    def _step(self):
        LATER.get(self.fault, FAULTS["none"])()
        return super()._step()


class Faulty(VllmTransformer):
    """The adapter transformer/vllm, on the CPU and with the engine `LLM` above instead of vLLM."""

    max_num_batched_tokens = 64

    def __init__(self):
        super().__init__()
        fake_vllm.install(LLM, sys.modules)
        system.SEQUENCES = 64
        system.gpu_memory = lambda: 80 * 10**9
        transformer.compute_capability = lambda: 9

    def unavailable(self) -> str:
        return ""

    def build(self, case: Case) -> Workload:
        LLM.fault = str(case.option("fault", "none"))
        return replace(super().build(case), device="cpu")
