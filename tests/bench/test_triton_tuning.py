"""Are a kernel's candidates compiled before Triton measures them, and is its choice left alone?"""

import os
from functools import partial
from types import SimpleNamespace

import pytest

from bench.systems import triton_tuning


def candidate(block):
    return SimpleNamespace(all_kwargs=lambda: {"BLOCK": block})


class Kernel:
    def __init__(self):
        self.compiled = []

    def run(self, *, grid, warmup, **arguments):
        assert (grid, warmup) == (None, True)
        self.compiled.append(arguments)


def tuner():
    return SimpleNamespace(nargs={"x": 1, "n": 2}, fn=Kernel())


def changed(*blocks, measured):
    """The two changed functions over a tuner with these candidates, which notes what was compiled before each."""

    def measure(tuner, *args, config, **arguments):
        measured.append((config.all_kwargs()["BLOCK"], len(tuner.fn.compiled), args, arguments))

    candidates = [candidate(block) for block in blocks]
    return triton_tuning.compiling_first(lambda tuner, arguments: candidates, measure, triton_tuning._compile)


def test_every_candidate_is_compiled_for_the_arguments_of_the_call_before_one_is_measured():
    pytest.importorskip("triton")
    tuned, call, measured = tuner(), {"grid": (8,), "warmup": False, "WIDTH": 4}, []
    prune, measure = changed(16, 32, measured=measured)
    for config in prune(tuned, call):
        measure(tuned, 1, 2, config=config, **call)
    assert tuned.fn.compiled == [{"x": 1, "n": 2, "WIDTH": 4, "BLOCK": block} for block in (16, 32)]
    assert measured == [(16, 2, (1, 2), call), (32, 2, (1, 2), call)]


def test_what_is_not_a_choice_and_what_was_chosen_before_is_not_compiled_ahead():
    tuned, call, measured = tuner(), {"grid": (8,), "warmup": False}, []
    prune, measure = changed(16, measured=measured)
    (config,) = prune(tuned, call)
    measure(tuned, config=config, **call)
    assert measured == [(16, 0, (), call)]
    prune, _ = changed(16, 32, measured=measured)
    assert len(prune(tuned, call)) == 2  # measured by an earlier process, whose word Triton keeps
    assert tuned.fn.compiled == []


def test_tasks_are_done_in_processes_of_their_own_and_their_results_are_had_here(tmp_path):
    def task(number):
        note = tmp_path / str(number)
        if number == 3:
            raise ValueError("cannot be compiled")
        if not note.exists():  # what a cache on disk spares
            note.write_text(str(os.getpid()))
        return note.read_text()

    pool = triton_tuning.ForkedProcesses(2)
    futures = [pool.submit(partial(task, number)) for number in range(5)]
    pool.work()
    workers = [future.result() for number, future in enumerate(futures) if number != 3]
    assert len(set(workers)) == 2
    assert str(os.getpid()) not in workers
    with pytest.raises(ValueError, match="cannot be compiled"):
        futures[3].result()


def test_triton_is_changed_once_and_asked_to_keep_what_it_measures(monkeypatch):
    autotuner = pytest.importorskip("triton.runtime.autotuner").Autotuner
    original = autotuner.prune_configs
    monkeypatch.setattr(autotuner, "prune_configs", original)
    monkeypatch.setattr(autotuner, "_bench", autotuner._bench)
    monkeypatch.setenv(triton_tuning.KEEP, "0")
    triton_tuning.tune_side_by_side.cache_clear()
    triton_tuning.tune_side_by_side()
    changed_once = autotuner.prune_configs
    triton_tuning.tune_side_by_side()
    assert changed_once is autotuner.prune_configs is not original
    assert triton_tuning.os.environ[triton_tuning.KEEP] == "0"  # the user's word stands
    triton_tuning.tune_side_by_side.cache_clear()
