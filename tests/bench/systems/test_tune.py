"""Tuning picks the fastest correct settings. A reference replaces the kernel; a fake clock returns fixed times."""

import tomllib

import pytest
import torch

from bench.commands import tune as command
from bench.systems.ttt import kernel_layer
from harness.measure import timer
from harness.measure.correctness import Checks
from tk_kernels.generate.tuning import Tuning
from tk_kernels.ttt_linear import forward, generate, reference

SLOW, FAST, WRONG, TOO_LARGE = (Tuning(warps=warps, block=32) for warps in (1, 2, 4, 8))
TOOK_MS = {SLOW: 3.2, FAST: 1.6, WRONG: 0.1}


class LaunchClock(timer.Clock):
    def __init__(self, kernel):
        self.kernel, self.time_s = kernel, 0.0

    def sample(self):
        super().sample()
        self.time_s += 0.3
        return TOOK_MS[self.kernel.launched]

    def now(self):
        return self.time_s


class FakeKernel:
    def __init__(self):
        self.launched, self.compiled = None, []

    def __call__(self, q, k, v, lr, scale, weight, bias, state, *, out=None, launch=None, compile_only=False):
        from triton.runtime.errors import OutOfResources

        self.launched = launch
        if compile_only:
            self.compiled.append(launch)
            return out
        if launch == TOO_LARGE:
            raise OutOfResources(300_000, 232_448, "shared memory")
        exact, after = reference.generate_step(q, k, v, lr, scale, weight, bias, state.to_state())
        after = generate.GenerateState.from_state(after, state.form, state.precision)
        for now, then in zip(state.tensors(), after.tensors(), strict=True):
            now.copy_(then)
        exact = exact * (1.5 if launch == WRONG else 1)
        return exact.to(q.dtype) if out is None else out.copy_(exact)


@pytest.fixture
def kernel(monkeypatch, one_thread):
    found = FakeKernel()
    monkeypatch.setattr(generate, "generate_step", found)
    monkeypatch.setattr(kernel_layer, "l2_bytes", lambda: 1)
    monkeypatch.setattr(command, "SIZE", "tiny")
    monkeypatch.setattr(command, "BATCH", 2)
    monkeypatch.setattr(command, "candidates", lambda *arguments, sm90: iter((SLOW, FAST, WRONG, TOO_LARGE)))
    monkeypatch.setattr(command, "CudaEventClock", lambda timing: LaunchClock(found))
    kernel_layer.check_generate.cache_clear()
    yield found
    kernel_layer.check_generate.cache_clear()


def fastest():
    with torch.inference_mode():
        return command.fastest_step("linear", "dual", "float32")


def test_the_fastest_that_passes_the_check_is_chosen(kernel, capsys):
    assert fastest() == ("cpu", FAST)
    took, faster, wrong, too_large = (line.partition("): ")[2] for line in capsys.readouterr().err.splitlines())
    assert (took, faster) == ("200.0 µs", "100.0 µs")  # a call is the 16 steps of a mini-batch
    assert "output_relative_error" in wrong
    assert "shared memory" in too_large
    assert kernel.compiled == [SLOW, FAST, WRONG, TOO_LARGE]


def test_the_fastest_forward_that_is_correct_is_chosen(kernel, monkeypatch):
    def launch(tokens, outer, weights, outputs, launch, compile_only=False):
        kernel(*(x[:, 0] for x in tokens), *outer, None, launch=launch, compile_only=True)
        if not compile_only:
            state = reference.init_state(weights[0][0], weights[1][0, :, None], batch=len(tokens[0]))
            out, after = reference.forward(*tokens, *outer, state, start=0)
            for target, x in zip(outputs, (out * (1.5 if launch == WRONG else 1), *after[:-1]), strict=True):
                target.copy_(x)

    monkeypatch.setattr(forward, "launch", launch)
    monkeypatch.setattr(command, "candidates", lambda *arguments: iter((SLOW, FAST, WRONG)))
    monkeypatch.setattr(command, "FORWARD_TOKENS", 128)
    with torch.inference_mode():
        chosen = command.fastest_forward("linear", "few")
    assert chosen == ("cpu", FAST)
    assert kernel.compiled[:3] == [SLOW, FAST, WRONG]


def test_settings_that_no_check_compares_are_no_choice(kernel, monkeypatch, capsys):
    monkeypatch.setattr(command, "candidates", lambda *arguments, sm90: iter((SLOW,)))
    monkeypatch.setattr(command, "check_generate", lambda *arguments: Checks([]))
    assert fastest() == ("cpu", None)
    assert "nothing was checked" in capsys.readouterr().err


@pytest.fixture
def machine(monkeypatch):
    def measured(learner, form, precision):
        return "a GPU", FAST if precision == "planes" else None

    monkeypatch.setattr(command, "fastest_step", measured)
    monkeypatch.setattr(command, "fastest_forward", lambda learner, row: ("a GPU", SLOW))
    monkeypatch.setattr(command, "no_gpu", lambda: "")
    monkeypatch.setattr(command, "available", lambda: "")


def test_a_section_is_printed_for_each_learner_and_form(machine, capsys):
    command.tune()
    printed = capsys.readouterr()
    row = {"planes": {"warps": 2, "block": 32}}
    found = tomllib.loads(printed.out)["a GPU"]
    for operator, kinds in (("ttt_linear", ("few", "crowded", "wide")), ("ttt_mlp", ("narrow", "wide"))):
        forward = {kind: {"warps": 1, "block": 32} for kind in kinds}
        assert found[operator] == {"dual": row, "primal": row, "forward": forward}
    assert "ttt-mlp dual float32: no candidate can be used" in printed.err
