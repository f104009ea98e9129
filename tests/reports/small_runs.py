"""Build small runs of made-up records: a few cases whose times a test gives."""

from dataclasses import replace
from pathlib import Path

from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.policy import Policy
from harness.schema.record import Record
from harness.schema.run import Run
from harness.schema.run_file import PastRequest, Planned, RunFile, jobs_of


def a_case(context=64, system="ttt-linear", **changes):
    fields = {"backend": "torch", "size": "tiny", "phase": "forward", "batch": 2}
    return Case(system, context=context, **(fields | changes))


def on_gpu(name="H100", driver="580", commit="a" * 40, unit="12345678", throttled=(), **changes):
    gpu = {"name": name, "driver": driver, "device_id": unit, "after": {"throttle_reasons": list(throttled)}}
    software = {"python": "3.12", "torch": "2.11"}
    return {
        "device": name,
        "device_kind": "cuda",
        "gpu": gpu,
        "cpu": {},
        "software": software,
        "commit": commit,
    } | changes


def on_commit(letter, **changes):
    return on_gpu(commit=letter * 40, **changes)


def on_cpu(model="Xeon", cores=16):
    return {"device": model, "device_kind": "cpu", "gpu": None, "cpu": {"model": model, "cores": cores}}


def timed(case, ms, environment=None, repeat=0, samples=9, at="2026-11-21T04:50:14+00:00", tokens=0):
    return Record(
        case,
        "ok",
        samples_ms=[ms * (1 + 0.001 * (number - samples // 2)) for number in range(samples)],
        throttled=[False] * samples,
        tokens=tokens,
        environment=environment or on_gpu(),
        started_at=at,
        repeat=repeat,
    )


def without(case, status="failed", reason="RuntimeError: no"):
    return Record(case, status, reason, environment=on_gpu())


def a_run(
    folder: Path,
    *records,
    repeats=1,
    arguments=("run",),
    at="2026-11-21T04:50:00+00:00",
    mode="measure",
    catalogue=Catalogue(),  # noqa: B008
):
    jobs = jobs_of(Planned(record.case) for record in records)
    request = PastRequest(at, tuple(arguments), "a" * 40, False, {})
    run = Run.create(folder, RunFile(mode, "cuda", jobs, catalogue, Policy(), repeats, (request,)))
    for job in jobs:
        own = (record for record in records if (record.case.system, record.case.backend) == job.pair)
        run.record_file(job).path.write_text("".join(f"{record.to_json()}\n" for record in own), "utf-8")
    return run


def two(folder, of_a, of_b, **options):
    of_b = [replace(record, started_at=record.started_at.replace("T04:", "T05:")) for record in of_b]
    return a_run(folder / "a", *of_a, **options), a_run(folder / "b", *of_b, **options)
