"""The settings that each backend recorded, for the page's table of settings."""

from collections.abc import Iterable, Iterator, Mapping

from harness.schema.record import Record

_MOST = 3  # a setting with more values depends on the case; only their number is shown
# Settings that the page shows elsewhere.
_ELSEWHERE = {
    *("weights_dtype", "token_ids", "kept_between_samples", "check_limits", "warning", "kernels"),
    *("prompt_tokens", "prompt", "checked", "input_sets", "form_trials"),
    *("budget_s", "min_samples", "max_samples", "warmup_s"),
}


def backend_settings(records: Iterable[Record]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return (system, backend, [(setting, values in words), ...]) without those in `_ELSEWHERE`."""
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
