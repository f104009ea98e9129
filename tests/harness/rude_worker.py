"""A worker whose answer has the fault that the case option `do` names; with "well", it is correct."""

import json
import sys
from typing import Any

ENVIRONMENT = {"device": "x", "gpu": None, "cpu": {"model": "x", "before": {}, "after": {}}, "software": {}}
SAMPLED = {"samples_ms": [0.5], "throttled": [False], "stop": "count", "tokens": 16}


def answer_to(case: dict[str, Any]) -> str:
    do = case["options"]["do"]
    record = {"schema": 2, "case": case, "status": "ok", "environment": ENVIRONMENT} | SAMPLED
    if do == "long-calls":
        record["calls"] = 1_000_000
    return json.dumps({"record": record, "healthy": True} if do != "no-record" else {})


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        found = {"reason": "", "versions": {}, "environment": ENVIRONMENT}
        print(json.dumps(found) if request["do"] == "probe" else answer_to(request["case"]), flush=True)


if __name__ == "__main__":
    main()
