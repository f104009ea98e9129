"""The machines and software that the records ran on."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from harness.schema.record import Record
from reports.words import short_commit

Path = tuple[str, ...]
Name = tuple[str, str]

_CHANGING = frozenset(("before", "after", "load_1m", "others_share", "idle_share"))
_VERSIONS = {
    "Driver": ("gpu", "driver"),
    "Power limit": ("gpu", "power limit"),
    "CUDA": ("software", "cuda"),
    "torch": ("software", "torch"),
    "vLLM": ("software", "vllm"),
    "mamba-ssm": ("software", "mamba-ssm"),
}
_UNITS = {"_bytes": ("GB", 1e9), "_mhz": ("MHz", 1), "_c": ("°C", 1), "_w": ("W", 1)}


@dataclass
class Machine:
    """Records that agree in `facts`. systems: (system, backend) of each.

    readings: values read before and after each case, such as clocks; the range of numbers, or all words.
    """

    facts: dict[str, str]
    systems: list[tuple[str, str]] = field(default_factory=list)
    records: int = 0
    readings: dict[str, str] = field(default_factory=dict)


@dataclass
class Machines:
    """The environments of a run.

    common: the facts without two values, by group and name. `places`: the machines and commits; software: the sets of
    packages; each names only the facts that differ. versions: the values of the facts in `_VERSIONS`.
    """

    common: dict[str, dict[str, str]]
    places: list[Machine]
    software: list[Machine]
    versions: dict[str, str]


def machines(records: Iterable[Record]) -> Machines:
    """The environments of the records, in order of appearance; records without one are left out."""
    alike: dict[tuple, list[Record]] = {}
    readings: dict[tuple, dict[Path, set]] = {}
    facts: dict[tuple, dict[Name, str]] = {}
    for record in records:
        if record.environment:
            leaves = list(_leaves(record.environment))
            fixed = [(path, value) for path, value, changes in leaves if not changes]
            key = tuple(sorted(fixed, key=itemgetter(0)))
            if key not in facts:
                facts[key] = _facts(fixed)
            alike.setdefault(key, []).append(record)
            seen = readings.setdefault(key, {})
            for path, value, changes in leaves:
                if changes:  # before and after are one span
                    seen.setdefault(tuple(part for part in path if part not in ("before", "after")), set()).add(value)
    values: dict[Name, dict[str, None]] = {}
    for own in facts.values():
        for name, value in own.items():
            values.setdefault(name, {})[value] = None
    common: dict[str, dict[str, str]] = {}
    for fact, found in values.items():
        if len(found) == 1:
            common.setdefault(fact[0], {})[fact[1]] = next(iter(found))

    def apart(is_software: bool) -> list[Machine]:
        found: dict[tuple, Machine] = {}
        spans: dict[tuple, dict[Path, set]] = {}
        for key, group in alike.items():
            own = {
                name[1]: short_commit(value)
                for name, value in facts[key].items()
                if len(values[name]) > 1 and (name[0] == "software") == is_software
            }
            at = tuple(sorted(own.items()))
            machine = found.setdefault(at, Machine(own))
            machine.records += len(group)
            pairs = ((record.case.system, record.case.backend) for record in group)
            machine.systems = list(dict.fromkeys([*machine.systems, *pairs]))
            for path, read in readings[key].items():
                spans.setdefault(at, {}).setdefault(path, set()).update(read)
        for at, machine in found.items():
            machine.readings = {_name(path): _span(path[-1], read) for path, read in spans.get(at, {}).items()}
        return list(found.values())

    versions = {label: " · ".join(filter(None, values.get(name, ()))) for label, name in _VERSIONS.items()}
    versions = {label: said for label, said in versions.items() if said}
    return Machines(common, apart(False), apart(True) if alike else [], versions)


def _leaves(value: dict, path: Path = (), changing: bool = False) -> Iterator[tuple[Path, Any, bool]]:
    """(path, scalar, whether it is a reading) for every value of nested objects and lists."""
    for name, inner in value.items():
        here, changes = (*path, str(name)), changing or name in _CHANGING
        if isinstance(inner, dict):
            yield from _leaves(inner, here, changes)
        else:
            items = inner if isinstance(inner, list) else [inner]
            yield from ((here, str(item) if isinstance(item, dict | list) else item, changes) for item in items)


def _facts(leaves: Iterable[tuple[Path, Any]]) -> dict[Name, str]:
    """The facts in words by (group, name); the group of a top-level fact is ""."""
    found: dict[Name, str] = {}
    for path, value in leaves:
        name, said = (path[0] if len(path) > 1 else "", _name(path[1:] or path)), _said(path[-1], value)
        found[name] = f"{found[name]}, {said}" if name in found else said
    return found


def _name(path: Path) -> str:
    """A path in words, without the unit."""
    unit = next((unit for unit in _UNITS if path[-1].endswith(unit)), "")
    return " ".join((*path[:-1], path[-1].removesuffix(unit))).replace("_", " ")


def _said(name: str, value: Any) -> str:
    """A value in words, with the unit that ends its name."""
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
