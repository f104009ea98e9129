"""Does the compiled layer compute the layer, in whole pieces, and refuse the rest?"""

from functools import partial

import pytest
import torch

from bench.systems import torch_compiled
from bench.systems.torch_compiled import CompiledLinear, CompiledMLP
from harness.case import Case
from harness.gate import relative_error
from harness.system import Skip
from tk_kernels.ttt_linear import reference as linear
from tk_kernels.ttt_mlp import reference as mlp


def case(system, context=64, **options):
    return Case(system, "torch-compile", "tiny", "forward", 2, context, dtype="float32",
                state_dtype="float32", options=(("scope", "layer"), *options.items()))


@pytest.fixture
def uncompiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@pytest.mark.parametrize(("adapter", "reference"), [(CompiledLinear, linear), (CompiledMLP, mlp)])
def test_pieces_follow_one_another_as_in_the_whole(uncompiled, monkeypatch, adapter, reference):
    monkeypatch.setattr(torch_compiled, "TOGETHER", 2)
    workload = adapter().build(case(f"ttt-{adapter.learner}", 80))
    assert workload.settings["compiled_together"] == "32 tokens"
    assert workload.gate().passed
    forward = workload.run.__closure__
    inputs = next(cell.cell_contents for cell in forward if isinstance(cell.cell_contents, dict))
    out, state = workload.run()
    expected, expected_state = reference.forward(**inputs, start=0)
    assert relative_error(out, expected) < 1e-5
    assert relative_error(state[0], expected_state[0]) < 1e-5
    assert workload.metrics["flops"] > 0


def test_the_compiler_traces_it_in_one_graph(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    workload = CompiledLinear().build(case("ttt-linear", 32))
    assert workload.gate().passed


@pytest.mark.parametrize("wrong", [{"form": "primal"}, {"part": "w"}])
def test_what_it_does_not_compute_is_refused(wrong):
    with pytest.raises(Skip, match="dual form only"):
        CompiledLinear().build(case("ttt-linear", **wrong))


def test_a_begun_mini_batch_is_refused():
    with pytest.raises(Skip, match="whole mini-batches of 16"):
        CompiledLinear().build(case("ttt-linear", 40))
