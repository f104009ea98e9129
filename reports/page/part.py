"""What does a page say that shows only some systems of its run?"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.reason import counted
from reports.words import listed


@dataclass(frozen=True)
class Part:
    """The shown systems, each NAME or NAME/BACKEND; their names in words; how many other cases the run has."""

    systems: tuple[str, ...]
    names: str
    others: int

    @property
    def notice(self) -> str:
        """What the reader must know first."""
        is_one = len(self.systems) == 1
        has = f"the run has {counted(self.others, 'other case')}"
        return f"Only {self.names} {'is' if is_one else 'are'} shown; {has}."

    @property
    def key(self) -> str:
        """What sets a citation's key apart from that of the whole run: letters, digits and hyphens."""
        return "-".join(re.sub(r"[^A-Za-z0-9]+", "-", system) for system in self.systems)


def is_of(case: Case, systems: Sequence[str]) -> bool:
    """Whether a case is of these systems, each NAME or NAME/BACKEND; of none: of all."""
    return not systems or case.system in systems or case.system_backend in systems


def part_of(cases: Iterable[Case], systems: Sequence[str], catalogue: Catalogue) -> Part | None:
    """What `systems` are of a run with these cases; None where they are all of it."""
    others = len({case.key for case in cases if not is_of(case, systems)})
    if not others:
        return None
    distinct = tuple(dict.fromkeys(systems))
    return Part(distinct, listed([_name(system, catalogue) for system in distinct]), others)


def _name(system: str, catalogue: Catalogue) -> str:
    name, _, backend = system.partition("/")
    label = catalogue.system_label(name)
    return f"{label} on {catalogue.backend_label(backend)}" if backend else label
