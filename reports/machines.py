"""The machines and software with which the records of a run were measured."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.measure.environment import changes_speed
from harness.schema.record import Record
from reports.words import short_commit

Path = tuple[str, ...]  # the keys of nested objects that lead to a value
Name = tuple[str, str]  # (group, name) of a fact

# Values below these keys are readings, which change from case to case.
_CHANGING = frozenset(("before", "after", "load_1m", "others_share", "idle_share"))
_VERSIONS = {
    "Driver": ("gpu", "driver"),
    "Power limit": ("gpu", "power limit"),
    "CUDA": ("software", "cuda"),
    "torch": ("software", "torch"),
    "vLLM": ("software", "vllm"),
    "mamba-ssm": ("software", "mamba-ssm"),
    "Versions": ("software", "versions"),
}
_UNITS = {"_bytes": ("GB", 1e9), "_mhz": ("MHz", 1), "_c": ("°C", 1), "_w": ("W", 1)}


@dataclass
class Machine:
    """Records that share `facts`, such as one GPU model and driver, or a set of packages.

    records: their number. systems: their (system, backend) pairs.
    seen: for each reading, such as a clock rate, the values seen; keys are paths into the recorded environment.
    """

    facts: dict[str, str]
    records: int = 0
    systems: list[tuple[str, str]] = field(default_factory=list)
    seen: dict[Path, set] = field(default_factory=dict)

    @property
    def readings(self) -> dict[str, str]:
        """The range of each reading before and after the cases, such as a clock rate, by name."""
        return {_name(path): _span(path[-1], values) for path, values in self.seen.items()}


@dataclass
class Machines:
    """The environments in which the records of a run were measured.

    common: {group: {fact: value}} for the facts that all records share.
    hardware: the records grouped by machine, commit and other facts that differ, except packages.
    software: the records grouped by the packages that differ.
    versions: the values of the facts in `_VERSIONS`, by label.
    """

    common: dict[str, dict[str, str]]
    hardware: list[Machine]
    software: list[Machine]
    versions: dict[str, str]


def machines(records: Iterable[Record]) -> Machines:
    """Return the environments of the records, except records without one."""
    read = [(record.case, *_read(record.environment)) for record in records if record.environment]
    values: dict[Name, dict[str, None]] = {}
    for _, facts, _ in read:
        for name, value in facts.items():
            values.setdefault(name, {})[value] = None
    common: dict[str, dict[str, str]] = {}
    for (group, fact), found in values.items():
        if len(found) == 1:
            common.setdefault(group, {})[fact] = next(iter(found))

    def apart(is_software: bool) -> list[Machine]:
        names = [name for name, found in values.items() if len(found) > 1 and (name[0] == "software") == is_software]
        found: dict[tuple, Machine] = {}
        for case, facts, readings in read:
            own = {name[1]: short_commit(facts[name]) for name in names if name in facts}
            machine = found.setdefault(tuple(own.items()), Machine(own))
            machine.records += 1
            if (case.system, case.backend) not in machine.systems:
                machine.systems.append((case.system, case.backend))
            for path, value in readings:
                machine.seen.setdefault(path, set()).add(value)
        return list(found.values())

    versions = {label: " · ".join(filter(None, values.get(name, ()))) for label, name in _VERSIONS.items()}
    versions = {label: said for label, said in versions.items() if said}
    return Machines(common, apart(False), apart(True), versions)


def _read(environment: dict) -> tuple[dict[Name, str], list[tuple[Path, Any]]]:
    """Return what is constant in a case's environment as {(group, name): text}, and what changes as [(path, value)]."""
    facts: dict[Name, str] = {}
    readings = []
    for path, value, changes in _leaves(environment):
        if changes:
            readings.append((tuple(part for part in path if part not in ("before", "after")), value))
            continue
        if path[0] == "variables" and not changes_speed(path[-1]):
            continue
        name, said = (path[0] if len(path) > 1 else "", _name(path[1:] or path)), _said(path[-1], value)
        facts[name] = f"{facts[name]}, {said}" if name in facts else said
    return facts, readings


def _leaves(value: dict, path: Path = (), changing: bool = False) -> Iterator[tuple[Path, Any, bool]]:
    """Yield (path, scalar, whether a `_CHANGING` key is in it); list elements share a path."""
    for name, inner in value.items():
        here, changes = (*path, str(name)), changing or name in _CHANGING
        if isinstance(inner, dict):
            yield from _leaves(inner, here, changes)
        else:
            items = inner if isinstance(inner, list) else [inner]
            yield from ((here, str(item) if isinstance(item, dict | list) else item, changes) for item in items)


def _name(path: Path) -> str:
    unit = next((unit for unit in _UNITS if path[-1].endswith(unit)), "")
    return " ".join((*path[:-1], path[-1].removesuffix(unit))).replace("_", " ")


def _said(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    symbol, scale = next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), ("", 1))
    number = value if scale == 1 else value / scale
    return f"{number:.4g} {symbol}".strip() if isinstance(number, float) else f"{number} {symbol}".strip()


def _span(name: str, values: set) -> str:
    numbers = sorted(value for value in values if isinstance(value, int | float) and not isinstance(value, bool))
    words = sorted(_said(name, value) for value in values if isinstance(value, str | bool))
    ends = [_said(name, number) for number in dict.fromkeys((numbers[0], numbers[-1]))] if numbers else []
    return ", ".join(filter(None, [" to ".join(ends), *words]))
