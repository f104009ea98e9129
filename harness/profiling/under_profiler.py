"""Run a case in a worker under a profiler; read the worker's answer and the report."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.measure.environment import output_of
from harness.measure.ranges import range_names
from harness.profiling.tools import ncu, nsys
from harness.profiling.tools.trace import Runs, profile_fields
from harness.schema.case import Case
from harness.schema.profile import Counters, ProfileError
from harness.schema.record import Record
from harness.schema.run import Run
from harness.workers.process import GpuSlot, Launch, Limits, WorkerProcess, signal_of
from harness.workers.protocol import WorkerLost

STOP_S = 180.0  # for a profiler to write its report
_WITHOUT = "use --with torch instead"
_MORE_TIME = f"raise --time-limit, or {_WITHOUT}"
_READ_S = 300.0  # to read a report
_FOLDERS = re.compile(r"(?:/[^/\s:=,]+)+/")


class ToolLost(ProfileError):
    """Raised if a profiler gives no result for a case, with the reason in one sentence.

    status: status for the case's profile. lasting: whether the job's other cases would fail for the same reason.
    everywhere: whether the cases of all jobs would fail.
    """

    def __init__(self, reason: str, lasting: bool = False, status: str = "failed", *, everywhere: bool = False) -> None:
        super().__init__(reason)
        self.lasting, self.status, self.everywhere = lasting, status, everywhere


@dataclass(frozen=True)
class UnderProfiler:
    """Profiles cases of one system; raises ProfileError if a profiler gives no result."""

    run: Run  # its folder gets the reports
    launch: Launch
    slot: GpuSlot
    limits: Limits
    stopped: Callable[[], bool]  # returns whether the run should end

    def by_kineto(self, case: Case) -> tuple[dict[str, Any], Record]:
        """Profile a case with Kineto in a worker; return (fields of its `Profile`, record)."""
        launch, command = self._under()
        with WorkerProcess(launch, self.slot, self.limits.start_s, self.stopped) as worker:
            keep = str(self._raw(case, ".trace.json.gz"))
            found, record = self._run_case(worker, case, tool="kineto", keep=keep)
        version = str(record.environment.get("software", {}).get("torch", ""))
        return found | {"tools": {"torch.profiler": version}, "commands": [command]}, record

    def by_nsys(self, case: Case) -> tuple[dict[str, Any], Record]:
        """Profile a case in a worker under Nsight Systems; return (fields of its `Profile`, record)."""
        report, database = self._raw(case, ".nsys-rep"), self._raw(case, ".sqlite")
        wrapped, command = self._under(*nsys.command_prefix(report))
        values, record = self._captured(wrapped, case, report)
        _read_by(nsys.export_command(report, database))
        timed, ranged = nsys.read(database)
        run_info, apart = Runs(**values.pop("run_info")), values.pop("apart")
        if apart and not timed:
            raise ProfileError("the report of Nsight Systems has no kernel in the range of the timed runs")
        found = values | profile_fields(timed if apart else ranged, ranged, run_info)
        found["notes"] = [*values["notes"], *found["notes"]]
        return found | {"commands": [command]}, record

    def by_ncu(self, case: Case, stand_in: Case) -> tuple[dict[str, Counters], str]:
        """Run `stand_in` in a worker under Nsight Compute; return ({kernel: counters}, command).

        stand_in: `case`, or a smaller case with the same kernels. The report is named after `case`.
        """
        report = self._raw(case, ".ncu-rep")
        wrapped, command = self._under(*ncu.command_prefix(report, range_names(case.phase)))
        self._captured(wrapped, stand_in, report)
        return ncu.read(_read_by(ncu.import_command(report))), command

    def _under(self, *profiler: str) -> tuple[Launch, str]:
        launch = replace(self.launch, command=[*profiler, *self.launch.command])
        words = [*launch.command, "-m", "harness.worker", launch.entry]
        return launch, shlex.join(_FOLDERS.sub("", word) for word in words)

    def _captured(self, wrapped: Launch, case: Case, report: Path) -> tuple[dict[str, Any], Record]:
        tool, log = wrapped.command[0], report.with_suffix(".log")
        for path in (report, log):
            path.unlink(missing_ok=True)
        with WorkerProcess(wrapped, self.slot, self.limits.start_s, self.stopped) as worker:
            try:
                found, record = self._run_case(worker, case, last=True, tool=tool)
                status = worker.stop(STOP_S)
            except ToolLost as lost:
                raise _tool_error(tool, _read_log(log), str(lost), lost.status) from None
        if status is None:
            raise ToolLost(f"{tool} did not end within {STOP_S:g} s and was killed; try a smaller case", True)
        text = _read_log(log)
        if ncu.NO_PERMISSION in text or status or not report.exists():
            raise _tool_error(tool, text, _ending(status, worker.error_line), "failed")
        return found, record

    def _run_case(
        self, worker: WorkerProcess, case: Case, *, last: bool = False, **arguments: Any
    ) -> tuple[dict[str, Any], Record]:
        policy, limit_s = self.run.file.policy, self.limits.case_s
        try:
            record, found = worker.run_case(case, policy, "profile", limit_s, profiler=arguments, last=last)
        except WorkerLost as lost:
            raise ToolLost(str(lost), status=lost.status) from None
        if record.status != "ok":
            raise ToolLost(record.reason, status=record.status)
        return found, record

    def _raw(self, case: Case, suffix: str) -> Path:
        return (self.run.folder / "profiles" / f"{case.key}{suffix}").resolve()


def _tool_error(tool: str, log: str, otherwise: str, status: str) -> ToolLost:
    if ncu.NO_PERMISSION in log:
        return ToolLost(
            "ncu lacks permission to read the GPU's counters: load the driver with "
            "NVreg_RestrictProfilingToAdminUsers=0, or run as root or in a container with CAP_SYS_ADMIN",
            lasting=True,
            everywhere=True,
        )
    if ncu.NO_KERNELS in log:
        return ToolLost(f"ncu profiled no kernel: it found no range of the case; {_WITHOUT}", lasting=True)
    error_message = ncu.error_message(log)
    advice = {"timeout": _MORE_TIME, "unstarted": _MORE_TIME, "oom": "try a smaller batch"}.get(status, _WITHOUT)
    reason = f"{tool} failed: {error_message or otherwise}; {_WITHOUT if error_message else advice}"
    return ToolLost(reason, lasting=status in ("timeout", "unstarted"), status=status)


def _ending(status: int, error_line: str) -> str:
    name = signal_of(status)
    how = f"it was killed by {name}" if name else f"it exited with status {status}" if status else "it wrote no report"
    return f"{how}: {error_line}" if error_line else how


def _read_by(command: Sequence[str]) -> str:
    output, failure = output_of(command, _READ_S, LC_ALL="C")  # a comma separates thousands only
    if failure:
        words = ncu.error_message(failure) or failure.rpartition("\n")[2]
        raise ProfileError(f"{command[0]} could not read its report: {words}")
    return output


def _read_log(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
