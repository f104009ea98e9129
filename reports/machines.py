"""The machines, software and settings with which the records of a run were measured."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.schema.record import Record
from reports.words import short_commit

Name = tuple[str, str]  # (group, name) of a fact

# Keys of readings, such as the load, which change from case to case.
_READINGS = frozenset(("before", "after", "load_1m", "others_share", "idle_share"))
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
_MAX_VALUES = 3  # a setting with more values depends on the case; only their number is shown
# Settings that the page shows elsewhere.
_ELSEWHERE = {
    *("weights_dtype", "token_ids", "kept_between_samples", "check_limits", "warning", "kernels"),
    *("prompt_tokens", "prompt", "checked", "input_sets", "form_trials"),
    *("budget_s", "min_samples", "max_samples", "warmup_s"),
}


@dataclass
class Machines:
    """The environments and settings with which the records of a run were measured.

    common: {group, such as "gpu": {fact: value}} of the facts that have a single value in the run.
    hardware: ({fact: value}, number of records) per machine; only facts that differ, without package versions.
    backends: {(system, backend): {name: values in words}} for settings and for packages whose versions differ.
    versions: {label: values in words} of the driver, the power limit and the main packages.
    """

    common: dict[str, dict[str, str]] = field(default_factory=dict)
    hardware: list[tuple[dict[str, str], int]] = field(default_factory=list)
    backends: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def machines(records: Iterable[Record]) -> Machines:
    read = [(record, _facts(record.environment)) for record in records]
    values: dict[Name, dict[str, None]] = {}
    for _, facts in read:
        for name, value in facts.items():
            values.setdefault(name, {})[value] = None
    found = Machines()
    for (group, fact), distinct in values.items():
        if len(distinct) == 1:
            found.common.setdefault(group, {})[fact] = next(iter(distinct))
    counts: Counter[tuple[Name, ...]] = Counter()
    backends: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for record, facts in read:
        differing = {name: short_commit(value) for name, value in facts.items() if len(values[name]) > 1}
        machine = tuple((fact, value) for (group, fact), value in differing.items() if group != "software")
        if facts:
            counts[machine] += 1
        own = {name.replace("_", " "): value for name, value in record.settings.items() if name not in _ELSEWHERE}
        own |= {fact: value for (group, fact), value in differing.items() if group == "software"}
        backend = backends.setdefault((record.case.system, record.case.backend), {})
        for setting, value in own.items():
            if value:
                backend.setdefault(setting, {})[value] = None
    found.hardware = [(dict(machine), count) for machine, count in counts.items()]
    found.backends = {
        pair: {
            name: " or ".join(values) if len(values) <= _MAX_VALUES else f"{len(values)} case-dependent values"
            for name, values in own.items()
        }
        for pair, own in backends.items()
        if own
    }
    versions = {label: " · ".join(filter(None, values.get(name, ()))) for label, name in _VERSIONS.items()}
    found.versions = {label: text for label, text in versions.items() if text}
    return found


def _facts(environment: Mapping[str, Any]) -> dict[Name, str]:
    """Return {(group, name): value in words} of an environment, without readings such as load."""
    facts: dict[Name, str] = {}
    for path, value in _leaves(environment):
        if _READINGS.intersection(path):
            continue
        *groups, last = path[1:] or path
        unit = next((unit for unit in _UNITS if last.endswith(unit)), "")
        named = " ".join([*groups, last.removesuffix(unit)])
        named = named if path[0] == "variables" else named.replace("_", " ")
        name, text = (path[0] if len(path) > 1 else "", named), _text(value, unit)
        facts[name] = f"{facts[name]}, {text}" if name in facts else text
    return facts


def _leaves(value: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (path of keys, scalar) for scalars in nested dicts; a list's elements share a path."""
    for name, inner in value.items():
        here = (*path, str(name))
        if isinstance(inner, dict):
            yield from _leaves(inner, here)
        else:
            yield from ((here, item) for item in (inner if isinstance(inner, list) else [inner]))


def _text(value: Any, unit: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    symbol, scale = _UNITS.get(unit, ("", 1))
    number = value if scale == 1 else value / scale
    return f"{number:.4g} {symbol}".strip() if isinstance(number, float) else f"{number} {symbol}".strip()
