"""Compile Triton kernels for GPUs that this machine lacks; print a JSON line per kernel.

Given a compute capability such as 80, compile the forward kernels and print their shared and local memory in bytes.
Given "generate", compile TTT-MLP's Gluon generate kernel and print how many loads in sequence it waits for.
"""

import json
import re
import subprocess
import sys
import tempfile
from typing import Any

import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

from tk_kernels.generate.common import SM90
from tk_kernels.generate.tuning import FORWARD, tuning
from tk_kernels.ttt_linear import forward as linear
from tk_kernels.ttt_mlp import forward as mlp
from tk_kernels.ttt_mlp import forward_gluon, forward_wide
from tk_kernels.ttt_mlp.generate_sm90 import dual

BF16 = {"q", "q_again", "k", "k_again", "k_third", "v", "out"}
BF16 |= {"weights1", "weights2", "rows_k", "rows_x2", "rows_g1", "rows_g2"}
BF16_SLOTS = {"W", "W1", "W2", "W_out", "W1_out", "W2_out", "k_rows", "g_rows", "x2_rows", "g1_rows", "g2_rows"}
OTHERS = {"low": "*i16", "low1": "*i16", "low2": "*i16", "cu_seqlens": "*i32", "start": "*i32", "position": "*i32"}
OTHERS |= {"slots": "*i64", "base_lr": "fp32"}
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/ +(?P<text>[^;]+?) *;.*\n.*/\* 0x(?P<high>[0-9a-f]{16}) \*/")


def compiled(kernel: Any, capability: int, constants: dict[str, Any], **options: Any) -> Any:
    names = kernel.arg_names
    pointers = BF16 | BF16_SLOTS if "PACKED" in constants else BF16
    if "PACKED" not in constants:
        constants = {param.name: param.default for param in kernel.params if param.has_default} | constants
    integers = {name for name in names if name in "TH" or re.match(r"(q|k|v)_(batch|token|head)$", name)}
    integers |= {name for name in names if name.endswith("_stride")}
    kinds = {name: "*bf16" if name in pointers else "i32" if name in integers else "*fp32" for name in names}
    kinds |= {name: kind for name, kind in OTHERS.items() if name in names} | dict.fromkeys(constants, "constexpr")
    aligned = [i for i, name in enumerate(names) if kinds[name] not in ("constexpr", "fp32")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    language = GluonASTSource if isinstance(kernel, GluonJITFunction) else ASTSource
    source = language(kernel, kinds, {(names.index(k),): x for k, x in constants.items()}, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


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
    """Return the length of the longest chain of dependent loads before a kernel first waits for an asynchronous copy.

    An instruction's control bits start at bit 41 of its high word. Control bits 5 to 7 name the scoreboard that the
    result releases, or 7 for none. Control bits 11 to 16 mask the scoreboards that the instruction waits for.
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
        cubin = compiled(dual, 90, constants, num_warps=4, maxnreg=launch.registers or None).asm["cubin"]
        found = {"gpu": gpu, "precision": precision, "slots": slots, "pdl": pdl, "latencies": latencies(cubin)}
        print(json.dumps(found), flush=True)


def forward(capability: int) -> None:
    shape = {"m": 16, "M": 16, "DOT": tl.bfloat16, "UP": 1.0}
    head, wide = shape | {"D": 64, "DP": 64}, shape | {"D": 96, "DP": 128}
    variants = [
        ("linear", linear._forward, "ttt_linear", "few", head),
        ("mlp", mlp._forward, "ttt_mlp", "narrow", head | {"F": 256}),
        ("mlp-96", forward_wide.forward, "ttt_mlp", "wide", wide | {"F": 384}),
    ]
    if capability in (80, 90):
        variants.append(("linear-crowded", linear._forward, "ttt_linear", "crowded", head))
    if capability == 80:
        variants.append(("linear-96", linear._forward, "ttt_linear", "wide", wide))
    if capability in (80, 90, 100):  # others have less shared memory than the kernel in Gluon takes
        variants.append(("mlp-gluon", forward_gluon.forward, "ttt_mlp", "narrow", shape))
    packed = [(f"{name}-packed", *rest, sizes | {"PACKED": True, "PLANES": True}) for name, *rest, sizes in variants]
    for name, kernel, operator, row, sizes in packed + (variants if capability in (80, 90) else []):
        launch = tuning(operator, FORWARD, row, "default")
        settings = {"S": launch.stages, "N": launch.warps, "BLOCK": launch.block}
        constants = {key: x for key, x in (sizes | settings).items() if key in kernel.arg_names}
        made = compiled(kernel, capability, constants, num_warps=launch.warps)
        found = {"capability": capability, "kernel": name, "shared": made.metadata.shared}
        print(json.dumps(found | {"stack": stack_bytes(made.asm["cubin"])}), flush=True)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        generate() if argument == "generate" else forward(int(argument))
