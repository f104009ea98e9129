"""Build profiles from a test's `Kernel` objects (by default, two), and runs that contain these profiles."""

from pathlib import Path

from harness.schema.case import Case
from harness.schema.catalogue import BackendEntry, Catalogue, SystemEntry
from harness.schema.policy import Policy
from harness.schema.profile import Counters, Kernel, Profile, write_profile
from harness.schema.record import Record
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned, RunFile
from reports.profiles.section import Section, section

CATALOGUE = Catalogue((SystemEntry("ttt", "TTT <b>", 0, "circle"),), (BackendEntry("fast", "the fast one", "solid"),))
COUNTERS = Counters(2, 9.0, 1e7, None, 1e9, {"sm": 44.0, "tensor": 33.0}, 61.0, 72.0, {"barrier": 0.5, "selected": 0.2})


def case(system: str = "ttt", batch: int = 1) -> Case:
    return Case(system, "fast", "1.3b", "forward", batch, 2048)


def profile(of: Case, *kernels: Kernel, **changes: object) -> Profile:
    kernels = kernels or (Kernel("nvjet<script>", 4, 60.0, 168, 4096, COUNTERS), Kernel("_dual", 2, 30.0))
    busy = sum(kernel.time_us for kernel in kernels)
    values = {"units": 2, "region_us": busy + 10, "busy_us": busy, "kernels": kernels, "tools": {"nsys": "2025"}}
    return Profile(case=of, **(values | {"peaks": {"copy_gbs": 3e3, "product_tflops": 6e2}} | changes))


def run_with(folder: Path, *profiles: Profile) -> Run:
    cases = [case(), case("ttt", 16)]
    job = Job("ttt", "fast", tuple(Planned(each) for each in cases))
    other = Job("mamba", "fast", (Planned(case("mamba")),))
    folder.mkdir(exist_ok=True)
    run = Run.create(folder / f"{folder.name}-run", RunFile("measure", "cuda", (job, other), CATALOGUE, Policy()))
    file = run.record_file(job)
    file.append(Record(case(), "ok", samples_ms=[0.049, 0.05, 0.051], throttled=[False] * 3, stop="count"))
    for each in profiles:
        write_profile(run.folder, each)
    return run


def section_of(run: Run) -> Section | None:
    return section(run.records(), run.profiles().values(), run.catalogue)
