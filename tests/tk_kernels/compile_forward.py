"""Compile the Triton forward kernels for GPUs that this machine lacks; print shared memory and stack as JSON lines."""

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

from tk_kernels.generate.tuning import FORWARD, tuning
from tk_kernels.ttt_linear import forward as linear
from tk_kernels.ttt_mlp import forward as mlp
from tk_kernels.ttt_mlp import forward_gluon, forward_wide

TOKENS = ("q", "k", "k_again", "k_third", "v", "out")
PACKED_KINDS = dict.fromkeys(("cu_seqlens", "start"), "*i32") | {"slots": "*i64"}
PACKED_KINDS |= dict.fromkeys(("low", "low1", "low2"), "*i16")
PACKED_KINDS |= dict.fromkeys(("W", "W1", "W2", "W_out", "W1_out", "W2_out"), "*bf16")
PACKED_KINDS |= dict.fromkeys(("k_rows", "g_rows", "x2_rows", "g1_rows", "g2_rows"), "*bf16")


def compiled(kernel: Any, capability: int, constants: dict[str, Any], warps: int) -> Any:
    names = kernel.arg_names
    packed = "PACKED" in constants
    if not packed:
        constants = {param.name: param.default for param in kernel.params if param.has_default} | constants
    integers = {name for name in names if name in "TH" or name.startswith(("q_", "k_b", "k_to", "k_h", "v_"))}
    integers |= {name for name in names if name.endswith("_stride")}
    kinds = {name: "*bf16" if name in TOKENS else "i32" if name in integers else "*fp32" for name in names}
    if packed:
        kinds |= {name: kind for name, kind in PACKED_KINDS.items() if name in names}
    signature = kinds | dict.fromkeys(constants, "constexpr")
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name not in constants}
    language = GluonASTSource if isinstance(kernel, GluonJITFunction) else ASTSource
    source = language(kernel, signature, {(names.index(k),): x for k, x in constants.items()}, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})


def stack_bytes(cubin: bytes) -> int | None:
    """Bytes of local memory per thread, spills included; None without cuobjdump."""
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
    shape = {"m": 16, "M": 16, "DOT": tl.bfloat16, "UP": 1.0, "INTERPRETED": False}
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
        made = compiled(kernel, capability, constants, launch.warps)
        found = {"capability": capability, "kernel": name, "shared": made.metadata.shared}
        print(json.dumps(found | {"stack": stack_bytes(made.asm["cubin"])}), flush=True)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(int(argument))
