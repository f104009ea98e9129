"""With which settings did each backend run, as its records say them?"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from harness.schema.record import Record

_MOST = 3  # values of a setting that are said; one with more goes with the case
# Said elsewhere on the page: on equal terms, as notes, of kernels; and how long the run sampled.
_ELSEWHERE = {
    *("weights_dtype", "token_ids", "kept_between_samples", "gate_limits", "warning", "kernels"),
    *("prompt_tokens", "prompt", "gated", "input_sets", "form_trials"),
    *("budget_s", "min_samples", "max_samples", "warmup_s"),
}


@dataclass(frozen=True)
class BackendSettings:
    """A system on a backend, and (setting, its values in words) of what its records say."""

    system: str
    backend: str
    settings: tuple[tuple[str, str], ...]


def backend_settings(records: Iterable[Record]) -> list[BackendSettings]:
    """The backends that say settings, in order of appearance; of a setting that goes with the case, how many values."""
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
