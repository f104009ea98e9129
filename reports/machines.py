"""On which machines, and with which software, were the records taken?"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.schema.record import Record
from reports.commits import short_commit

Path = tuple[str, ...]

_CHANGING = frozenset(("before", "after", "load_1m", "others_share", "idle_share"))
_ABSENT = "–"
_UNITS = {"_bytes": ("GB", 1e9), "_mhz": ("MHz", 1), "_c": ("°C", 1), "_w": ("W", 1)}


@dataclass
class Machine:
    """Records whose environment agrees in everything that does not change by itself.

    `facts` is what they share, by group ("" for the top, "gpu", "cpu", "software") and name. `readings` is
    what was read before and after each case (clocks, temperature, power, load): for numbers the lowest and
    highest, for words all that were seen. `systems` are those of the records,
    each with its backend. `apart` is what sets it apart from others of its name, in words.
    """

    facts: dict[str, dict[str, str]]
    readings: dict[str, str] = field(default_factory=dict)
    systems: list[tuple[str, str]] = field(default_factory=list)
    records: int = 0
    apart: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.facts.get("", {}).get("device") or "device not recorded"


def machines(records: Iterable[Record]) -> list[Machine]:
    """The distinct machines of the records, in order of appearance; records without an environment are left out."""
    alike: dict[tuple, list[Record]] = {}
    readings: dict[tuple, dict[Path, set]] = {}
    for record in records:
        if record.environment:
            changed: list[tuple[Path, Any]] = []
            key = _split(record.environment, (), changed)
            alike.setdefault(key, []).append(record)
            seen = readings.setdefault(key, {})
            for path, value in changed:
                seen.setdefault(path, set()).add(value)
    found = [_machine(group, readings[key]) for key, group in alike.items()]
    for machine in found:
        machine.apart = _apart(machine, [other for other in found if other.name == machine.name])
    return found


def _apart(machine: Machine, alike: list[Machine]) -> list[str]:
    """Its facts that are not the same in all of `alike`: `torch 2.10`; if it has none of them what it lacks, as "–"."""
    places = dict.fromkeys((group, name) for each in alike for group, facts in each.facts.items() for name in facts)
    differing = [place for place in places if len({_fact(each, *place) for each in alike}) > 1]
    found = [(name, short_commit(_fact(machine, group, name))) for group, name in differing]
    present = [(name, fact) for name, fact in found if fact != _ABSENT]
    return [f"{name} {fact}" for name, fact in present or found]


def _fact(machine: Machine, group: str, name: str) -> str:
    return machine.facts.get(group, {}).get(name) or _ABSENT


def _machine(records: list[Record], readings: dict[Path, set]) -> Machine:
    """Before and after are one span: which of them a reading was taken at matters little over many cases."""
    spans: dict[Path, set] = {}
    for path, values in readings.items():
        spans.setdefault(tuple(part for part in path if part not in ("before", "after")), set()).update(values)
    return Machine(
        facts=_by_group(records[0].environment),
        readings={_name(path): _span(path[-1], values) for path, values in spans.items()},
        systems=list(dict.fromkeys((record.case.system, record.case.backend) for record in records)),
        records=len(records),
    )


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


def _by_group(environment: dict) -> dict[str, dict[str, str]]:
    groups: dict[str, dict[str, str]] = {}
    for path, value, changing in _leaves(environment):
        if changing:
            continue
        group = groups.setdefault(path[0] if len(path) > 1 else "", {})
        name, said = _name(path[1:] or path), _said(path[-1], value)
        group[name] = f"{group[name]}, {said}" if name in group else said
    return groups


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
