"""On which machines, and with which software, were the records taken?"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.schema.record import Record
from reports.commits import short_commit

Path = tuple[str, ...]

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
    """Records that agree in `facts`, by name. `systems`: theirs, each with its backend.

    readings: values read before and after each case (clocks, temperature, power, load). Numbers show the lowest and
    highest value, words all values.
    """

    facts: dict[str, str]
    systems: list[tuple[str, str]] = field(default_factory=list)
    records: int = 0
    readings: dict[str, str] = field(default_factory=dict)


@dataclass
class Machines:
    """The environments of a run. common: the facts that all records that state them agree in, by group and name.

    places: the machines and commits; software: the sets of packages. Each names only the facts that differ.
    versions: the distinct values of the facts that identify a run, by name.
    """

    common: dict[str, dict[str, str]]
    places: list[Machine]
    software: list[Machine]
    versions: dict[str, str]


def machines(records: Iterable[Record]) -> Machines:
    """The environments of the records, in order of appearance; records without one are left out."""
    alike: dict[tuple, list[Record]] = {}
    readings: dict[tuple, dict[Path, set]] = {}
    for record in records:
        if record.environment:
            changed: list[tuple[Path, Any]] = []
            key = _split(record.environment, (), changed)
            alike.setdefault(key, []).append(record)
            seen = readings.setdefault(key, {})
            for path, value in changed:
                # Before and after are one span: over many cases it matters little which of them a reading is.
                seen.setdefault(tuple(part for part in path if part not in ("before", "after")), set()).add(value)
    facts = {key: _facts(group[0].environment) for key, group in alike.items()}
    names = dict.fromkeys(place for each in facts.values() for place in each)
    values = {place: dict.fromkeys(each[place] for each in facts.values() if place in each) for place in names}
    common: dict[str, dict[str, str]] = {}
    for (group, name), found in values.items():
        if len(found) == 1:
            common.setdefault(group, {})[name] = next(iter(found))

    def apart(is_software: bool) -> list[Machine]:
        found: dict[tuple, Machine] = {}
        spans: dict[tuple, dict[Path, set]] = {}
        for key, group in alike.items():
            own = {
                place[1]: short_commit(value)
                for place, value in facts[key].items()
                if len(values[place]) > 1 and (place[0] == "software") == is_software
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

    versions = {label: " · ".join(filter(None, values.get(place, ()))) for label, place in _VERSIONS.items()}
    versions = {label: said for label, said in versions.items() if said}
    return Machines(common, apart(False), apart(True) if alike else [], versions)


def _split(value: dict, path: Path, readings: list[tuple[Path, Any]]) -> tuple:
    """What of nested objects does not change by itself, as a key; (path, scalar) of what does goes to `readings`.

    The order of names tells no two apart. Long flat objects, such as the packages, become a key at once.
    """
    if _CHANGING.isdisjoint(value):
        flat = tuple(sorted(value.items()))
        try:
            hash(flat)
        except TypeError:  # an object or a list is in it
            pass
        else:
            return flat
    key: list[tuple[str, Any]] = []
    for name, inner in value.items():
        if name in _CHANGING:
            readings.extend((here, reading) for here, reading, _ in _leaves({name: inner}, path))
        elif isinstance(inner, dict):
            key += [(name, _split(inner, (*path, name), readings))] if inner else []
        elif inner != []:
            key.append((name, repr(inner) if isinstance(inner, list) else inner))
    return tuple(sorted(key))


def _leaves(value: dict, path: Path = (), changing: bool = False) -> Iterator[tuple[Path, Any, bool]]:
    """(path, scalar, whether it changes by itself) for every value of nested objects and lists."""
    for name, inner in value.items():
        here, changes = (*path, str(name)), changing or name in _CHANGING
        if isinstance(inner, dict):
            yield from _leaves(inner, here, changes)
        else:
            items = inner if isinstance(inner, list) else [inner]
            yield from ((here, str(item) if isinstance(item, dict | list) else item, changes) for item in items)


def _facts(environment: dict) -> dict[tuple[str, str], str]:
    """What does not change by itself, by group ("" for the top) and name."""
    found: dict[tuple[str, str], str] = {}
    for path, value, changing in _leaves(environment):
        if changing:
            continue
        place, said = (path[0] if len(path) > 1 else "", _name(path[1:] or path)), _said(path[-1], value)
        found[place] = f"{found[place]}, {said}" if place in found else said
    return found


def _name(path: Path) -> str:
    """A path in words, without the unit, which stands with the value."""
    unit = next((unit for unit in _UNITS if path[-1].endswith(unit)), "")
    return " ".join((*path[:-1], path[-1].removesuffix(unit))).replace("_", " ")


def _said(name: str, value: Any) -> str:
    """A value in words: numbers with the unit that ends their name."""
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
