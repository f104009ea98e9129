"""Tasks run in forked processes first; this process then reads their cached results."""

import os
from functools import partial

import pytest

from tk_kernels import parallel
from tk_kernels.parallel import ForkedProcesses


def test_tasks_are_done_in_processes_of_their_own_and_their_results_are_had_here(tmp_path):
    def task(number):
        note = tmp_path / str(number)
        if number == 3:
            raise ValueError("cannot be compiled")
        if not note.exists():  # the file acts as a cache on disk
            note.write_text(str(os.getpid()))
        return note.read_text()

    pool = ForkedProcesses(2)
    futures = [pool.submit(partial(task, number)) for number in range(5)]
    pool.work()
    workers = [future.result() for number, future in enumerate(futures) if number != 3]
    assert len(set(workers)) == 2
    assert str(os.getpid()) not in workers
    with pytest.raises(ValueError, match="cannot be compiled"):
        futures[3].result()


def test_without_memory_for_another_process_the_tasks_are_done_here(monkeypatch):
    def no_memory():
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(parallel.os, "fork", no_memory)
    pool = ForkedProcesses(2)
    futures = [pool.submit(partial(pow, 2, number)) for number in range(3)]
    pool.work()
    assert [future.result() for future in futures] == [1, 2, 4]
