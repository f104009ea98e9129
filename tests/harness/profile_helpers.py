"""A system with torch operators, profilers that behave as they are told, and runs to profile into."""

import os
import sqlite3
import stat
import sys
from pathlib import Path
from typing import Any

from harness.case import Case
from harness.catalogue import Catalogue
from harness.gate import Check, Verdict
from harness.process import Launch
from harness.profilers import ncu
from harness.ranges import nvtx_range
from harness.run import Job, Planned, Run, RunFile
from harness.system import Workload
from harness.timer import Policy

HERE = Path(__file__).resolve().parent
PAIR = ("fake", "cpu")


def case(do: str = "work", **changes: Any) -> Case:
    values: dict[str, Any] = {"system": "fake", "backend": "cpu", "size": "tiny", "phase": "forward"}
    return Case(**(values | {"batch": 2, "context": 8, "options": {"do": do}} | changes))


def run_of(folder: Path, *cases: Case, mode: Any = "profile") -> Run:
    job = Job(*PAIR, tuple(Planned(each) for each in cases or (case(),)))
    return Run.create(folder / "run", RunFile("ttt-bench", 1, mode, (job,), Catalogue(), Policy().to_dict()))


def launches(module: str = "profile_worker") -> dict[tuple[str, str], Launch]:
    """Of a worker that needs no torch, or of the real one: "harness.worker"."""
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    return {PAIR: Launch([sys.executable], "profile_helpers:WithTorch", {"PYTHONPATH": paths}, module)}


class WithTorch:
    """Two layers of a product and a sum; `do` may be "oom" or "idle" (nothing that is an operator)."""

    def unavailable(self) -> str:
        return ""

    def versions(self) -> dict[str, str]:
        return {}

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

        return Workload(run=run, tokens=1, gate=lambda: Verdict([Check.at_most("error", 0.0, 1.0)]))


def ceilings() -> dict[str, float | None]:
    return {"copy_gbs": 3000.0, "product_tflops": 600.0}


NCU_TABLE_NAMES = ("aten::mm", "aten::add")


def ncu_table(*names: str, launches: int = 2, **changes: str) -> str:
    """What `ncu --csv --page raw` prints: a header, units, and a row a launch."""
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


def nsys_database(path: Path) -> Path:
    """An export of Nsight Systems: one call under its ranges, then two that are timed, on two streams."""
    database = sqlite3.connect(path)
    database.executescript("""
        CREATE TABLE StringIds (id INTEGER, value TEXT);
        CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER,
            globalTid INTEGER, domainId INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, correlationId INTEGER, globalTid INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER,
            demangledName INTEGER, registersPerThread INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, correlationId INTEGER);
        INSERT INTO StringIds VALUES (1, 'gemm(float*)'), (2, '_dual'), (3, 'layer 0');
        INSERT INTO NVTX_EVENTS VALUES
            (0, 10000, 59, 'prefill', NULL, 5, 0), (1000, 4000, 59, NULL, 3, 5, 0),
            (20000, 40000, 59, 'timed', NULL, 5, 0), (0, 90000, 59, 'elsewhere', NULL, 6, 0),
            (0, 90000, 34, 'a mark', NULL, 5, 0);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES
            (2000, 2100, 1, 5), (5000, 5100, 2, 5), (21000, 21100, 3, 5), (22000, 22100, 4, 5), (23000, 23100, 5, 5);
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
            (50000, 53000, 7, 1, 1, 32, 100, 28), (53000, 54000, 7, 2, 2, 64, 0, 0),
            (60000, 63000, 7, 3, 1, 32, 100, 28), (64000, 66000, 7, 4, 2, 64, 0, 0);
        INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (65000, 67000, 5);
    """)
    database.commit()
    database.close()
    return path


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
    shutil.copy(os.environ["FAKE_SQLITE"], options["output"])
    sys.exit()
def log(text):
    if "log-file" in options:
        open(options["log-file"], "a").write(text)
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
    report = options.get("export") or options["output"]
    shutil.copy(os.environ["FAKE_REPORT"], report)
sys.exit(status)
"""


def put_profilers(folder: Path, *names: str) -> str:
    """Fake profilers in a folder of their own; the PATH with it in front, and nothing else that profiles."""
    folder.mkdir(exist_ok=True)
    for name in names:
        path = folder / name
        path.write_text(_PROFILER)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return os.pathsep.join([str(folder), "/usr/bin", "/bin"])
