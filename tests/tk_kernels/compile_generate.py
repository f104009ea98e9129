"""Compile the Gluon generate kernel of TTT-MLP for Hopper; print the memory latencies in sequence as JSON lines."""

import json
import re
import subprocess
import tempfile
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from tk_kernels.generate.common import SM90
from tk_kernels.generate.tuning import tuning
from tk_kernels.ttt_mlp.generate_sm90 import dual

KINDS = {"low1": "*i16", "low2": "*i16", "position": "*i32", "slots": "*i64", "base_lr": "fp32"}
SIXTEEN_BITS = {"q", "k", "v", "out", "weights1", "weights2", "rows_k", "rows_x2", "rows_g1", "rows_g2"}
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/ +(?P<text>[^;]+?) *;.*\n.*/\* 0x(?P<high>[0-9a-f]{16}) \*/")


def compiled(registers: int, planes: bool, slots: bool, pdl: bool) -> bytes:
    constants: dict[str, Any] = {"rope": None, "H": 32, "m": 16, "G": 4, "ROPE": False, "LOGITS": False, "PDL": pdl}
    constants |= {"PLANES": planes, "SLOTS": slots}
    constants |= {} if planes else {"low1": None, "low2": None}
    constants |= {} if slots else {"slots": None}
    kinds = {name: "i32" if name.endswith("stride") else KINDS.get(name, "*fp32") for name in dual.arg_names}
    kinds |= dict.fromkeys(SIXTEEN_BITS, "*bf16")
    names = dual.arg_names
    aligned = [name for name in names if name not in constants and name != "base_lr"]
    source = GluonASTSource(
        dual,
        kinds | dict.fromkeys(constants, "constexpr"),
        {(names.index(name),): x for name, x in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": 4, "maxnreg": registers or None}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["cubin"]


def latencies(cubin: bytes) -> int:
    """Count memory latencies in sequence before the first wait for an asynchronous copy.

    An instruction's control bits start at bit 41 of its high word. Bits 5 to 7 name the scoreboard that its result
    releases, or 7 for none. Bits 11 to 16 mask the scoreboards that it waits for.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = [knobs.nvidia.nvdisasm.path, "-hex", file.name]
        listing = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    passed, worst = 0, 0
    pending = [0] * 8  # by scoreboard: the latencies up to the end of its loads
    for instruction in INSTRUCTION.finditer(listing):
        text, control = instruction["text"], int(instruction["high"], 16) >> 41
        if "DEPBAR.LE" in text:
            return worst
        passed = max([passed] + [pending[i] for i in range(6) if control >> 11 + i & 1])
        if "LDG" in text and "LDGDEPBAR" not in text:
            worst = max(worst, passed + 1)
            if "LDGSTS" not in text:  # a copy has no result
                pending[control >> 5 & 7] = passed + 1
    raise ValueError("the kernel waits for no asynchronous copy")


def main() -> None:
    for gpu, precision, slots, pdl in (
        ("NVIDIA H200", "planes", False, False),
        ("NVIDIA H200", "planes", True, False),
        ("NVIDIA H200", "planes", False, True),
        ("NVIDIA H200", "bfloat16", False, False),
        ("NVIDIA H100", "bfloat16", False, False),
    ):
        launch = tuning("ttt_mlp", "dual", precision, f"{SM90} {gpu}")
        cubin = compiled(launch.registers, precision == "planes", slots, pdl)
        found = {"gpu": gpu, "precision": precision, "slots": slots, "pdl": pdl, "latencies": latencies(cubin)}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
