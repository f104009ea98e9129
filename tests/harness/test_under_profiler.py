"""The profile and record follow from the answer of a worker under a profiler; a failure has a reason."""

from pathlib import Path
from typing import Any

import pytest
from harness_helpers import case
from profile_helpers import PAIR, launches, run_of

from harness.profiling.under_profiler import ToolLost, UnderProfiler
from harness.schema.record import Record
from harness.schema.run_file import Planned
from harness.workers.process import DEFAULT_SLOT, Limits
from harness.workers.protocol import WorkerLost

LAUNCH = launches()[PAIR]


class Worker:
    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, list[Any]()

    def ask(self, request: Any, limit_s: float, *, last: bool = False) -> Any:
        self.asked.append((request, limit_s))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def under(folder: Path) -> UnderProfiler:
    return UnderProfiler(run_of(folder), DEFAULT_SLOT, Limits(7, 60), lambda: False)


def answered(record: Record, profile: Any) -> dict[str, Any]:
    return {"record": record.to_dict(), "profile": profile}


def test_an_answer_gives_profile_fields_and_the_tool(tmp_path: Path) -> None:
    worker = Worker(answered(Record(case(), "ok", environment={"software": {"torch": "2.11"}}), {"region_us": 1.0}))
    found, record = under(tmp_path).by_kineto(worker, LAUNCH, Planned(case()))
    assert (found["region_us"], found["tools"], record.case) == (1.0, {"torch.profiler": "2.11"}, case())
    ((request, limit_s),) = worker.asked
    assert (request["case"], request["mode"], limit_s) == (case().to_dict(), "profile", 7)
    assert request["profiler"]["tool"] == "kineto"
    assert Path(request["profiler"]["keep"]).parent == (tmp_path / "run" / "profiles").resolve()


@pytest.mark.parametrize(
    ("answer", "status", "why"),
    [
        (WorkerLost("killed", "a signal"), "killed", "a signal"),
        (answered(Record(case(), "oom", "80 GiB"), {}), "oom", "80 GiB"),
        (answered(Record(case(batch=3), "ok"), {}), "failed", "unusable: .*it is of another case: .* B=3"),
        (answered(Record(case(), "ok"), None), "failed", "the worker's answer is unusable"),
        ({"profile": {}}, "failed", "the worker's answer is unusable: KeyError"),
    ],
)
def test_an_unusable_answer_is_explained(tmp_path: Path, answer: Any, status: str, why: str) -> None:
    with pytest.raises(ToolLost, match=why) as lost:
        under(tmp_path).by_kineto(Worker(answer), LAUNCH, Planned(case()))
    assert lost.value.status == status
    assert not lost.value.lasting
