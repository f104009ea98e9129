"""Error limits follow a dtype's rounding; when early tokens change, logits must change as in the reference."""

from dataclasses import replace

import pytest
import torch

from bench.systems.language_model import LanguageModel
from bench.systems.logits import check_early_tokens, limit_dtype, limit_factor_by_rounding
from harness.schema.case import Case

CASE = Case("ttt-linear", "torch", "tiny", "forward", 2, 32, dtype="bfloat16")
ON_TRANSFORMER = replace(CASE, options=(("backbone", "transformer"),))
REFERENCE = torch.ones(2, 8)


@pytest.mark.parametrize(
    ("requested", "error", "factor"),
    [
        (CASE, 0.01, 0.3),  # 1.5 times the error, divided by the limit 0.05
        (CASE, 0.04, 1.0),  # at most the default
        (replace(CASE, dtype="float16"), 0.008, 0.6),
        (replace(CASE, dtype="float32"), 0.01, 1.0),
        (replace(CASE, state_dtype="float32-planes"), 0.01, 0.3),
        (replace(CASE, system="transformer", state_dtype="bfloat16"), 0.01, 0.3),  # its KV cache
        (ON_TRANSFORMER, 0.06, 1.8),  # its factor is at most 2
        (replace(CASE, system="gated-deltanet"), 0.1, 2.0),
        (replace(ON_TRANSFORMER, dtype="float32"), 0.06, 1.0),
        (replace(ON_TRANSFORMER, system="ttt-mlp"), 0.06, 1.0),
    ],
)
def test_limits_are_one_and_a_half_times_the_rounding_error(requested, error, factor):
    assert limit_factor_by_rounding(REFERENCE * (1 + error), REFERENCE, requested) == pytest.approx(factor, rel=1e-4)


@pytest.mark.parametrize(
    ("dtype", "state_dtype", "limits"),
    [
        ("float32", "float32", "float32"),
        ("float32", "float16", "float16"),
        ("float32", "bfloat16", "bfloat16"),
        ("float32", "float32-planes", "bfloat16"),
        ("bfloat16", "float32", "bfloat16"),
        ("float16", "", "float16"),
    ],
)
def test_the_coarser_of_activations_and_state_has_its_limits(dtype, state_dtype, limits):
    assert limit_dtype(replace(CASE, dtype=dtype, state_dtype=state_dtype)) == limits


def test_a_record_has_the_factor_on_its_limits():
    settings = [LanguageModel().settings(requested) for requested in (CASE, ON_TRANSFORMER)]
    assert ["check_limits" in each for each in settings] == [False, True]


@pytest.mark.parametrize(("slope", "error"), [(1.0, 0.0), (0.0, 1.0), (0.4, 0.6), (-1.0, 2.0)])
def test_the_effect_of_early_tokens_is_a_slope_against_the_references(slope, error):
    before, change = torch.ones(2, 8), torch.arange(16.0).view(2, 8)
    [check] = check_early_tokens((before, before + slope * change), (before, before + change), width=4).checks
    assert (check.name, check.limit) == ("early_tokens_slope_error", 0.5)
    assert check.value == pytest.approx(error)
    assert check_early_tokens((before, before), (before, before), width=4).passed  # without any change


@pytest.mark.parametrize(("noise", "checks"), [(0.25, 1), (0.35, 0)])
def test_an_effect_below_its_noise_is_not_checked(noise, checks):
    """There is no check if the noise exceeds 0.1 * sqrt(2 rows * 4 channels) = 0.283 times the reference's change."""
    before, change = torch.zeros(2, 8), torch.tensor([[1.0, 0.0] * 4] * 2)
    off = torch.tensor([[0.0, noise] * 4] * 2)
    checked = check_early_tokens((before, change + off), (before, change), width=4)
    assert (len(checked.checks), "rounding hides" in checked.unchecked) == (checks, not checks)
