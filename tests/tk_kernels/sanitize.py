"""Run every kernel on small shapes under compute-sanitizer: memcheck, racecheck and synccheck.

`python -m tests.tk_kernels.sanitize [RECORD]` prints one result per kernel and tool, and writes the same to RECORD.
The exit status is 1 unless all results are clean. Needs a Hopper GPU, compute-sanitizer, and nvcc or cached kernels.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import torch
from torch import Tensor

from tests.tk_kernels.generate_cases import GENERATE
from tests.tk_kernels.reference_cases import Case, case
from tk_kernels import build
from tk_kernels.edges import few_rows, swiglu_product
from tk_kernels.edges.norms_and_gates import norm_gate, rms_norm, swiglu
from tk_kernels.edges.short_convolution import query_key, residual_convolution
from tk_kernels.generate.common import rope_table
from tk_kernels.generate.slots import read_slots, write_slots
from tk_kernels.reference.token_rows import mapped
from tk_kernels.ttt_linear import ops as linear_ops
from tk_kernels.ttt_mlp import ops as mlp_ops

TOOLS = ("memcheck", "racecheck", "synccheck")
MAX_PARALLEL_RUNS = min(8, (os.cpu_count() or 1) // 2 + 1)  # a run occupies about one CPU core
TOKENS = (1, 17, 100)
DTYPE = torch.bfloat16
BATCH, HEADS = 2, 3
SCHEDULES = ((16, 2, 4), (16, 4, 1), (32, 4, 1))  # TTT-Linear: mini-batch, warps per head, heads per block
STEPS = 17  # generated tokens: one mini-batch and one more token


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw random numbers on the CPU, so that compute-sanitizer sees no PyTorch kernel."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def on_gpu(*tensors: Tensor) -> list[Tensor]:
    return [x.cuda() for x in tensors]


def prompt(operator: str, tokens: int, mini_batch: int, D: int = 64) -> Case:
    return mapped(arguments(operator, tokens, mini_batch, D), Tensor.cuda)


def arguments(operator: str, tokens: int, mini_batch: int, D: int = 64) -> Case:
    return case(operator, tokens, batch=BATCH, heads=HEADS, head_dim=D, mini_batch=mini_batch, dtype=DTYPE)


def linear_forward() -> Iterator[str]:
    for tokens, rope, (mini_batch, *plan) in product(TOKENS, (False, True), SCHEDULES):
        linear_ops.OPERATOR.plan = lambda *_, plan=plan: plan
        linear_ops.forward(*prompt("linear", tokens, mini_batch), rope=rope, start=0, backend="thunderkittens")
        yield f"T={tokens} rope={rope} mini-batch {mini_batch}, {plan[0]} warps per head, {plan[1]} heads per block"


def mlp_forward(mini_batch: int) -> Iterator[str]:
    for tokens, rope in product(TOKENS, (False, True)):
        mlp_ops.forward(*prompt("mlp", tokens, mini_batch), rope=rope, start=0, backend="thunderkittens")
        yield f"T={tokens} rope={rope}"


def portable_forward(operator: str, mini_batches: tuple[int, ...] = (8, 16), D: int = 64) -> Iterator[str]:
    forward = {"linear": linear_ops, "mlp": mlp_ops}[operator].forward
    for tokens, rope, mini_batch in product(TOKENS, (False, True), mini_batches):
        forward(*prompt(operator, tokens, mini_batch, D), rope=rope, start=0, backend="triton")
        yield f"T={tokens} rope={rope} mini-batch {mini_batch}"


def convolutions() -> Iterator[str]:
    C = 64 * HEADS
    for tokens, pdl in product(TOKENS, (False, True)):
        h, cache, weight, bias, norm = on_gpu(
            *(normal(*shape, dtype=DTYPE) for shape in ((BATCH, tokens, C), (BATCH, 3, C), (C, 1, 4), (C,), (C,)))
        )
        residual_convolution(h, cache, norm, weight, bias, norm, 1e-6, pdl=pdl)
        turns, logits, position = normal(16, 32), normal(BATCH, tokens, HEADS, dtype=DTYPE), torch.arange(BATCH)
        rope, (logits, position, lr_bias) = on_gpu(turns.cos(), turns.sin()), on_gpu(logits, position, normal(HEADS))
        conv, angles = (weight, bias), (rope[0], rope[1])
        query_key(h, cache, conv, conv, angles, position, logits, lr_bias, 1.0, pdl=pdl)
        yield f"T={tokens}{' PDL' * pdl}"


def swiglu_gemms() -> Iterator[str]:
    swiglu_product.LEAST_ROWS = 1
    for rows, inputs in product((1, 128, 200), (64, 384)):
        x, weights = on_gpu(normal(rows, inputs, dtype=DTYPE), normal(512, inputs, dtype=DTYPE))
        for concurrent in (False, True):
            swiglu_product.swiglu_product(x, weights, concurrent=concurrent)
        yield f"M={rows} K={inputs}"


def gates() -> Iterator[str]:
    C = 64 * HEADS
    for tokens, pdl in product(TOKENS, (False, True)):
        z, fused, weight = on_gpu(
            normal(tokens, C, dtype=DTYPE), normal(tokens, 2 * C, dtype=DTYPE), normal(C, dtype=DTYPE)
        )
        norm_gate(z, fused[:, C:], weight, weight, 1e-6, pdl=pdl)
        rms_norm(fused[:, C:], weight, 1e-6, pdl=pdl)
        swiglu(fused)
        yield f"T={tokens}{' PDL' * pdl}"


def few_row_gemms() -> Iterator[str]:
    K, eps = 64 * HEADS, 1e-6
    for rows, outputs, pdl in product((1, 2, 3, 21), (6, few_rows.MANY_OUTPUTS + 2), (False, True)):
        x, gate, weight, weights, out = on_gpu(
            *(normal(*shape, dtype=DTYPE) for shape in ((rows, K), (rows, K), (K,), (outputs, K), (rows, outputs)))
        )
        norm = few_rows.Norm(weight, eps)
        for before in (None, norm, few_rows.Norm(weight, eps, weight, gate)):
            few_rows.few_rows_gemm(x, weights, before, out=out, pdl=pdl)
        few_rows.few_rows_gemm(x, weights, norm, swiglu=True, pdl=pdl)
        yield f"M={rows} N={outputs}{' PDL' * pdl}"


def generate(operator: str, D: int = 64) -> Iterator[str]:
    cases = [("dual", "planes"), ("dual", "bfloat16"), ("dual", "float32")]
    for form, precision in [*cases, ("primal", "float16")] if D == 64 else cases:
        *tensors, state = arguments(operator, STEPS, 16, D)
        gstate = mapped(GENERATE[operator].GenerateState.from_state(state, form, precision), Tensor.cuda)
        *per_token, scale, weight, bias = tensors
        angles = torch.outer(torch.arange(16), 1e4 ** (-torch.arange(0, D, 2) / D)).cuda()
        outer, rope = on_gpu(scale, weight, bias), rope_table(angles.cos(), angles.sin())
        for t in range(STEPS):
            token = on_gpu(*(x[:, t].contiguous() for x in per_token))
            GENERATE[operator].generate_step(*token, *outer, gstate, rope=rope, pdl=t % 2 == 1)
        yield f"{STEPS} tokens, {form}, {precision}"


def slot_copies() -> Iterator[str]:
    for operator, precision in product(GENERATE, ("planes", "bfloat16", "float32")):
        *_, state = arguments(operator, 2, 16, 64)
        gstate = mapped(GENERATE[operator].GenerateState.from_state(state, "dual", precision), Tensor.cuda)
        slots, start = torch.arange(len(gstate.position)).flip(0).cuda(), torch.arange(len(gstate.position)).cuda()
        weights = read_slots(gstate, slots, start, [x[0].cuda() for x in state[: 2 * len(gstate.layers)]])
        write_slots(gstate, slots, [*weights, *(x.float().clone() for x in gstate.accumulated)])
        yield f"{operator}, {precision}"


# Keyed by source file; `generate` also runs the kernels in generate_sm90.py.
KERNELS: dict[str, Callable[[], Iterator[str]]] = {
    "ttt_linear/forward_sm90": linear_forward,
    **{name: partial(mlp_forward, mini_batch) for mini_batch, name in mlp_ops.KERNELS.items()},
    "edges/short_convolution": convolutions,
    "edges/norms_and_gates": gates,
    "edges/few_rows": few_row_gemms,
    swiglu_product.KERNEL: swiglu_gemms,
    "ttt_linear/forward": partial(portable_forward, "linear"),
    "ttt_mlp/forward": partial(portable_forward, "mlp", (32,)),
    "ttt_mlp/forward_gluon": partial(portable_forward, "mlp"),
    "ttt_mlp/forward_wide": partial(portable_forward, "mlp", D=96),
    "generate/slots": slot_copies,
    "ttt_linear/generate": partial(generate, "linear"),
    "ttt_mlp/generate": partial(generate, "mlp"),
    "ttt_mlp/generate_wide": partial(generate, "mlp", D=96),
}


def run(kernel: str) -> None:
    for line in KERNELS[kernel]():
        torch.cuda.synchronize()
        print("ran", line, flush=True)


def sanitized(kernel: str, tool: str) -> tuple[bool, str]:
    """Run one kernel under one tool; return (whether the kernel ran without errors, report)."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", __spec__.name]
    # Without PyTorch's memory cache, the tool sees accesses outside a tensor.
    settings = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    result = subprocess.run([*command, "--run", kernel], capture_output=True, text=True, check=False, env=settings)
    lines = result.stdout.splitlines()
    ran = sum(line.startswith("ran") for line in lines)
    summary = [line.lstrip("= ") for line in lines if "SUMMARY" in line][:1] or result.stderr.splitlines()[-1:]
    clean = result.returncode == 0 and ran > 0
    status = "clean" if clean else f"NOT CLEAN ({' '.join(summary)})"
    return clean, "\n".join([f"{kernel} {tool}: {status}, {ran} runs", *error_messages(lines)])


def error_messages(lines: list[str]) -> list[str]:
    counts: Counter[str] = Counter()
    for line, following in pairwise(lines):
        if re.match(r"========= [A-Z]", line) and following.startswith("=========     "):
            text = f"{line.lstrip('= ')} | {following.lstrip('= ')}"
            counts[re.sub(r"\(\d+,\d+,\d+\)|0x[0-9a-f]+|\d+ hazards", "*", text)] += 1
    return [f"  {count} x {text}" for text, count in counts.most_common(8)]


def main(record: str | None) -> int:
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not in PATH: install the CUDA toolkit")
        return 1
    sources = [f"{name}: source {build.source_digest(name)[:16]}" for name in build.KERNELS]
    device = f"{torch.cuda.get_device_name()}, B={BATCH}, H={HEADS}, T in {TOKENS}, bfloat16"
    with ThreadPoolExecutor(MAX_PARALLEL_RUNS) as pool:
        reports = list(pool.map(lambda pair: sanitized(*pair), product(KERNELS, TOOLS)))
    text = "\n".join([device, *sources, *(report for _, report in reports)]) + "\n"
    print(text, end="")
    if record:
        Path(record).write_text(text)
    return 0 if all(clean for clean, _ in reports) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1] if sys.argv[1:] else None))
