"""A worker whose answer is wrong in the way that the case's option `do` names; with "well" it is right.

python -m rude_worker ENTRY
"""

import json
import os
import sys
import time
from typing import Any

ENVIRONMENT: dict[str, Any] = {
    "device": "x",
    "gpu": None,
    "cpu": {"model": "x", "before": {}, "after": {}},
    "software": {},
}


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    record = {
        "schema": 2,
        "case": request["case"],
        "status": "ok",
        "samples_ms": [0.5],
        "throttled": [False],
        "stop": "count",
        "tokens": 16,
        "environment": ENVIRONMENT,
    }
    return {"record": record, "healthy": True}


def lines_for(do: str, request: dict[str, Any]) -> list[str]:
    """Return the lines to print as the answer."""
    answer = answer_to(request)
    record = answer["record"]
    if do == "long-calls":
        record["calls"] = 1_000_000
    elif do == "another-case":
        record["case"] = record["case"] | {"batch": record["case"]["batch"] + 1}
    elif do == "nul":
        record["environment"] = ENVIRONMENT | {"device": "a\0b\x1b[2J"}
    elif do == "deep":
        return ['{"record": ' + "[" * 100_000 + "]" * 100_000 + "}"]
    elif do == "no-record":
        del answer["record"]
    elif do == "record-text":
        answer["record"] = "ok"
    elif do == "list":
        return [json.dumps([answer])]
    elif do == "nan":
        record["samples_ms"] = [float("nan")]
    elif do == "too-long-ago":
        record["samples_ms"] = [1e9]
    elif do == "unsampled":
        record["samples_ms"], record["throttled"] = [], []
    return [json.dumps(answer)]


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "stop":
            return
        if request["do"] == "probe":
            versions: dict[str, str] = {}
            found = {"available": True, "reason": "", "versions": versions, "environment": ENVIRONMENT}
            say(json.dumps(found))
            continue
        do = dict(request["case"].get("options", {})).get("do")
        if do == "deaf":
            time.sleep(600)
        for each in lines_for(do, request):
            say(each)


def say(line: str) -> None:
    os.write(1, line.encode("utf-8", "surrogatepass") + b"\n")


if __name__ == "__main__":
    main()
