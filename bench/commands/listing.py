"""`ttt-bench list`: print the suites and the systems."""

from bench.catalogue.suites import GROUPS, SUITES
from bench.catalogue.systems import ADAPTERS
from bench.environments import launch_notes, no_interpreter, worker_launches
from bench.errors import CANNOT_IMPORT
from bench.terminal import note, print_rows
from harness.measure.environment import against_lock
from harness.workers.process import probe


def list_systems() -> None:
    """Print a table of systems: package versions, or the reason why one cannot run here."""
    note("importing each system's packages takes a few seconds")
    note(*launch_notes({adapter.label for adapter in ADAPTERS}))
    starts = worker_launches()
    found = probe([starts[adapter.system, adapter.backend] for adapter in ADAPTERS])
    rows = []
    for adapter, answer in zip(ADAPTERS, found, strict=True):
        launch, software = starts[adapter.system, adapter.backend], answer.environment.get("software", {})
        versions = [f"{name} {x}" for name, x in {"torch": software.get("torch", ""), **answer.versions}.items() if x]
        locked = against_lock(software, launch.locked)
        words = ", ".join(filter(None, [*versions, locked]))
        if not answer.available:
            lacking = CANNOT_IMPORT in answer.reason or no_interpreter(launch)
            words = answer.reason + (f" (install: {adapter.install})" if lacking else "")
        rows.append((adapter.label, "yes" if answer.available else "no", words))
    rows.sort(key=lambda row: row[1] == "no")
    print_rows(("system", "runs here", "versions or reason"), rows)


def list_suites() -> None:
    """Print each suite and group, with the question it answers and the device it needs."""
    rows = [(suite.name, suite.device or "any", suite.question) for suite in SUITES]
    rows += [(group.name, "cuda", f"{group.question}: {', '.join(group.suites)}") for group in GROUPS.values()]
    print_rows(("suite", "device", "question"), rows)
