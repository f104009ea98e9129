"""Pages of only some systems of a run: their cases, and the notice on hidden cases."""

from collections.abc import Iterable, Sequence

from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.reason import counted
from reports.words import listed


def is_of(case: Case, systems: Sequence[str]) -> bool:
    """Whether a case is of `systems`, each NAME or NAME/BACKEND; true for an empty list."""
    return not systems or case.system in systems or case.system_backend in systems


def part_of(cases: Iterable[Case], systems: Sequence[str], catalogue: Catalogue) -> str:
    """Return the notice that a page shows only `systems`; "" if it hides no case."""
    others = len({case.key for case in cases if not is_of(case, systems)})
    names = [_name(system, catalogue) for system in dict.fromkeys(systems)]
    shown = f"Only {listed(names)} {'is' if len(names) == 1 else 'are'} shown"
    return f"{shown}; the run has {counted(others, 'other case')}." if others else ""


def _name(system: str, catalogue: Catalogue) -> str:
    name, _, backend = system.partition("/")
    label = catalogue.system_label(name)
    return f"{label} on {catalogue.backend_label(backend)}" if backend else label
