"""A system with torch operators, fake profilers, and runs to profile."""

import os
import re
import sqlite3
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


def worker_launches(fake: bool = True) -> dict[tuple[str, str], Launch]:
    real = launch("profile_helpers:WithTorch")
    return {PAIR: replace(real, command=[sys.executable, str(HERE / "profile_worker.py")]) if fake else real}


class WithTorch:
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
    header = ["==PROF== Connected to process 7"]
    head = ["ID", "Process ID", "Host Name", "Kernel Name", *values]
    units = ["", "", "", "", *(unit for unit, _ in values.values())]
    rows = [
        [str(place), "7", "host", name, *(value for _, value in values.values())]
        for place, name in enumerate(name for name in names for _ in range(launches))
    ]
    return "\n".join([*header, *(",".join(f'"{field}"' for field in row) for row in (head, units, *rows))]) + "\n"


# Tables of an export from an H100, and a table that this export lacks.
NSYS_TABLES = re.findall(r"^CREATE TABLE .*?;$", (HERE / "fixtures" / "h100.nsys.sql").read_text(), re.DOTALL | re.M)
NSYS_TABLES.append(
    "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER)"
)
PROCESS = 0x1000007 << 24  # a globalPid; a globalTid adds the thread's number


def nsys_database(path: Path) -> Path:
    database = sqlite3.connect(path)
    for table in NSYS_TABLES:
        database.execute(table)
    for number, value in enumerate(("gemm(float *)", "_dual", "layer 0", "cudaLaunchKernel", "_Z4gemmPf"), start=1):
        nsys_row(database, "StringIds", id=number, value=value)
    for start, end, kind, thread, text, text_id in (
        (0, 10000, 59, 5, "forward", None),
        (1000, 4000, 59, 5, None, 3),
        (20000, 40000, 59, 5, "timed", None),
        (0, 90000, 59, 6, "elsewhere", None),
        (0, 90000, 34, 5, "a mark", None),
    ):
        tid = PROCESS + thread
        nsys_row(
            database, "NVTX_EVENTS", start=start, end=end, eventType=kind, text=text, textId=text_id, globalTid=tid
        )
    # Two processes give their launches the same numbers.
    for pid in (PROCESS, PROCESS + (1 << 24)):
        for correlation, start in enumerate((2000, 5000, 21000, 22000, 23000), start=1):
            tid, end = pid + 5, start + 100
            nsys_row(
                database, "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, correlationId=correlation, globalTid=tid
            )
    kernel: dict[str, int]
    for correlation, start, end, kernel in (
        (1, 50000, 53000, GEMM),
        (2, 53000, 54000, DUAL),
        (3, 60000, 63000, GEMM),
        (4, 64000, 66000, DUAL),
    ):
        row = {"start": start, "end": end, "correlationId": correlation, "globalPid": PROCESS, "streamId": 7}
        nsys_row(database, "CUPTI_ACTIVITY_KIND_KERNEL", **row, **kernel)
    row = {"start": 65000, "end": 67000, "correlationId": 5, "globalPid": PROCESS, "streamId": 8}
    nsys_row(database, "CUPTI_ACTIVITY_KIND_MEMCPY", **row)
    database.commit()
    database.close()
    return path


GEMM = {"demangledName": 1, "mangledName": 5, "registersPerThread": 32, "staticSharedMemory": 128}
DUAL = {"demangledName": 2, "registersPerThread": 64}


def nsys_row(database: sqlite3.Connection, table: str, **values: Any) -> None:
    row = {name: 0 for _, name, _, required, *_ in database.execute(f"PRAGMA table_info({table})") if required} | values
    placeholders = ", ".join("?" * len(row))
    database.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({placeholders})", tuple(row.values()))


_PROFILER = f"""#!{sys.executable}
import os, shutil, subprocess, sys, time
tool, does, arguments = os.path.basename(sys.argv[0]), os.environ.get("FAKE_PROFILER", ""), sys.argv[1:]
if "--version" in arguments:
    print(os.environ.get("FAKE_VERSION", "Version 2025.3.0.0 (build 1)"))
    sys.exit()
options = dict(each[2:].split("=", 1) for each in arguments if each.startswith("--") and "=" in each)
if "import" in options:
    print(open(options["import"]).read(), end="")
    sys.exit(5 if does == "unreadable" else 0)
if arguments[0] == "export":
    if does == "unreadable":
        sys.exit("the report cannot be opened")
    shutil.copy(os.environ["FAKE_SQLITE"], options["output"])
    sys.exit()
def log(text):
    if "log-file" in options:
        open(options["log-file"], "a").write(text)
if does == "never start":
    time.sleep(600)
if does == "die":
    log("==ERROR== Failed to find metric regex:xyz\\n")
    sys.exit(9)
start = next(place for place, each in enumerate(arguments) if place and not each.startswith("-"))
child = subprocess.Popen(arguments[start:])
status = child.wait()
if does == "kill late":
    os.kill(os.getpid(), 9)
if does == "hang":
    time.sleep(600)
if does == "forbidden":
    log("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters\\n")
elif does == "no range":
    log("==WARNING== No kernels were profiled.\\n")
elif does == "no importer":
    sys.stderr.write("Importer error status: Importation failed.\\n")
else:
    log("==PROF== Profiling one - 1: 0%....100% - 9 passes\\n" * 4)
    shutil.copy(os.environ["FAKE_REPORT"], options.get("export") or options["output"])
sys.exit(status if status >= 0 else 128 - status)
"""


def put_profilers(folder: Path, *names: str) -> str:
    folder.mkdir(exist_ok=True)
    for name in names:
        path = folder / name
        path.write_text(_PROFILER)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return os.pathsep.join([str(folder), "/usr/bin", "/bin"])
