"""Compile Triton kernels for GPUs that this machine lacks; print a JSON line per kernel.

Given a compute capability such as 80, compile the portable kernels and print their shared and local memory in bytes.
Given "generate", compile variants of TTT-MLP's Gluon generate kernel and print each one's longest chain of loads.
"""

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import product
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from bench.models.config import model_config
from bench.models.factory import from_seed
from bench.models.fused import FusedBlock
from bench.models.kernel_operator import KernelOperator
from bench.serving.pages import Layout, warm_up
from tests.absent_gpu import SMS, compiled, look_like_gpu
from tk_kernels.edges.few_rows import few_rows_gemm, fits
from tk_kernels.generate.common import SM90
from tk_kernels.generate.tuning import tuning
from tk_kernels.ttt_linear.forward import CROWDED
from tk_kernels.ttt_mlp.generate_sm90 import dual

# Shared memory of a block, in KB, by compute capability; Triton compiles for 8.9 as for 8.6.
SHARED_KB = {80: 163, 86: 99, 90: 227, 100: 227, 120: 99}
# (size, form and precision of generate, backbone). No primal form for 760m: TTT-MLP has no such kernel for heads of 96.
MODELS = (("125m", "dual", "planes", "mamba"), ("760m", "dual", "planes", "transformer"))
MODELS += (("125m", "primal", "planes", "transformer"),)
# Models with the largest mini-batch; to save time, compiled only for the least shared memory
LARGEST = ((64, *MODELS[0]), (64, "760m", "dual", "float32", "transformer"))
BF16 = {"weights1", "weights2", "rows_k", "rows_x2", "rows_g1", "rows_g2", "q", "k", "v", "out"}
OTHERS = {"low1": "*i16", "low2": "*i16", "position": "*i32", "slots": "*i64", "base_lr": "fp32"}
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/ +(?P<text>[^;]+?) *;.*\n.*/\* 0x(?P<high>[0-9a-f]{16}) \*/")


def compiled_dual(constants: dict[str, Any], registers: int | None) -> Any:
    names = dual.arg_names
    kinds = {name: "*bf16" if name in BF16 else "i32" if name.endswith("_stride") else "*fp32" for name in names}
    kinds |= {name: kind for name, kind in OTHERS.items() if name in names} | dict.fromkeys(constants, "constexpr")
    aligned = [i for i, name in enumerate(names) if kinds[name] not in ("constexpr", "fp32")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = GluonASTSource(dual, kinds, {(names.index(k),): x for k, x in constants.items()}, attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "maxnreg": registers})


def disassembled(tool: str, *options: str, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, *options, file.name], capture_output=True, text=True, check=True).stdout


def stack_bytes(cubin: bytes) -> int | None:
    """Return a kernel's local memory per thread in bytes, including spills; None without cuobjdump."""
    try:
        tool = knobs.nvidia.cuobjdump.path
    except (AttributeError, RuntimeError):
        return None
    return max(int(found) for found in re.findall(r"STACK:(\d+)", disassembled(tool, "-res-usage", cubin=cubin)))


def latencies(cubin: bytes) -> int:
    """Return the length of the longest chain of dependent loads at the start of a kernel.

    The start ends where the kernel first waits for an asynchronous copy. Raises ValueError if it never does.
    Control bits start at bit 41 of an instruction's high word.
    Control bits 5 to 7 name the scoreboard that the instruction's result releases; 7 is none.
    Control bits 11 to 16 are a mask of the scoreboards that the instruction waits for.
    """
    passed, worst = 0, 0
    pending = [0] * 8  # by scoreboard: the latencies up to the end of its loads
    for instruction in INSTRUCTION.finditer(disassembled(knobs.nvidia.nvdisasm.path, "-hex", cubin=cubin)):
        text, control = instruction["text"], int(instruction["high"], 16) >> 41
        if "DEPBAR.LE" in text:
            return worst
        passed = max([passed] + [pending[i] for i in range(6) if control >> 11 + i & 1])
        if "LDG" in text and "LDGDEPBAR" not in text:
            worst = max(worst, passed + 1)
            if "LDGSTS" not in text:  # a copy has no result
                pending[control >> 5 & 7] = passed + 1
    raise ValueError("the kernel waits for no asynchronous copy")


def generate() -> None:
    shape = {"rope": None, "H": 32, "m": 16, "ROPE": False, "LOGITS": False}
    for gpu, precision, slots, pdl in (
        ("NVIDIA H200", "planes", False, False),
        ("NVIDIA H200", "planes", True, False),
        ("NVIDIA H200", "planes", False, True),
        ("NVIDIA H200", "bfloat16", False, False),
        ("NVIDIA H100", "bfloat16", False, False),
    ):
        absent = ({} if precision == "planes" else {"low1": None, "low2": None}) | ({} if slots else {"slots": None})
        constants = shape | absent | {"PLANES": precision == "planes", "SLOTS": slots, "PDL": pdl}
        launch = tuning("ttt_mlp", "dual", precision, f"{SM90} {gpu}")
        cubin = compiled_dual(constants, launch.registers or None).asm["cubin"]
        found = {"gpu": gpu, "precision": precision, "slots": slots, "pdl": pdl, "latencies": latencies(cubin)}
        print(json.dumps(found), flush=True)


def portable(capability: int) -> None:
    seen: set[tuple[str, str]] = set()

    def launched(kernel: Any, *arguments: Any, **named: Any) -> None:
        made = compiled(kernel, *arguments, **named)
        if (label, made.hash) not in seen:
            seen.add((label, made.hash))
            name = f"{kernel.__module__.removeprefix('tk_kernels.')}.{kernel.__name__}"
            data, stack = made.metadata, stack_bytes(made.asm["cubin"])
            found = {"capability": data.target.arch, "size": label, "kernel": name, "warps": data.num_warps}
            print(json.dumps(found | {"shared": data.shared, "stack": stack}), flush=True)

    look_like_gpu(capability, SHARED_KB[capability] * 1024, launched)
    models = [*((16, *model) for model in MODELS), *(LARGEST if capability == 86 else ())]
    for learner, (mini_batch, size, form, precision, backbone) in product(("linear", "mlp"), models):
        if (learner, precision) == ("linear", "float32"):
            continue  # it spills 9 KB, which takes long to compile
        config = model_config(f"ttt-{learner}", size, backbone=backbone, mini_batch=mini_batch)
        config, label = replace(config, layers=1, vocabulary=256), size if mini_batch == 16 else f"{size}-{mini_batch}"
        operator = KernelOperator(learner, form, precision)
        model = from_seed(config, 0, "cpu", torch.bfloat16, operator=operator, block=FusedBlock)
        with torch.no_grad():
            for batch, tokens in ((2, 17), (2, 32), (CROWDED * SMS // config.heads + 1, 32)):
                model.prefill(torch.zeros(batch, tokens, dtype=torch.int64), model.init_state(batch, 32))
            model.generate_step(torch.zeros(2, dtype=torch.int64), model.generate_state(model.init_state(2, 32)))
            if (form, precision) == ("dual", "planes"):
                warm_up(model, Layout(config, operator, torch.bfloat16))
    label, weights = "1.3b", torch.empty(2 * 5504, 2048, dtype=torch.bfloat16)
    for rows in (torch.empty(count, 2048, dtype=torch.bfloat16) for count in (1, 3, 17, 64)):
        if fits(rows, weights, swiglu=True):
            few_rows_gemm(rows, weights, swiglu=True)


if __name__ == "__main__":
    generate() if sys.argv[1] == "generate" else portable(int(sys.argv[1]))
