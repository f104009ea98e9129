"""Run the vLLM plug-in's warm-up, then random steps; print as JSON the kernels that they launch.

"launched": names of the kernels and libraries that the warm-up uses. "cold": (name, specialization, options) of kernel
variants and libraries that only later steps use. Launches are compiled for an H200 and recorded, not run.
"""

import json
import random
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from bench.models.config import model_config
from bench.models.factory import from_seed
from bench.models.fused import FusedBlock
from bench.models.kernel_operator import KernelOperator
from bench.serving import pages
from bench.serving.pages import Layout, common_length, hidden, warm_up
from tests.absent_gpu import compiled, look_like_gpu
from tk_kernels import build
from tk_kernels.edges import swiglu_product
from tk_kernels.generate.common import SM90
from tk_kernels.packed import Packed
from tk_kernels.ttt_linear import forward as linear
from tk_kernels.ttt_mlp import forward as mlp

GPU, SHARED_BYTES = "NVIDIA H200", 232_448
SLOTS, STEPS = 320, 150
Variant = tuple[str, str, str]


def look_like_an_h200() -> set[Variant]:
    """Pretend to have an H200: record kernel launches and compile them, without running them.

    Return a set that collects (kernel, specialization, options) per launch, and (library, "", "") per loaded library,
    except the SwiGLU library. A specialization has the arguments' types, alignments and constants.
    """
    variants: set[Variant] = set()

    def record(kernel: Any, *arguments: Any, **named: Any) -> None:
        *_, binder = kernel.device_caches[0]
        _, specialization, options = binder(*arguments, **named)
        variant = kernel.__name__, str(specialization), str(options)
        if variant not in variants:
            compiled(kernel, *arguments, **named)  # fails for a kernel that only the interpreter accepts
        variants.add(variant)

    def load(library: str) -> SimpleNamespace:
        if library != swiglu_product.KERNEL:  # memory alignment decides whether it runs
            variants.add((library, "", ""))
        return SimpleNamespace(forward=lambda *given: None)

    look_like_gpu(90, SHARED_BYTES, record)
    build.unavailable_on = lambda *given: ""
    for module in (linear, mlp):
        module.section_name = lambda suits_sm90, device: f"{SM90} {GPU}" if suits_sm90 else GPU
    pages.LEAST_TOKENS = 1  # so that few tokens are a batch
    build.load = load
    return variants


def random_step() -> Packed:
    """Return a step of random prompts. Steps without prompts need no test: CUDA graph capture compiles them."""
    count = random.choice([1, 2, random.randint(3, 64), random.randint(65, 300)])
    longest = random.choice([1, 2, 16, 40])
    lengths = [random.randint(1, longest) for _ in range(count)]
    lengths = random.choice([lengths, [lengths[0]] * len(lengths)])
    computed = random.choice([[0] * len(lengths), [random.choice([0, 16, 17]) for _ in lengths]])
    ends = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    start, length = torch.tensor(computed, dtype=torch.int32), common_length(lengths, computed, 16)
    return Packed(ends, start, torch.arange(len(lengths)), sum(lengths), length)


def main(learner: str, backbone: str) -> None:
    config = replace(model_config(f"ttt-{learner}", "tiny", backbone=backbone), layers=2)
    model = from_seed(config, 0, "cpu", torch.bfloat16, operator=KernelOperator(learner), block=FusedBlock)
    layout = Layout(config, model.operator, torch.bfloat16)
    state = layout.state(torch.zeros(SLOTS, layout.page_bytes, dtype=torch.int8))
    variants = look_like_an_h200()
    with torch.no_grad():
        warm_up(model, layout)
        warm = set(variants)
        for _ in range(STEPS):
            step = random_step()
            hidden(model, [state] * 2, torch.zeros(step.tokens, dtype=torch.int64), step)
    print(json.dumps({"launched": sorted({name for name, *_ in warm}), "cold": sorted(variants - warm)}))


if __name__ == "__main__":
    random.seed(0)
    torch.set_num_threads(1)
    main(*sys.argv[1:])
