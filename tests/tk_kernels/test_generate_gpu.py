"""The generate kernels on a GPU match float64 over 256 steps of a layer of the 1.3B model, also in CUDA graphs."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from generate_cases import GENERATE, combinations, compare, forward_state, outer_parameters, random_state, random_token
from torch import Tensor

from tests.tk_kernels.forward_prompts import OPS
from tk_kernels import FORMS

H, D, m, STEPS = 32, 64, 16, 256
EVERY_POSITION = [(5 * i + 11) % m for i in range(m)]

pytestmark = pytest.mark.gpu
operators = pytest.mark.parametrize("operator", GENERATE)
forms = pytest.mark.parametrize("form", FORMS)


@combinations
@pytest.mark.parametrize("batch", [1, 3, 512])
def test_256_steps(operator: str, form: str, precision: str, batch: int) -> None:
    start = random_state(operator, EVERY_POSITION[:batch], H, D, m)
    compare(operator, form, precision, start, STEPS, batch)


@operators
@forms
@pytest.mark.xdist_group("large")  # run serially: the largest state is 20 GB
def test_batch_of_4096(operator: str, form: str) -> None:
    """Each MLP weight has 2^31 elements, so offsets need 64 bits."""
    if form == "primal" and operator == "mlp":
        pytest.skip("the state and its sums are 140 GB")
    start = random_state(operator, EVERY_POSITION, H, D, m)
    compare(operator, form, "planes", start, m, 4096)


@combinations
def test_256_steps_after_a_forward(operator: str, form: str, precision: str) -> None:
    ops = OPS[operator]
    if ops.available():
        pytest.skip(ops.available())
    start = forward_state(operator, list(range(m)), H, D, m, ops.forward)
    compare(operator, form, precision, start, STEPS)


@operators
@forms
def test_one_graph_serves_every_position(operator: str, form: str) -> None:
    start = random_state(operator, EVERY_POSITION, H, D, m)
    compare(operator, form, "planes", start, 48, 512, step=Replay(operator))


class Replay:
    def __init__(self, operator: str) -> None:
        self.generate, self.graph = GENERATE[operator], torch.cuda.CUDAGraph()
        self.inputs: tuple[Tensor, ...] = ()
        self.out = torch.empty(0)

    def __call__(self, gstate: object, token: tuple[Tensor, ...], outer: tuple[Tensor, ...], out: Tensor) -> None:
        if not self.inputs:
            self._capture(gstate, token, outer, out)
        for captured, new in zip(self.inputs, token, strict=True):
            captured.copy_(new)
        self.graph.replay()

    def _capture(self, gstate: object, token: tuple[Tensor, ...], outer: tuple[Tensor, ...], out: Tensor) -> None:
        """Compile on a spare state, then capture the graph. A capture runs nothing, so `gstate` stays unchanged."""
        self.inputs, self.out = tuple(x.clone() for x in token), out
        spare = random_state("linear" if "linear" in self.generate.__name__ else "mlp", [0], H, D, m)
        one = tuple(x[:1] for x in token)
        self.generate.generate_step(*one, *outer, self.generate.GenerateState.from_state(spare, gstate.form, "planes"))
        with torch.cuda.graph(self.graph):
            self.generate.generate_step(*self.inputs, *outer, gstate, out=self.out)


@combinations
def test_steps_repeat_bitwise(operator: str, form: str, precision: str) -> None:
    outer, start = outer_parameters(H, D, m), random_state(operator, EVERY_POSITION, H, D, m)
    generate, dtype = GENERATE[operator], torch.float32 if precision == "float32" else torch.bfloat16
    states = [generate.GenerateState.from_state(start, form, precision) for _ in range(2)]
    for number in range(m + 1):
        token = random_token(m, H, D, dtype, number)
        first, second = (generate.generate_step(*token, *outer, state) for state in states)
        assert torch.equal(first, second)
    assert all(torch.equal(a, b) for a, b in zip(*(s.tensors() for s in states), strict=True))


def test_the_example_of_the_readme() -> None:
    if reason := OPS["linear"].available():
        pytest.skip(reason)
    readme = Path(__file__).resolve().parents[2] / "tk_kernels" / "README.md"
    found: dict[str, Any] = {}
    exec(re.search(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)[1], found)
    token = [found[name][:, -1:].float() for name in ("q", "k", "v", "lr")]
    layer = [found[name].float() for name in ("scale", "weight", "bias")]
    state = found["reference"].init_state(found["W"], found["b"], batch=found["B"])
    prompt = [found[name].float() for name in ("q", "k", "v", "lr")]
    _, state = found["reference"].forward(*prompt, *layer, state)
    expected, _ = found["reference"].forward(*token, *layer, state)
    assert found["out"].shape == expected[:, 0].shape
    assert (found["out"] - expected[:, 0]).norm() / expected.norm() < 1e-2
