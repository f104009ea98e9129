"""The recorded settings of each backend."""

from collections.abc import Iterable, Iterator, Mapping

from harness.schema.record import Record

_MOST = 3  # values of a setting that are listed; more depend on the case
# Shown elsewhere on the page.
_ELSEWHERE = {
    *("weights_dtype", "token_ids", "kept_between_samples", "gate_limits", "warning", "kernels"),
    *("prompt_tokens", "prompt", "gated", "input_sets", "form_trials"),
    *("budget_s", "min_samples", "max_samples", "warmup_s"),
}


def backend_settings(records: Iterable[Record]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """(system, backend, its settings as (name, values in words)) of the backends with recorded settings."""
    found: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for record in records:
        own = found.setdefault((record.case.system, record.case.backend), {})
        for name, value in record.settings.items():
            if name not in _ELSEWHERE and value:
                own.setdefault(name, {})[value] = None
    return [(*place, list(_said(own))) for place, own in found.items() if own]


def _said(settings: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, str]]:
    for name, values in settings.items():
        each = list(values)
        yield name.replace("_", " "), " or ".join(each) if len(each) <= _MOST else f"{len(each)} values, by the case"
