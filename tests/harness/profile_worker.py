"""A worker without torch that answers like `harness.worker`, with two kernels in each profile.

FAKE_WORKER=oom: run out of memory under Nsight. FAKE_WORKER=killed: die under Nsight.
FAKE_UNHEALTHY: report an unhealthy process under Nsight. FAKE_LOG: file for a line per request.
FAKE_GONE: the GPU on which the worker dies. FAKE_RUN_INFO: JSON fields of `Runs`.
"""

import json
import os
import sys
import time

from harness.schema.case import Case
from harness.schema.record import Record

KERNELS = [{"name": name, "launches": 4, "time_us": 10.0} for name in ("aten::mm", "aten::add")]
RUN_INFO = {"runs": 1, "units": 5, "calls": 1, "wall_us": [], "alone_us": 0.0}
FOUND = {"units": 5, "region_us": 25.0, "busy_us": 20.0, "longest_gap_us": 5.0, "kernels": KERNELS, "ranges": []}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"reason": "", "versions": {}, "environment": {}}
        if request["do"] == "case":
            by_kineto = request["profiler"]["tool"] == "kineto"
            case, does = Case(**request["case"]), "" if by_kineto else os.environ.get("FAKE_WORKER")
            gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            if gpu and gpu == os.environ.get("FAKE_GONE"):
                does = "killed"
            if log := os.environ.get("FAKE_LOG"):
                time.sleep(0.1)
                with open(log, "a") as file:
                    file.write(f"{case.system} {request['profiler']['tool']} {gpu}\n")
            if does == "killed":
                os.kill(os.getpid(), 9)
            record = Record(case, "ok", environment={"software": {"torch": "2.11"}})
            if does == "oom":
                record = Record(case, "oom", "MemoryError: 80 GiB")
            run_info = json.loads(os.environ.get("FAKE_RUN_INFO", "{}"))
            under_nsight = {"run_info": RUN_INFO | run_info, "apart": "FAKE_RUN_INFO" not in os.environ}
            profile = (FOUND if by_kineto else under_nsight) | {"notes": [], "ceilings": {}}
            healthy = by_kineto or "FAKE_UNHEALTHY" not in os.environ
            answer = {"record": json.loads(record.to_json()), "healthy": healthy, "profile": profile}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
