"""Record a GPU's kernel launches, or a CPU's operator calls, with torch.profiler (Kineto)."""

import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harness.measure.cuda_clock import wait_for
from harness.measure.ranges import recorded
from harness.profiling.tools.trace import Launched, Span, paths_at, serialized

_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH = ("cuda_runtime", "cuda_driver")


@contextmanager
def recording(
    device: str, with_ranges: bool, keep: Path | None = None, before: Callable[[], object] | None = None
) -> Iterator[list[Launched]]:
    """Record the block with torch.profiler; then fill the yielded list with its launches.

    device: "cuda" for launches on the GPU, "cpu" for operators. with_ranges: record `nvtx_range` too, which is slower.
    keep: path for the compressed trace, for a viewer such as Perfetto; None to discard the trace.
    before: called before the block, with the profiler on but not recording.
    """
    from torch.profiler import ProfilerActivity, profile, schedule

    # A graph's kernels are lost if CUPTI is torn down between two recordings.
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    activities = [ProfilerActivity.CUDA] if device == "cuda" else []
    if with_ranges or device == "cpu":
        activities.append(ProfilerActivity.CPU)
    found: list[Launched] = []
    plan = schedule(wait=0, warmup=1, active=1) if before else None
    with recorded(with_ranges), profile(activities=activities, schedule=plan) as profiler:
        if before:
            before()
            profiler.step()
        yield found
        wait_for(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        text = path.read_bytes()
    if keep is not None:
        with suppress(OSError):  # the worker's container may lack that folder
            keep.write_bytes(gzip.compress(text, compresslevel=3, mtime=0))
    found += operators(profiler.events()) if device == "cpu" else launched(events_of(text))


def events_of(text: bytes) -> list[Mapping[str, Any]]:
    """Return a JSON trace's events; invalid UTF-8 and control characters in names are accepted."""
    events: list[Mapping[str, Any]] = json.loads(text.decode(errors="replace"), strict=False)["traceEvents"]
    return events


def launched(events: Iterable[Mapping[str, Any]]) -> list[Launched]:
    """Return the launches of kernels, copies and fills among a trace's events, sorted by start."""
    complete = [event for event in events if event.get("ph") == "X"]
    ranges = [
        Span(event["name"], event["tid"], event["ts"], event["ts"] + event["dur"])
        for event in complete
        if event.get("cat") == "user_annotation"
    ]
    launches = {e["args"]["correlation"]: e for e in complete if e.get("cat") in _LAUNCH and "correlation" in e["args"]}
    kernels = [event for event in complete if event.get("cat") in _ON_DEVICE]
    # A kernel without a recorded launch has no thread, and so no ranges.
    hosts = [launches.get(event["args"].get("correlation")) for event in kernels]
    moments = [(host["tid"], host["ts"]) if host else (None, 0.0) for host in hosts]
    return serialized(
        Launched(
            event["name"],
            event["ts"],
            event["ts"] + event["dur"],
            event["dur"],
            path,
            event["args"].get("registers per thread"),
            event["args"].get("shared memory"),
            (event["args"].get("device"), event["args"]["stream"]) if "stream" in event["args"] else None,
        )
        for event, path in zip(kernels, paths_at(ranges, moments), strict=True)
    )


def operators(events: Iterable[Any]) -> list[Launched]:
    """Return the CPU operator calls among `torch.profiler.profile.events()`."""
    every = list(events)
    calls = [event for event in every if not event.is_user_annotation]
    ranges = [Span(e.name, e.thread, e.time_range.start, e.time_range.end) for e in every if e.is_user_annotation]
    paths = paths_at(ranges, ((call.thread, call.time_range.start) for call in calls))
    return [
        Launched(call.name, call.time_range.start, call.time_range.end, max(0.0, call.self_cpu_time_total), path)
        for call, path in zip(calls, paths, strict=True)
    ]
