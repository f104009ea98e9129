"""Check the logits of a language model against a reference's logits, within limits."""

import math

import torch

from harness.measure.correctness import Check, Checks, relative_error, total_variation
from harness.schema.case import Case

# Limits by dtype: relative error of the logits, total variation of the next token's probabilities.
LOGIT_LIMITS = {"bfloat16": (5e-2, 2e-2), "float16": (2e-2, 1e-2), "float32": (1e-4, 1e-4)}
STATE_ROUNDING = {"float32-planes": "bfloat16"}  # with planes, the state stores a mini-batch's tokens in bfloat16
# Factors on the limits by system, backbone and dtype, for models with larger rounding errors.
LIMIT_FACTORS = {("ttt-linear", "transformer", "bfloat16"): 2.0, ("gated-deltanet", "", "bfloat16"): 2.0}

# Limit on the logits' error divided by that of a reference in the same dtype. tests/attacks: int8 weights exceed it.
MAX_ERROR_RATIO = 1.5
# `check_early_tokens`: limit on |slope - 1|; no check if residual / change > MAX_NOISE * sqrt(width * B).
MAX_SLOPE_ERROR, MAX_NOISE = 0.5, 0.1

# A chosen token's reference logit may be this many error limits below the largest one, in standard deviations over the
# vocabulary. The error is a root mean square: each of the two logits may be off by twice its limit.
CHOICE_LIMITS = 4


def check_logits(logits: torch.Tensor, reference: torch.Tensor, dtype: str, factor: float = 1.0) -> Checks:
    """Compare logits [..., V] with the reference's: relative error, total variation, argmax.

    At the argmax of `logits`, the reference's logit must be its highest one, up to rounding.
    dtype: key of LOGIT_LIMITS. factor: multiplies these limits.
    """
    error_limit, distance_limit = (factor * limit for limit in LOGIT_LIMITS[dtype])
    return Checks(
        [
            Check.at_most("logits_relative_error", relative_error(logits, reference), error_limit),
            Check.at_most("total_variation", total_variation(logits, reference), distance_limit),
            choice_check("choice_below_best", reference, logits.argmax(-1), dtype, factor),
        ]
    )


def limit_dtype(case: Case) -> str:
    """Return the coarser of the dtypes of activations and state, as a key of LOGIT_LIMITS."""
    roundings = (case.dtype, STATE_ROUNDING.get(case.state_dtype, case.state_dtype))
    return max(filter(None, roundings), key=LOGIT_LIMITS.__getitem__)


def limit_factor(case: Case) -> float:
    """Return the factor on LOGIT_LIMITS for the case's model: its value in LIMIT_FACTORS, else 1."""
    return LIMIT_FACTORS.get((case.system, str(case.option("backbone", "")), case.dtype), 1.0)


def limit_settings(case: Case) -> dict[str, str]:
    """Return a setting for the record that names the factor on the limits; {} if it is 1."""
    factor = limit_factor(case)
    return {} if factor == 1 else {"check_limits": f"correctness check: limits up to {factor:g} times the default"}


def limit_factor_by_rounding(rounded: torch.Tensor | None, reference: torch.Tensor, case: Case) -> float:
    """Return the factor on LOGIT_LIMITS, at most `limit_factor(case)`.

    The relative error may be MAX_ERROR_RATIO times the error of `rounded`, if activations have the coarsest dtype.
    rounded: a reference's logits in the case's dtype; if None, the factor is `limit_factor(case)`.
    reference: the exact logits.
    """
    if rounded is None:
        return limit_factor(case)
    return min(limit_factor(case), MAX_ERROR_RATIO * relative_error(rounded, reference) / LOGIT_LIMITS[case.dtype][0])


def check_early_tokens(
    got: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor], width: int
) -> Checks:
    """Check that a change of early tokens changes the logits as in the reference.

    got: the model's logits [B, V] before and after the change. expected: the reference's logits before and after.
    The slope of a regression between the two differences must be near 1.
    If rounding hides the change, nothing is checked. width: the model's channels; with more, more noise is allowed.
    """
    change, truth = (after.double() - before.double() for before, after in (got, expected))
    size = float(truth.norm())
    slope = float((change * truth).sum()) / size**2 if size else 1.0
    if float((change - slope * truth).norm()) > MAX_NOISE * math.sqrt(width * len(truth)) * size:
        return Checks([], "effect of early tokens on the timed logits not checked: rounding hides it")
    return Checks([Check.at_most("early_tokens_slope_error", abs(slope - 1), MAX_SLOPE_ERROR)])


def choice_check(name: str, logits: torch.Tensor, chosen: torch.Tensor, dtype: str, factor: float = 1.0) -> Check:
    """Check that logits [..., V] at `chosen` [...] are almost the highest. factor: multiplies the limit."""
    below = logits.amax(-1) - logits.gather(-1, chosen[..., None])[..., 0]
    limit = CHOICE_LIMITS * factor * LOGIT_LIMITS[dtype][0]
    return Check.at_most(name, float((below / logits.std(-1)).amax()), limit)
