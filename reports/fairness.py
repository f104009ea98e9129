"""Fairness checks: do models of one size and dtype agree in parameters and vocabulary?"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import median_low, mode
from typing import Any

from harness.schema.case import Scalar
from harness.schema.catalogue import Catalogue
from harness.schema.record import Record
from reports.words import format_setting

PARAMETERS_LIMIT = 1.08  # largest ratio of two numbers of parameters: of a model and the median of its size
FAIRNESS_METRICS = ("parameters", "vocabulary")
MODEL_OPTIONS = ("backbone", "mini_batch", "checkpoint")  # options that change the model
_UNRECORDED = "not checked: its parameters are not recorded"


@dataclass(frozen=True)
class Model:
    """A measured language model: system, backend, size, dtype and options of the model.

    Unknown texts are "", unknown numbers None. weights_dtype: the dtype of the loaded weights.
    head_rows_per_prompt: for how many tokens of a prompt the LM head runs; 1 suffices for the next token.
    kept_between_samples: what the system reuses from one sample to the next, such as a cache.
    unlike: why a comparison of this model with the others is unequal, in words.
    """

    system: str
    backend: str
    size: str
    dtype: str
    options: tuple[tuple[str, Scalar], ...]
    parameters: int | None
    vocabulary: int | None
    weights_dtype: str
    head_rows_per_prompt: float | None
    token_ids: str
    kept_between_samples: str
    unlike: tuple[str, ...] = ()

    def words(self, catalogue: Catalogue) -> str:
        """Return size and options in words, and the requested dtype if the weights have another."""
        options = [format_setting(catalogue.axis(name), value) for name, value in self.options]
        asked = [] if self.weights_dtype in ("", self.dtype) else [f"{self.dtype} requested"]
        return ", ".join([self.size, *options, *asked])


def fairness(records: Iterable[Record]) -> list[Model]:
    """Return all measured models; `unlike` names differences from most of equal size and dtype.

    Cases of single layers are left out. [] if no record has a number of parameters.
    """
    timed = [each for each in records if each.status == "ok" and each.case.option("scope", "model") == "model"]
    models = list(dict.fromkeys(_model(record) for record in timed))
    if all(model.parameters is None for model in models):
        return []
    compared: dict[tuple[str, str], list[Model]] = {}
    for model in models:
        compared.setdefault((model.size, model.dtype), []).append(model)
    return [
        replace(model, unlike=tuple(_unlike(model, together))) for together in compared.values() for model in together
    ]


def unequal(models: Iterable[Model], catalogue: Catalogue) -> list[str]:
    """Return a sentence that names the models unlike most others, and one that names unchecked models."""
    found: dict[bool, dict[str, None]] = {False: {}, True: {}}
    for model in models:
        if model.unlike:
            name = f"{catalogue.system_label(model.system)} on {catalogue.backend_label(model.backend)}"
            found[model.unlike == (_UNRECORDED,)][name] = None
    heads = {False: "Not on equal terms with the others", True: "Not checked for equal terms"}
    return [f"{head}: {', '.join(found[key])}." for key, head in heads.items() if found[key]]


def _model(record: Record) -> Model:
    case, settings, checks = record.case, record.settings, (record.check or {}).get("checks", [])
    options = tuple((name, value) for name in MODEL_OPTIONS if (value := case.option(name)) is not None)
    return Model(
        case.system,
        case.backend,
        case.size,
        case.dtype,
        options,
        _whole(record.metrics.get("parameters")),
        _whole(record.metrics.get("vocabulary")),
        settings.get("weights_dtype", ""),
        next((check["value"] for check in checks if check["name"] == "head_rows_per_prompt"), None),
        settings.get("token_ids", ""),
        settings.get("kept_between_samples", ""),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _unlike(model: Model, models: Iterable[Model]) -> Iterator[str]:
    """Yield in words how a model differs from most of `models`."""
    if model.parameters is None:
        yield _UNRECORDED
    else:
        ratio = model.parameters / median_low(each.parameters for each in models if each.parameters)
        if max(ratio, 1 / ratio) > PARAMETERS_LIMIT:
            yield f"parameters more than {PARAMETERS_LIMIT - 1:.0%} off the median"
    if model.weights_dtype not in ("", _usual(each.weights_dtype for each in models)):
        yield "weights of another type"
    if model.vocabulary not in (None, _usual(each.vocabulary for each in models)):
        yield "another vocabulary"
    if model.head_rows_per_prompt is not None and model.head_rows_per_prompt > 1:
        yield "the head runs on more than the last token"
    if model.kept_between_samples not in ("", "nothing"):
        yield f"keeps {model.kept_between_samples} between samples"


def _usual(values: Iterable[Any]) -> Any:
    """Return the most frequent known value; None without one."""
    known = [value for value in values if value]
    return mode(known) if known else None
