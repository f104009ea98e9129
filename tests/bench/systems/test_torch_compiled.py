"""The compiled layer computes the layer's function for whole pieces, and refuses other lengths and forms."""

from functools import partial
from random import Random

import pytest
import torch

from bench.systems.ttt import compiled
from bench.systems.ttt.compiled import CompiledLayer
from harness.measure.system import Skip
from harness.schema.case import Case


def case(system, context=64, **options):
    options = (("scope", "layer"), *options.items())
    return Case(system, "torch-compile", "tiny", "forward", 2, context, "float32", "float32", options=options)


@pytest.fixture
def uncompiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@pytest.mark.parametrize("system", ["ttt-linear", "ttt-mlp"])
def test_pieces_follow_one_another_as_in_the_whole(uncompiled, monkeypatch, system):
    monkeypatch.setattr(compiled, "TOGETHER", 2)
    workload = CompiledLayer().build(case(system, 80))
    assert workload.settings["compiled_together"] == "32 tokens"
    assert workload.check().passed
    compare = workload.timed_check(Random(1))
    checked = compare(workload.run(), 1)
    assert checked.passed, checked.reason
    assert checked.unchecked == ""
    assert {check.name for check in checked.checks} >= {"timed_output_relative_error"}
    assert workload.metrics["flops"] > 0


def test_the_compiler_traces_it_in_one_graph(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    workload = CompiledLayer().build(case("ttt-linear", 32))
    assert workload.check().passed


@pytest.mark.parametrize("wrong", [{"form": "primal"}, {"part": "w"}])
def test_what_it_does_not_compute_is_refused(wrong):
    with pytest.raises(Skip, match="in the dual form"):
        CompiledLayer().build(case("ttt-linear", **wrong))


def test_a_begun_mini_batch_is_refused():
    with pytest.raises(Skip, match="whole mini-batches of 16"):
        CompiledLayer().build(case("ttt-linear", 40))
