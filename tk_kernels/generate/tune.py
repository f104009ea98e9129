"""Measure which launch settings make the generate kernels fastest on this GPU, as sections of `tuning.toml`.

    python -m tk_kernels.generate.tune --operator ttt_linear --batch 512 >> tk_kernels/generate/tuning.toml

A candidate first computes a mini-batch of steps and is dropped where the result is wrong; then it is timed in a CUDA
graph, mean over the 16 positions, on as many states in turn as keep each of them out of the L2 cache.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from importlib import import_module
from itertools import product
from statistics import median
from typing import Any

import torch

from tk_kernels import FORMS
from tk_kernels.build.parallel import compile_all
from tk_kernels.generate.common import PRECISIONS, SM90, available
from tk_kernels.generate.tuning import Tuning

OPERATORS = ("ttt_linear", "ttt_mlp")
HEADS, HEAD_DIM, MINI_BATCH = 32, 64, 16
# Of `out` against float64: the rounding of any 16-bit state is well below it, a miscompiled product is not.
WRONG = 3e-2
TIMED = 5  # mini-batches that a candidate is timed for
Log = Callable[[str], object]


def candidates(operator: str, form: str, precision: str, sm90: bool = False) -> Iterator[Tuning]:
    """The settings worth a trial; sm90: those of the kernel in `generate_sm90.py`, whose layouts fix the warps."""
    linear, dual = operator == "ttt_linear", form == "dual"
    if sm90:
        for r in (0, 96, 112, 128, 168):
            yield Tuning(warps=1 if linear else 4, block=0, sm90=True, registers=r)
        return
    warps = (1, 2, 4) if linear else (4, 8, 16)
    blocks = ((16, 32, 64) if linear else (32, 64, 128)) if dual else (64,)  # primal rewrites the whole state at once
    matrix = (False, True) if dual and not linear and precision != "float32" else (False,)
    for w, b, x, r in product(warps, blocks, matrix, (0, 128, 168)):
        yield Tuning(warps=w, block=b, matrix=x, registers=r)


def fastest(tried: Sequence[tuple[Tuning, float]]) -> Tuning | None:
    """The settings of least time; None where all times are infinite, as none gave the right result."""
    best = min(tried, key=lambda pair: pair[1], default=None)
    return best[0] if best and best[1] < math.inf else None


def section(gpu: str, operator: str, form: str, rows: dict[str, Tuning]) -> str:
    """A section of `tuning.toml`: one row per state precision, without the fields at their defaults."""
    lines = [f'["{gpu}".{operator}.{form}]']
    for precision, chosen in rows.items():
        kept = [(f.name, getattr(chosen, f.name)) for f in fields(chosen) if getattr(chosen, f.name) != f.default]
        lines.append(f"{precision} = {{ {', '.join(f'{name} = {str(value).lower()}' for name, value in kept)} }}")
    return "\n".join(lines)


class Trial:
    """The states and tokens on which the candidates of one operator, form and precision run."""

    def __init__(self, operator: str, form: str, precision: str, batch: int, log: Log) -> None:
        parts = (import_module(f"tk_kernels.{operator}.{part}") for part in ("generate", "reference"))
        self.generate, self.reference = parts
        self.log = log
        self.token = _token(batch, torch.float32 if precision == "float32" else torch.bfloat16)
        self.outer = _outer()
        self.form, self.precision, self.start = form, precision, _start(operator, self.reference, batch)
        self.states = [self._new(self.start)]
        size = sum(x.numel() * x.element_size() for x in self.states[0].tensors())
        self.states += [self._new(self.start) for _ in range(2 * _l2_bytes() // size)]

    @property
    def tuned_as(self) -> str:
        """The section of the table for these states on this GPU."""
        return self.generate.tuned_as(self.states[0])

    def microseconds(self, launch: Tuning) -> float:
        """Time of one step; infinite where these settings cannot be launched or give a wrong result."""
        from triton.runtime.errors import OutOfResources, PTXASError

        try:
            return self._time(launch) if self._error(launch) < WRONG else math.inf
        except (OutOfResources, PTXASError) as error:
            self.log(f"  {error}")
            return math.inf

    def compile(self, launches: Iterable[Tuning]) -> None:
        """Compile for these settings in parallel; `microseconds` reports those that cannot be compiled."""
        compile_all(partial(self._step, launch=launch, compile_only=True) for launch in launches)

    def _step(self, **options: Any) -> torch.Tensor:
        return self.generate.generate_step(*self.token, *self.outer, self.states[0], **options)

    def _new(self, start: Any) -> Any:
        return self.generate.GenerateState.from_state(start, self.form, self.precision)

    def _error(self, launch: Tuning) -> float:
        """Worst relative error of `out` over a mini-batch and a step of two sequences, against float64."""
        few = type(self.start)(*(x[:2] for x in self.start))
        token, state, worst = [x[:2] for x in self.token], self._new(few), 0.0
        exact = type(few)(*(x.double() if x.is_floating_point() else x for x in few))
        for _ in range(MINI_BATCH + 1):
            out = self.generate.generate_step(*token, *self.outer, state, launch=launch).double()
            wide = (x.double() for x in (*token, *self.outer))
            expected, exact = self.reference.generate_step(*wide, exact)
            worst = max(worst, float((out - expected).norm() / expected.norm()))
            if not math.isfinite(float(out.sum())):
                return math.inf
        return worst

    def _time(self, launch: Tuning) -> float:
        def steps() -> None:
            for state in self.states:
                self.generate.generate_step(*self.token, *self.outer, state, launch=launch)

        steps()  # compile
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            steps()
        for state in self.states:
            state.position.zero_()
        return median(_mini_batch_ms(graph.replay) for _ in range(TIMED)) * 1e3 / MINI_BATCH / len(self.states)


def _mini_batch_ms(step: Callable[[], None]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(MINI_BATCH):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def _l2_bytes() -> int:
    return torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size


def _normal(*shape: int, std: float = 1.0) -> torch.Tensor:
    return std * torch.randn(*shape, device="cuda")


def _start(operator: str, reference: Any, batch: int) -> Any:
    """A state of W about 0.02 at the start of a mini-batch."""
    H, D, F = HEADS, HEAD_DIM, 4 * HEAD_DIM
    shapes = ((H, D, D), (H, 1, D)) if operator == "ttt_linear" else ((H, D, F), (H, 1, F), (H, F, D), (H, 1, D))
    return reference.init_state(*(_normal(*shape, std=0.02) for shape in shapes), batch, MINI_BATCH)


def _outer() -> tuple[torch.Tensor, ...]:
    scale = 1 / torch.arange(1, MINI_BATCH + 1, device="cuda")
    return scale, 1 + _normal(HEADS, HEAD_DIM, std=0.1), _normal(HEADS, HEAD_DIM, std=0.1)


def _token(batch: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    q, k, v = (_normal(batch, HEADS, HEAD_DIM).to(dtype) for _ in range(3))
    return q, k, v, torch.rand(batch, HEADS, device="cuda") / HEAD_DIM


def tune(operator: str, form: str, precision: str, batch: int, log: Log = print) -> tuple[str, Tuning | None]:
    """The name of the section for this GPU, and the fastest right settings; logs every candidate and its time."""
    trial, tried = Trial(operator, form, precision, batch, log), []
    launches = list(candidates(operator, form, precision, sm90=trial.tuned_as == SM90))
    trial.compile(launches)
    for launch in launches:
        tried.append((launch, trial.microseconds(launch)))
        log(f"{operator}.{form} {precision} {launch}: {tried[-1][1]:.1f} us")
    return trial.tuned_as, fastest(tried)


def sections(
    operators: Sequence[str] = OPERATORS,
    forms: Sequence[str] = FORMS,
    precisions: Sequence[str] = tuple(PRECISIONS),
    batch: int = 512,
    log: Log = print,
) -> Iterator[str]:
    """Sections of `tuning.toml`, each as soon as it is measured. Raises RuntimeError where the kernels cannot run."""
    if available() or not torch.cuda.is_available():
        raise RuntimeError(available() or "There is no CUDA GPU.")
    for operator, form in product(operators, forms):
        found: dict[str, dict[str, Tuning]] = {}
        for precision in precisions:
            name, launch = tune(operator, form, precision, batch, log)
            if launch is not None:
                found.setdefault(name, {})[precision] = launch
        for name, rows in found.items():
            yield section(name, operator, form, rows)


def main() -> None:
    """The command line: sections to standard output, candidates to standard error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", choices=OPERATORS, action="append", help="may be repeated; default: both")
    parser.add_argument("--form", choices=FORMS, action="append", help="may be repeated; default: both")
    parser.add_argument("--precision", choices=list(PRECISIONS), action="append", help="may be repeated; default: all")
    parser.add_argument("--batch", type=int, default=512, help="sequences that generate together (default: 512)")
    args = parser.parse_args()
    if args.batch < 2:
        parser.error(f"--batch {args.batch}: must be at least 2")
    log = partial(print, file=sys.stderr, flush=True)
    chosen = (args.operator or OPERATORS, args.form or FORMS, args.precision or tuple(PRECISIONS))
    try:
        for text in sections(*chosen, args.batch, log):
            print(text, end="\n\n", flush=True)
    except RuntimeError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
