"""A system with torch operators, fake profilers, and runs to profile."""

import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness_helpers import HERE, case, launch, new_run

from harness.measure.correctness import Check, Checks
from harness.measure.ranges import nvtx_range
from harness.measure.system import Workload
from harness.profiling.tools import ncu
from harness.schema.case import Case
from harness.schema.run import Run
from harness.schema.work import Work
from harness.workers.process import Launch

PAIR = ("fake", "cpu")


def run_of(folder: Path, *cases: Case, mode: Any = "profile") -> Run:
    return new_run(folder / "run", cases or [case()], mode=mode)


def launches(fake: bool = True) -> dict[tuple[str, str], Launch]:
    """Return launches that start the fake worker, or the real one."""
    real = launch("profile_helpers:WithTorch")
    return {PAIR: replace(real, command=[sys.executable, str(HERE / "profile_worker.py")]) if fake else real}


class WithTorch:
    """A system of two layers, each a GEMM and a sum; `do` may be "oom" or "idle" (run no operator)."""

    packages = ()

    def unavailable(self) -> str:
        return ""

    def build(self, case: Case) -> Workload:
        import torch

        do = case.option("do")

        def run() -> Any:
            if do == "oom":
                raise MemoryError
            if do == "idle":
                return None
            x = torch.ones(64, 64)
            for layer in range(2):
                with nvtx_range(f"layer {layer}"):
                    x = torch.mm(x, x)
            return torch.add(x, x)

        work = {"products": Work(1e6, 2e4)}
        peaks: dict[str, float | None] = {"copy_gbs": 3000.0, "product_tflops": 600.0}
        check, metrics = Checks([Check.at_most("error", 0.0, 1.0)]), peaks | {"parameters": 5.0}
        return Workload(run=run, tokens=1, work=work, check=lambda: check, metrics=metrics)


NCU_TABLE_NAMES = ("aten::mm", "aten::add")


def ncu_table(*names: str, launches: int = 2, **changes: str) -> str:
    """Return a table as `ncu --csv --page raw` prints it: header, units, one row per launch."""
    values = {
        "gpu__time_duration.sum": ("ns", "2,000.00"),
        "dram__bytes.sum": ("byte", "5,400,000.00"),
        "sm__ops_path_tensor_src_bf16_dst_fp32.sum": ("", "1,000,000.00"),
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": ("inst", "500.00"),
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "31.00"),
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "90.50"),
        ncu._STALL.format("barrier"): ("inst", "3.00"),
        ncu._STALL.format("selected"): ("inst", "1.00"),
        "lts__t_bytes.sum": ("byte", "n/a"),
    } | {name: ("", value) for name, value in changes.items()}
    said = ["==PROF== Connected to process 7"]
    head = ["ID", "Process ID", "Host Name", "Kernel Name", *values]
    units = ["", "", "", "", *(unit for unit, _ in values.values())]
    rows = [
        [str(place), "7", "host", name, *(value for _, value in values.values())]
        for place, name in enumerate(name for name in names for _ in range(launches))
    ]
    return "\n".join([*said, *(",".join(f'"{field}"' for field in row) for row in (head, units, *rows))]) + "\n"


_PROFILER = f"""#!{sys.executable}
import os, subprocess, sys, time
does, arguments = os.environ.get("FAKE_PROFILER", ""), sys.argv[1:]
if "--version" in arguments:
    print(os.environ.get("FAKE_VERSION", "Version 2025.3.0.0 (build 1)"))
    sys.exit()
options = dict(each[2:].split("=", 1) for each in arguments if each.startswith("--") and "=" in each)
if "import" in options:
    print(open(options["import"]).read(), end="")
    sys.exit(5 if does == "unreadable" else 0)
def log(text):
    open(options["log-file"], "a").write(text)
if does == "never start":
    time.sleep(600)
if does == "die":
    log("==ERROR== Failed to find metric regex:xyz\\n")
    sys.exit(9)
start = next(place for place, each in enumerate(arguments) if place and not each.startswith("-"))
child = subprocess.Popen(arguments[start:])
if does == "kill":
    os.kill(os.getpid(), 9)
status = child.wait()
if does == "kill late":
    os.kill(os.getpid(), 9)
if does == "hang":
    time.sleep(600)
if does == "forbidden":
    log("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters\\n")
elif does == "no range":
    log("==WARNING== No kernels were profiled.\\n")
elif does != "nothing":
    log("==PROF== Profiling one - 1: 0%....100% - 9 passes\\n" * int(os.environ.get("FAKE_LAUNCHES", "4")))
    text = open(os.environ["FAKE_REPORT"]).read()
    if does == "truncate":
        text = text[:-40]
    if does == "foreign":
        text = "==ERROR== is not a report\\n"
    open(options["export"], "w").write(text)
sys.exit(status if status >= 0 else 128 - status)
"""


def put_ncu(folder: Path) -> str:
    """Write a fake Nsight Compute into a folder; return a PATH that starts with it."""
    folder.mkdir(exist_ok=True)
    path = folder / "ncu"
    path.write_text(_PROFILER)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return os.pathsep.join([str(folder), "/usr/bin", "/bin"])
