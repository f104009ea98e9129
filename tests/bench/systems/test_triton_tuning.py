"""All candidates of an autotuned kernel compile before any is launched; Triton's autotuner then chooses one."""

import json
from types import SimpleNamespace

import pytest
import torch

from bench.systems import triton_tuning

TIMES_MS = {16: 3.0, 32: 1.0, 64: 2.0}


def add(x, n, BLOCK):
    """Stand in for the source function of a kernel, which Triton requires but these tests never compile."""


@pytest.fixture
def triton(monkeypatch, tmp_path):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    launches = []

    def run(kernel, *args, grid, warmup, **arguments):
        launches.append((warmup, arguments["BLOCK"]))

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    gpu = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32))
    monkeypatch.setattr(type(triton.runtime.driver), "active", gpu)
    return SimpleNamespace(launches=launches, cached=lambda: list(tmp_path.rglob("*.autotune.json")))


def tuner():
    import triton

    configs = [triton.Config({"BLOCK": block}, num_stages=stages) for block, stages in ((64, 1), (32, 2), (16, 3))]
    # No interpreter, whatever other tests set in the environment.
    kernel = triton.runtime.jit.JITFunction(add)

    def measure(call, quantiles):
        call()
        return [TIMES_MS[measured.launches[-1][1]]] * 3

    tuned = triton.autotune(configs, key=["n"], cache_results=True, do_bench=measure)(kernel)
    measured = tuned.measured = SimpleNamespace(launches=None)
    return tuned


def call(tuned, fixture):
    tuned.measured.launches = fixture.launches
    return lambda: tuned[(1,)](torch.zeros(8), 8)


def test_every_candidate_is_compiled_and_none_is_launched_or_chosen(triton):
    tuned = tuner()
    triton_tuning.compile_ahead(call(tuned, triton))
    assert {block for _, block in triton.launches} == {16, 32, 64}
    assert all(compiled_only for compiled_only, _ in triton.launches)
    assert tuned.cache == {}
    assert triton.cached() == []


def test_the_choice_is_measured_on_the_work_that_is_prepared(triton):
    tuned = tuner()
    triton_tuning.prepare(call(tuned, triton))
    launched = [block for compiled_only, block in triton.launches if not compiled_only]
    assert launched == [64, 32, 16, 32]
    assert [config.kwargs["BLOCK"] for config in tuned.cache.values()] == [32]
    (cached,) = triton.cached()
    assert len(json.loads(cached.read_text())["configs_timings"]) == 3


def test_a_reference_takes_the_smallest_candidate_and_leaves_the_choice_as_it_is(triton):
    tuned = tuner()
    with triton_tuning.untuned(call(tuned, triton)):
        assert set(triton.launches) == {(True, 16)}
        triton.launches.clear()
        call(tuned, triton)()
    assert triton.launches == [(False, 16)]
    assert tuned.cache == {}
    assert triton.cached() == []
    triton_tuning.prepare(call(tuned, triton))
    triton.launches.clear()
    with triton_tuning.untuned(lambda: None):
        call(tuned, triton)()
    assert triton.launches == [(False, 32)]
    assert len(tuned.cache) == 1


def test_retuning_ignores_the_choice_for_an_earlier_shape(triton, monkeypatch):
    tuned = tuner()
    triton_tuning.prepare(call(tuned, triton))
    cached = triton.cached()
    triton.launches.clear()
    monkeypatch.setitem(TIMES_MS, 64, 0.5)
    with triton_tuning.retuning():
        triton_tuning.prepare(call(tuned, triton))
        call(tuned, triton)()
    assert {block for compiled_only, block in triton.launches if compiled_only} == {16, 32, 64}
    assert [config.kwargs["BLOCK"] for config in tuned.cache.values()] == [64]
    assert triton.launches[-1] == (False, 64)
    assert triton.cached() == cached
    call(tuned, triton)()
    assert triton.launches[-1] == (False, 64)


def test_triton_is_itself_again_when_the_work_fails(triton):
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    def state():
        return Autotuner._bench, Autotuner.check_disk_cache, JITFunction.run

    def fail():
        raise MemoryError

    before, tuned = state(), tuner()
    for failing in (lambda: triton_tuning.compile_ahead(fail), lambda: triton_tuning.untuned(fail).__enter__()):
        with pytest.raises(MemoryError):
            failing()
        assert state() == before
    with pytest.raises(MemoryError), triton_tuning.retuning():
        fail()
    assert tuned.cache_results
