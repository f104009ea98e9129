"""Adapters for fake GPUs: such a GPU is only a value of CUDA_VISIBLE_DEVICES, with no device behind it."""

import os
import time
from pathlib import Path

from fake_systems import Fake

from harness import worker
from harness.measure import measured_case
from harness.measure.system import Workload
from harness.schema.case import Case

DEVICE_ID = os.environ.get("FAKE_DEVICE_ID")
if DEVICE_ID:
    # The fake "driver" gives the process another GPU than requested.
    real = measured_case.snapshot

    def snapshot(*arguments: str) -> dict:
        return {**real(*arguments), "gpu": {"device_id": DEVICE_ID}}

    measured_case.snapshot = worker.snapshot = snapshot


class OnGpu(Fake):
    """A fake system that records its GPU and CPU cores in `settings`. It reads these environment variables:

    FAKE_GONE=GPU:FILE: on this GPU, an adapter's first case runs normally; later cases create FILE and fail.
    FAKE_PIDS=FOLDER: each system's first case with do="hang-once" creates FOLDER/PID.SYSTEM and hangs.
    """

    def __init__(self) -> None:
        self.built = 0

    def build(self, case: Case) -> Workload:
        gpu = os.environ["CUDA_VISIBLE_DEVICES"]
        self.built += 1
        which, _, gone = os.environ.get("FAKE_GONE", "").partition(":")
        if gone and gpu == which and self.built > 1:
            Path(gone).touch()
            raise RuntimeError("CUDA error: the device fell off the bus")
        workload = super().build(case)
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        workload.settings = {**workload.settings, "gpu": gpu, "cores": cores}
        if case.option("do") == "slow":
            time.sleep(1.0)
        if case.option("do") == "hang-once" and not list(Path(os.environ["FAKE_PIDS"]).glob(f"*.{case.system}")):
            folder = Path(os.environ["FAKE_PIDS"])
            (folder / f"{os.getpid()}.{case.system}").touch()
            time.sleep(600)
        return workload
