"""An engine that dies, hangs or runs out of memory leaves a record in time, and frees the GPU."""

import os
import sys
import time
from pathlib import Path

import pytest
import torch
from fake_engines import HELD_BYTES

from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.policy import Policy
from harness.schema.record import Record
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned, RunFile
from harness.workers.process import Launch, Limits
from harness.workers.scheduler import Options, run_jobs

HERE = Path(__file__).resolve().parent
LIMIT_S = 20.0
PAIR = ("transformer", "vllm")


def run(folder: Path, *faults: str, time_limit_s: float = LIMIT_S, gpu: bool = False) -> list[Record]:
    """Run the forward case of two prompts through the adapter once per fault; return the records."""
    paths = [str(HERE), str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")]
    hidden = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
    launch = Launch(
        [sys.executable], "fake_engines:Faulty", {"PYTHONPATH": os.pathsep.join(filter(None, paths)), **hidden}
    )
    cases = [
        Planned(Case(*PAIR, "tiny", "forward", 2, 48, dtype="float32", timing="engine", options=(("fault", fault),)))
        for fault in faults
    ]
    policy = Policy(budget_s=0)
    file = RunFile("measure", "cuda" if gpu else "cpu", (Job(*PAIR, tuple(cases)),), Catalogue(), policy)
    return run_jobs(Run.create(folder / "run", file), {PAIR: launch}, Options(limits=Limits(time_limit_s)))


def test_an_engine_that_fails_takes_no_other_case_with_it(tmp_path):
    records = run(tmp_path, "dies", "dies later", "memory later", "none")
    died = "the worker exited with status 7; its last error output: EngineDeadError: the core is gone"
    assert [(record.status, record.reason, record.samples_ms) for record in records[:-1]] == [
        ("failed", died, []),
        ("failed", died, []),
        ("oom", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", []),
    ]
    assert records[-1].status == "ok", records[-1].reason
    assert len(records[-1].samples_ms) == 1


def test_an_engine_that_hangs_is_killed_at_its_limit(tmp_path):
    (record,) = run(tmp_path, "hangs later", time_limit_s=2.0)
    assert (record.status, record.samples_ms) == ("timeout", [])
    assert record.reason.startswith("no answer within 2 s")
    assert 2.0 <= record.wall_s < 12.0


@pytest.mark.gpu
@pytest.mark.parametrize(("fault", "status"), [("dies", "failed"), ("hangs", "timeout"), ("memory later", "oom")])
def test_the_gpus_memory_is_free_again_for_the_next_case(fault, status, tmp_path):
    torch.cuda.init()
    before, _ = torch.cuda.mem_get_info()
    limit_s = 10.0 if fault == "hangs" else LIMIT_S
    (record,) = run(tmp_path, fault, time_limit_s=limit_s, gpu=True)
    assert record.status == status
    deadline = time.monotonic() + 10
    while before - torch.cuda.mem_get_info()[0] > HELD_BYTES // 8 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert before - torch.cuda.mem_get_info()[0] < HELD_BYTES // 8
