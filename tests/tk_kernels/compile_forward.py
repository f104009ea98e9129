"""Compile the Triton forward kernels for GPUs that are not here, and print what each takes as JSON lines."""

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

from tk_kernels.ttt_linear import forward as linear
from tk_kernels.ttt_mlp import forward as mlp
from tk_kernels.ttt_mlp import forward_wide

TOKENS = ("q", "k", "k_again", "k_third", "v", "out")


def compiled(kernel: Any, capability: int, constants: dict[str, Any], warps: int) -> Any:
    """The kernel for bfloat16 tokens on a GPU of this compute capability."""
    names = kernel.arg_names
    integers = {name for name in names if name in "TH" or name.startswith(("q_", "k_b", "k_to", "k_h", "v_"))}
    kinds = {name: "*bf16" if name in TOKENS else "i32" if name in integers else "*fp32" for name in names}
    signature = kinds | dict.fromkeys(constants, "constexpr")
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name not in constants}
    source = ASTSource(kernel, signature, {(names.index(k),): x for k, x in constants.items()}, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})


def stack_bytes(cubin: bytes) -> int | None:
    """Bytes of local memory per thread, spills in it; None without cuobjdump."""
    try:
        tool = knobs.nvidia.cuobjdump.path
    except (AttributeError, RuntimeError):
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        answer = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    return max(int(found) for found in re.findall(r"STACK:(\d+)", answer.stdout))


def main(capability: int) -> None:
    """One line a kernel: name, shared memory, local memory."""
    shape = {"m": 16, "M": 16, "DOT": tl.bfloat16, "UP": 1.0, "INTERPRETED": 0}
    head = shape | {"D": 64, "DP": 64}
    wide = shape | {"D": 96, "DP": 128}
    blocks = {name: forward_wide.SHAPE[name] for name in ("BLOCK", "S")}
    variants = [
        ("linear", linear._forward, head | {"N": 4, "S": linear.STAGES}, 4),
        ("linear-crowded", linear._forward, head | {"N": 2, "S": linear.STAGES}, 2),
        ("mlp", mlp._forward, head | {"N": mlp.WARPS, "S": mlp.STAGES, "F": 256}, mlp.WARPS),
        ("mlp-96", forward_wide.forward, wide | blocks | {"F": 384}, forward_wide.SHAPE["num_warps"]),
    ]
    if capability == 80:
        variants.append(("linear-96", linear._forward, wide | {"N": 8, "S": linear.STAGES}, 8))
    for name, kernel, constants, warps in variants:
        made = compiled(kernel, capability, constants, warps)
        found = {"capability": capability, "kernel": name, "shared": made.metadata.shared}
        print(json.dumps(found | {"stack": stack_bytes(made.asm["cubin"])}), flush=True)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(int(argument))
