"""A worker whose answer is wrong in the way that the option `do` names; with "well" it is right."""

import json
import sys
import time
from typing import Any

ENVIRONMENT = {"device": "x", "gpu": None, "cpu": {"model": "x", "before": {}, "after": {}}, "software": {}}
SAMPLED = {"samples_ms": [0.5], "throttled": [False], "stop": "count", "tokens": 16}
CHANGES: dict[str, dict[str, Any]] = {
    "long-calls": {"calls": 1_000_000},
    "nul": {"environment": ENVIRONMENT | {"device": "a\0b\x1b[2J"}},
    "nan": {"samples_ms": [float("nan")]},
    "too-long-ago": {"samples_ms": [1e9]},
    "unsampled": {"samples_ms": [], "throttled": []},
}


def answer_to(case: dict[str, Any]) -> Any:
    do = case["options"]["do"]
    if do == "deaf":
        time.sleep(600)
    if do == "another-case":
        case = case | {"batch": case["batch"] + 1}
    record = {"schema": 2, "case": case, "status": "ok", "environment": ENVIRONMENT} | SAMPLED | CHANGES.get(do, {})
    answer = {"record": "ok" if do == "record-text" else record, "healthy": True}
    if do == "no-record":
        del answer["record"]
    return [answer] if do == "list" else answer


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "stop":
            return
        found = {"available": True, "reason": "", "versions": {}, "environment": ENVIRONMENT}
        text = json.dumps(found if request["do"] == "probe" else answer_to(request["case"]))
        deep = request["do"] == "case" and request["case"]["options"]["do"] == "deep"
        print('{"record": ' + "[" * 100_000 + "]" * 100_000 + "}" if deep else text, flush=True)


if __name__ == "__main__":
    main()
