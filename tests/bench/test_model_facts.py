"""A model fails a check if its size, dtype, vocabulary, head or cache is not the expected one."""

from dataclasses import replace

import pytest
import torch

from bench.model_facts import checks, count_head_rows, facts_of
from bench.models.config import model_config, parameter_count
from bench.models.factory import from_seed
from bench.systems.transformer.pytorch import TorchTransformer
from bench.systems.ttt.model import TTTTorch
from harness.schema.case import Case

CASE = Case("transformer", "torch", "tiny", "forward", 2, 16, dtype="float32")


def facts(**changes):
    model = from_seed(model_config("transformer", "tiny"), 0, "cpu", torch.float32)
    return replace(facts_of(model.weights(), model.config.vocabulary, head_rows=1.0), **changes)


def missed(found):
    return [check.name for check in checks(found, CASE) if not check.passed]


def test_the_transformer_passes_every_check():
    assert facts().parameters == parameter_count(model_config("transformer", "tiny"))
    assert missed(facts()) == []


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"parameters": 570_000}, "parameters_off_transformer"),
        ({"parameters": 460_000}, "parameters_off_transformer"),
        ({"vocabulary": 513}, "vocabulary_off_transformer"),
        ({"vocabulary": 511}, "vocabulary_off_transformer"),
        ({"dtype": "bfloat16"}, "weights_of_another_dtype"),
        ({"kept": "a prefix cache"}, "samples_that_leave_something"),
        ({"head_rows": 2.0}, "head_rows_per_prompt"),
        ({"head_rows": 0.0}, "head_rows_not_seen"),
    ],
)
def test_every_difference_is_a_missed_check(changes, name):
    assert missed(facts(**changes)) == [name]


def test_the_dtype_is_the_dtype_of_most_elements():
    weights = {"decay": torch.zeros(3), "projection": torch.zeros(4, 4, dtype=torch.bfloat16)}
    assert facts_of(weights, 8).dtype == "bfloat16"
    assert facts_of(weights, 8).parameters == 19


def test_rows_of_the_head_are_counted():
    head, hidden = torch.nn.Linear(4, 10), torch.randn(2, 5, 4)
    _, rows = count_head_rows(lambda: head(hidden), head.weight)
    assert rows == 10
    assert count_head_rows(lambda: head(hidden[:, -1:]), head.weight)[1] == 2
    assert count_head_rows(lambda: torch.nn.Linear(4, 10)(hidden), head.weight)[1] == 0


def test_the_workload_of_an_adapter_has_the_checks_and_facts():
    workload = TorchTransformer().build(CASE)
    checked = workload.check()
    values = {check.name: check.value for check in checked.checks}
    assert checked.passed
    assert values["head_rows_per_prompt"] == 1
    assert workload.metrics["parameters"] == facts().parameters
    assert workload.settings["weights_dtype"] == "float32"


class Untied(TTTTorch):
    def load(self, case):
        config = replace(model_config("ttt-linear", case.size), tied=False)
        return from_seed(config, 0, "cpu", torch.float32)


def test_the_rows_of_an_untied_head_are_counted():
    checked = Untied().build(replace(CASE, system="ttt-linear")).check()
    found = {check.name: check.value for check in checked.checks}
    assert (found["head_rows_per_prompt"], found["head_rows_not_seen"]) == (1, 0)
