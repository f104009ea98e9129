"""Check that a comparison of language models is fair: what each is, read from it, against what all must be."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.models.config import model_config, parameter_count
from harness.measure.gate import Check
from harness.schema.case import Case

PARAMETERS_OFF = "parameters_off_transformer"  # a check's name
# The published sizes lie within 6% of each other, and Mamba's 48 blocks within 8% of the Transformer.
PARAMETERS_OFF_LIMIT = 0.08


@dataclass(frozen=True)
class Facts:
    """What must be alike: sizes are counts; `head_rows` is rows of the LM head for each prompt of a prefill.

    dtype: of most weights; learners, decays and norms may be wider. token_ids: how they are drawn, which the harness or
    the adapter does. kept: what one sample leaves for the next, weights apart, as far as an engine says (its prefix
    cache); the check of what was timed, on inputs drawn anew, would find it of any.
    """

    parameters: int
    vocabulary: int
    dtype: str
    token_ids: str = "uniform over the vocabulary, new for each sample"
    kept: str = "nothing"
    head_rows: float | None = None

    def metrics(self) -> dict[str, float | None]:
        """The numbers, for `Record.metrics`."""
        return {"parameters": self.parameters, "vocabulary": self.vocabulary}

    def settings(self) -> dict[str, str]:
        """The texts, for `Record.settings`."""
        return {"weights_dtype": self.dtype, "token_ids": self.token_ids, "kept_between_samples": self.kept}


def facts_of(weights: Mapping[str, Any], vocabulary: int, **rest: Any) -> Facts:
    """The facts of named weights (each once, tied ones too); the dtype is that of most of their numbers."""
    counts: dict[str, int] = {}
    for weight in weights.values():
        name = str(weight.dtype).removeprefix("torch.")
        counts[name] = counts.get(name, 0) + weight.numel()
    return Facts(sum(counts.values()), vocabulary, max(counts, key=counts.__getitem__), **rest)


def checks(facts: Facts, case: Case) -> list[Check]:
    """A gate's checks that the model is a fair one for its case: a miss leaves the case without a timing."""
    found = [] if case.option("checkpoint") else _of_one_size(facts, case)
    found += [
        Check.at_most("weights_of_another_dtype", float(facts.dtype != case.dtype), 0),
        Check.at_most("samples_that_leave_something", float(facts.kept != "nothing"), 0),
    ]
    if facts.head_rows is not None:
        found.append(Check.at_most("head_rows_per_prompt", facts.head_rows, 1))
        found.append(Check.at_most("head_rows_not_seen", max(0.0, 1 - facts.head_rows), 0))  # a head of other weights
    return found


def _of_one_size(facts: Facts, case: Case) -> list[Check]:
    """Whether the model is as large as the Transformer of its size; a checkpoint is as large as it is."""
    transformer = model_config("transformer", case.size)
    parameters_off = abs(facts.parameters / parameter_count(transformer) - 1)
    return [
        Check.at_most(PARAMETERS_OFF, parameters_off, PARAMETERS_OFF_LIMIT),
        Check.at_most("vocabulary_off_transformer", abs(facts.vocabulary - transformer.vocabulary), 0),
    ]


def count_head_rows(call: Callable[[], Any], head: Any) -> tuple[Any, int]:
    """What `call` returns, and how many rows it put through a linear layer with the weight `head`."""
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
