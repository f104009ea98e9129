"""Properties of the measured models that show whether a comparison is fair."""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.schema.case import Scalar
from harness.schema.catalogue import Catalogue
from harness.schema.record import Record
from reports.words import format_setting

FAIRNESS_METRICS = ("parameters", "vocabulary")
MODEL_OPTIONS = ("backbone", "mini_batch", "checkpoint")  # options that change the model


@dataclass(frozen=True)
class Model:
    """A measured language model; an unknown text is "", an unknown number None.

    dtype: the requested dtype. weights_dtype: the dtype of the loaded weights.
    options: (name, value) for each of `MODEL_OPTIONS` that the case sets.
    head_rows_per_prompt: number of prompt tokens for which the LM head runs; for the next token, 1 is enough.
    token_ids: how the input tokens are drawn.
    kept_between_samples: data that a sample leaves for the next sample.
    """

    system: str
    backend: str
    size: str
    dtype: str
    options: tuple[tuple[str, Scalar], ...]
    parameters: float | None
    vocabulary: float | None
    weights_dtype: str
    head_rows_per_prompt: float | None
    token_ids: str
    kept_between_samples: str

    def words(self, catalogue: Catalogue) -> str:
        """Describe the model's size and options, and the requested dtype if the weights have another."""
        options = [format_setting(catalogue.axis(name), value) for name, value in self.options]
        requested = [] if self.weights_dtype in ("", self.dtype) else [f"{self.dtype} requested"]
        return ", ".join([self.size, *options, *requested])


def fairness(records: Iterable[Record]) -> list[Model]:
    """Return the measured models, sorted by size and dtype; [] if no parameter count is known."""
    passed = [each for each in records if each.status == "ok" and each.case.option("scope", "model") == "model"]
    models = dict.fromkeys(model_of(record) for record in passed)
    has_counts = any(model.parameters is not None for model in models)
    return sorted(models, key=lambda model: (model.size, model.dtype)) if has_counts else []


def model_of(record: Record) -> Model:
    case, settings, checks = record.case, record.settings, (record.check or {}).get("checks", [])
    options = tuple((name, value) for name in MODEL_OPTIONS if (value := case.option(name)) is not None)
    return Model(
        case.system,
        case.backend,
        case.size,
        case.dtype,
        options,
        record.metrics.get("parameters"),
        record.metrics.get("vocabulary"),
        settings.get("weights_dtype", ""),
        next((check["value"] for check in checks if check["name"] == "head_rows_per_prompt"), None),
        settings.get("token_ids", ""),
        settings.get("kept_between_samples", ""),
    )
