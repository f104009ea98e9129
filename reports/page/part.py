"""Pages that show only some systems of a run: which cases they show, and the notice about the hidden cases."""

from collections.abc import Iterable, Sequence

from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.reason import counted
from reports.words import listed


def is_of(case: Case, systems: Sequence[str]) -> bool:
    """Return whether a case belongs to one of `systems`, each NAME or NAME/BACKEND; true if the list is empty."""
    return not systems or case.system in systems or case.system_backend in systems


def part_of(cases: Iterable[Case], systems: Sequence[str], catalogue: Catalogue) -> str:
    """Return the notice that a page shows only `systems`; "" if that hides none of the run's `cases`."""
    others = len({case.key for case in cases if not is_of(case, systems)})
    names = [_name(system, catalogue) for system in dict.fromkeys(systems)]
    shown = f"Only {listed(names)} {'is' if len(names) == 1 else 'are'} shown"
    return f"{shown}; the run has {counted(others, 'other case')}." if others else ""


def _name(system: str, catalogue: Catalogue) -> str:
    name, _, backend = system.partition("/")
    label = catalogue.system_label(name)
    return f"{label} on {catalogue.backend_label(backend)}" if backend else label
