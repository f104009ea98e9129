"""Read records of schema 1, one file a suite, into a run.

What changed: a case no longer names its suite, nor options at their default; a replayed prefill is a case of timing
"graph" and a case of an engine one of timing "engine", whose stopping rule schema 1 did not keep.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.catalogue import catalogue
from bench.catalogue.metrics import OPTION_DEFAULTS
from bench.catalogue.suites import SUITES
from bench.catalogue.systems import ADAPTERS
from bench.plan import jobs_of
from harness.case import Case, CaseError, Device
from harness.catalogue import SuiteEntry
from harness.files import listed, refusing
from harness.record import Record, RecordError
from harness.run import Run
from harness.run_file import Planned, RunFile

_REPLAYED = "the prefill is replayed from a CUDA graph"
_DROPPED_SETTINGS = ("mode", "launch")
_ENGINES = {(adapter.system, adapter.backend) for adapter in ADAPTERS if adapter.engine}


def imported(old: Sequence[Path], out: Path) -> Run:
    """The run in `out` with the records of files, or folders of files, of schema 1.

    Of a case's several the last is kept, one with a result before one without. Raises RecordError, and writes nothing,
    where a line is no record of schema 1 or not of a measurement; a torn last line of a file is left out.
    """
    suites: dict[str, dict[str, None]] = {}
    latest: dict[str, Record] = {}
    for where, values in _lines(old):
        suite, record = _converted(where, values)
        suites.setdefault(suite, {})[record.case.key] = None
        earlier = latest.get(record.case.key)
        if earlier is None or _rank(record) >= _rank(earlier):
            latest[record.case.key] = record
    if not latest:
        raise RecordError(f"no records in {', '.join(map(str, old))}")
    entries = tuple(_entry(name, keys) for name, keys in suites.items())
    try:
        jobs = jobs_of(Planned(record.case) for record in latest.values())
        whole = RunFile("measure", _device(latest.values()), jobs, catalogue(entries))
    except ValueError as error:  # of names of systems that cannot be those of files
        raise RecordError(f"{', '.join(map(str, old))}: {error}") from None
    found = Run(out, whole)
    for job in jobs:
        for planned in job.cases:
            if why := found.foreign(latest[planned.case.key], job):
                raise RecordError(f"{planned.case.label}: {why}")
    run = Run.create(out, whole)
    for job in jobs:
        with run.record_file(job) as file:
            for planned in job.cases:
                file.append(latest[planned.case.key])
    return run


def _device(records: Iterable[Record]) -> Device:
    """The kind of device that the records are of, a GPU where none says; ValueError where they are of both."""
    said = [record.environment.get("device_kind") for record in records]
    kinds = {kind for kind in ("cpu", "cuda") if kind in said}
    if len(kinds) > 1:
        raise ValueError("records of a CPU and of a GPU are two runs; import each by itself")
    return "cpu" if "cpu" in kinds else "cuda"


def _rank(record: Record) -> tuple[bool, str]:
    return record.status == "ok", record.started_at


def _entry(name: str, keys: Iterable[str]) -> SuiteEntry:
    suite = next((each for each in SUITES if each.name == name), None)
    return SuiteEntry(name, suite.question if suite else "", suite.figures if suite else (), tuple(keys))


def _lines(old: Sequence[Path]) -> Iterator[tuple[str, Any]]:
    for place in old:
        if not place.exists():
            raise RecordError(f"{place}: no such file or folder")
        if Run.exists(place):
            raise RecordError(f"{place}: is a run already; import makes one of records that an earlier version wrote")
        for path in _record_files(place) if place.is_dir() else [place]:
            with refusing(path, "read", RecordError):
                lines = path.read_bytes().splitlines()
            for number, line in enumerate(lines, start=1):
                where = f"{path}, line {number}"
                try:
                    yield where, json.loads(line)
                except (ValueError, RecursionError):
                    if number == len(lines) and number > 1 and not line.endswith(b"}"):
                        continue  # it was being written when its process ended
                    raise RecordError(f"{where}: is not JSON") from None


def _record_files(folder: Path) -> list[Path]:
    inner = [file for each in listed(folder) if each.is_dir() for file in _record_files(each)]
    return sorted([*listed(folder, "*.jsonl"), *inner])


def _converted(where: str, values: Any) -> tuple[str, Record]:
    """(suite, the record in today's schema)."""
    if not isinstance(values, Mapping) or values.get("schema") != 1:
        raise RecordError(f"{where}: is no record of schema 1")
    if not all(isinstance(values.get(name) or {}, Mapping) for name in ("case", "settings")):
        raise RecordError(f"{where}: its case or its settings are no object")
    if "plain" in values:
        raise RecordError(f"{where}: has a field 'plain', which no record has")
    case, settings = dict(values.get("case") or {}), dict(values.get("settings") or {})
    suite, options = str(case.pop("suite", None) or ""), case.get("options") or {}
    if not isinstance(options, Mapping):
        raise RecordError(f"{where}: the options of its case are no object")
    case["options"] = {name: value for name, value in options.items() if OPTION_DEFAULTS.get(name) != value}
    if settings.get("mode", "measure") != "measure":
        raise RecordError(f"{where}: is of mode {settings['mode']!r}, and no measurement")
    if not all(isinstance(case.get(name, ""), str) for name in ("system", "backend")):
        raise RecordError(f"{where}: its system or its backend is no text")
    if values.get("stop") == "engine" or (case.get("system"), case.get("backend")) in _ENGINES:
        case["timing"] = "engine"
    elif settings.get("launch") == _REPLAYED:
        case["timing"] = "graph"
    rest = {name: value for name, value in values.items() if name not in ("schema", "case", "settings", "stop")}
    stop = "" if values.get("stop") == "engine" else values.get("stop", "")
    kept = {name: value for name, value in settings.items() if name not in _DROPPED_SETTINGS}
    try:
        return suite, Record(case=Case.from_dict(case), settings=kept, stop=stop, **rest)
    except (CaseError, RecordError, TypeError) as error:
        raise RecordError(f"{where}: {error}") from None
