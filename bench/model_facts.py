"""Check a model's size, vocabulary, dtype and number of logits, and that its samples share no data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.models.config import model_config, parameter_count
from harness.measure.correctness import Check
from harness.schema.case import Case

PARAMETERS_OFF_LIMIT = 0.08  # largest difference, as a share of the Transformer's parameters


@dataclass(frozen=True)
class Facts:
    """Facts about the model that a worker built, for `checks`.

    dtype: the dtype of most weights; inner-loop parameters, decays and norms may have a wider dtype.
    kept: the data that a sample leaves for the next sample, such as "a prefix cache"; only "nothing" passes the check.
    head_rows: number of tokens per prompt whose logits a forward computes; None if not counted.
    """

    parameters: int
    vocabulary: int
    dtype: str
    kept: str = "nothing"
    head_rows: float | None = None

    def metrics(self) -> dict[str, float | None]:
        return {"parameters": self.parameters, "vocabulary": self.vocabulary}

    def settings(self) -> dict[str, str]:
        token_ids = "uniform over the vocabulary, new for each sample"
        return {"weights_dtype": self.dtype, "token_ids": token_ids, "kept_between_samples": self.kept}


def facts_of(weights: Mapping[str, Any], vocabulary: int, **rest: Any) -> Facts:
    """Return a model's `Facts`. weights: tensors by name, tied ones once. rest: other fields."""
    counts: dict[str, int] = {}
    for weight in weights.values():
        name = str(weight.dtype).removeprefix("torch.")
        counts[name] = counts.get(name, 0) + weight.numel()
    return Facts(sum(counts.values()), vocabulary, max(counts, key=counts.__getitem__), **rest)


def checks(facts: Facts, case: Case) -> list[Check]:
    """Return checks of the facts about the model that a worker built for `case`.

    They cover the weights' dtype, that samples share no data and, if counted, that one token per prompt has logits.
    Without a checkpoint, they also compare vocabulary and parameter count with the Transformer of the same size.
    """
    found = [
        Check.at_most("weights_of_another_dtype", float(facts.dtype != case.dtype), 0),
        Check.at_most("samples_that_leave_something", float(facts.kept != "nothing"), 0),
    ]
    if not case.option("checkpoint"):
        transformer = model_config("transformer", case.size)
        parameters_off = abs(facts.parameters / parameter_count(transformer) - 1)
        found.append(Check.at_most("parameters_off_transformer", parameters_off, PARAMETERS_OFF_LIMIT))
        vocabulary_off = abs(facts.vocabulary - transformer.vocabulary)
        found.append(Check.at_most("vocabulary_off_transformer", vocabulary_off, 0))
    if facts.head_rows is not None:
        found.append(Check.at_most("head_rows_per_prompt", facts.head_rows, 1))
        # 0 rows: the forward uses another head.
        found.append(Check.at_most("head_rows_not_seen", max(0.0, 1 - facts.head_rows), 0))
    return found


def count_head_rows(call: Callable[[], Any], head: Any) -> tuple[Any, int]:
    """Run `call`; return (result, number of tokens that `F.linear` multiplied by weight `head`)."""
    import torch.nn.functional as F
    from torch.overrides import TorchFunctionMode

    class Counter(TorchFunctionMode):
        rows = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is F.linear and args[1].data_ptr() == head.data_ptr():
                self.rows += args[0].numel() // args[0].shape[-1]
            return func(*args, **(kwargs or {}))

    with Counter() as counter:
        result = call()
    return result, counter.rows
