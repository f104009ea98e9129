"""Do the forward kernels access memory, share it and use barriers rightly? Small shapes under compute-sanitizer.

`python -m tests.tk_kernels.sanitize [RECORD]` runs every tool, prints what each found and writes it to RECORD;
exit status 1 unless all are clean. Needs a Hopper GPU, the kernels in the cache or nvcc, and compute-sanitizer.
"""

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any

import torch

from tk_kernels import build
from tk_kernels.ttt_linear import ops as linear_ops
from tk_kernels.ttt_linear import reference as linear_reference
from tk_kernels.ttt_mlp import ops as mlp_ops
from tk_kernels.ttt_mlp import reference as mlp_reference

TOOLS = ("memcheck", "racecheck", "synccheck")
TOKENS = (1, 17, 100)
BATCH, HEADS = 2, 3
SCHEDULES = ((16, 2, 4), (16, 4, 1), (32, 4, 1))  # of TTT-Linear: mini-batch, warps a head, heads a block
SHAPES = {"linear": ((64, 64), (1, 64)), "mlp": ((64, 256), (1, 256), (256, 64), (1, 64))}
REFERENCES: dict[str, Any] = {"linear": linear_reference, "mlp": mlp_reference}


def arguments(operator: str, tokens: int, mini_batch: int, dtype: torch.dtype) -> list[Any]:
    """Arguments of forward, made on the CPU, so that no kernel but ours is looked at."""
    generator = torch.Generator().manual_seed(tokens)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    q, k, v = (normal(BATCH, tokens, HEADS, 64).to(dtype) for _ in range(3))
    lr, scale = torch.rand(BATCH, tokens, HEADS, generator=generator) / 64, 1 / torch.arange(1, mini_batch + 1)
    weights = (0.02 * normal(HEADS, *shape) for shape in SHAPES[operator])
    state = REFERENCES[operator].init_state(*weights, BATCH, mini_batch)
    tensors = (q, k, v, lr, scale, torch.ones(HEADS, 64), torch.zeros(HEADS, 64))
    return [*(x.cuda() for x in tensors), type(state)(*(x.cuda() for x in state))]


def linear_runs(tokens: int, dtype: torch.dtype, rope: bool) -> Iterator[str]:
    """TTT-Linear of each mini-batch and schedule; a line for each."""
    for mini_batch, *plan in SCHEDULES:
        linear_ops.schedule = lambda *_, plan=plan: plan  # type: ignore[assignment, misc]
        linear_ops.forward(*arguments("linear", tokens, mini_batch, dtype), rope=rope, start=0)
        yield f"ran mini-batch {mini_batch}, {plan[0]} warps a head, {plan[1]} heads a block"


def mlp_runs(tokens: int, dtype: torch.dtype, rope: bool) -> Iterator[str]:
    """TTT-MLP; a line."""
    mlp_ops.forward(*arguments("mlp", tokens, 16, dtype), rope=rope, start=0)
    yield "ran"


RUNS = {"linear": linear_runs, "mlp": mlp_runs}


def run(operator: str) -> None:
    """Run the operator on every shape; a line on standard output for each that came back."""
    for case in product(TOKENS, (torch.bfloat16, torch.float16), (False, True)):
        for line in RUNS[operator](*case):
            torch.cuda.synchronize()
            print(line, *case, flush=True)


def sanitized(operator: str, tool: str) -> tuple[bool, list[str]]:
    """Whether the tool finds nothing in the operator's kernel, and what it says: summary, then distinct findings."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", __spec__.name]
    answer = subprocess.run([*command, "--run", operator], capture_output=True, text=True, check=False)
    lines = answer.stdout.splitlines()
    ran = sum(line.startswith("ran") for line in lines)
    summary = [line.lstrip("= ") for line in lines if "SUMMARY" in line][:1] or answer.stderr.splitlines()[-1:]
    return answer.returncode == 0 and ran > 0, [f"{operator} {tool}: {ran} runs, {' '.join(summary)}", *findings(lines)]


def findings(lines: list[str]) -> list[str]:
    """The first two lines of each distinct finding, without threads, addresses and call stacks, and how many."""
    said: Counter[str] = Counter()
    for line, following in pairwise(lines):
        if re.match(r"========= [A-Z]", line) and following.startswith("=========     "):
            text = f"{line.lstrip('= ')} | {following.lstrip('= ')}"
            said[re.sub(r"\(\d+,\d+,\d+\)|0x[0-9a-f]+|\d+ hazards", "*", text)] += 1
    return [f"  {count} x {text}" for text, count in said.most_common(8)]


def main(record: str | None) -> int:
    """Exit status: 0 when every tool is content."""
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on the path: it comes with the CUDA toolkit")
        return 1
    results = [sanitized(operator, tool) for operator in RUNS for tool in TOOLS]
    sources = [f"{name}: source {build.source_digest(name)[:16]}" for name in build.KERNELS]
    device = f"{torch.cuda.get_device_name()}, B={BATCH}, H={HEADS}, T in {TOKENS}, bfloat16 and float16"
    text = "\n".join([device, *sources, *chain(*(lines for _, lines in results))]) + "\n"
    print(text, end="")
    if record:
        Path(record).write_text(text)
    return 0 if all(clean for clean, _ in results) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1] if sys.argv[1:] else None))
