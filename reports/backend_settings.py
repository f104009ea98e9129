"""The recorded settings of each backend."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from harness.schema.record import Record

_MOST = 3  # values of a setting that are listed; more depend on the case
# Shown elsewhere on the page.
_ELSEWHERE = {
    *("weights_dtype", "token_ids", "kept_between_samples", "gate_limits", "warning", "kernels"),
    *("prompt_tokens", "prompt", "gated", "input_sets", "form_trials"),
    *("budget_s", "min_samples", "max_samples", "warmup_s"),
}


@dataclass(frozen=True)
class BackendSettings:
    """A system on a backend, and (setting, values in words) of its records."""

    system: str
    backend: str
    settings: tuple[tuple[str, str], ...]


def backend_settings(records: Iterable[Record]) -> list[BackendSettings]:
    """The backends with recorded settings, in order of appearance."""
    found: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for record in records:
        own = found.setdefault((record.case.system, record.case.backend), {})
        for name, value in record.settings.items():
            if name not in _ELSEWHERE and value:
                own.setdefault(name, {})[value] = None
    return [BackendSettings(*place, tuple(_said(own))) for place, own in found.items() if own]


def _said(settings: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, str]]:
    for name, values in settings.items():
        each = list(values)
        yield name.replace("_", " "), " or ".join(each) if len(each) <= _MOST else f"{len(each)} values, by the case"
