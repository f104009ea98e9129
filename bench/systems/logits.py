"""Check the logits of a language model against a reference's logits, within limits."""

import math

import torch

from harness.measure.correctness import Check, Checks, relative_error, total_variation
from harness.schema.case import Case

# Relative error of the logits and total variation of the next token's probabilities against the reference. Rounding
# of 24 layers of bfloat16 activations reaches 2e-2; float32 against float64 stays far below 1e-4.
LOGIT_LIMITS = {"bfloat16": (5e-2, 2e-2), "float16": (2e-2, 1e-2), "float32": (1e-4, 1e-4)}
STATE_ROUNDING = {"float32-planes": "bfloat16"}  # planes store a mini-batch's tokens in bfloat16
# Factors on the limits by system, backbone and dtype. In bfloat16 at 1.3B, TTT-Linear's error in plain PyTorch is about
# twice as large with the Transformer backbone as with Mamba's. Gated DeltaNet's recurrent kernels reach 0.048.
WIDER = {("ttt-linear", "transformer", "bfloat16"): 2.0, ("gated-deltanet", "", "bfloat16"): 2.0}

# Limit on the error of timed logits over that of plain PyTorch in the same dtype. For all kernels at 1.3B in the
# committed runs, this ratio is at most 1.2; with eight-bit weights, it is 1.9 or more.
ROUNDINGS = 1.5
# For `check_response`: limits on the slope's distance from 1, and on the noise with which a slope is still checked.
RESPONSE_OFF, RESPONSE_NOISE = 0.5, 0.1

# A chosen token's reference logit may be this many error limits below the largest one, in standard deviations over the
# vocabulary. The error is a root mean square: each of the two logits may be off by twice its limit.
CHOICE_LIMITS = 4


def check_logits(logits: torch.Tensor, reference: torch.Tensor, dtype: str, wider: float = 1.0) -> Checks:
    """Compare logits [..., V] with the reference's: relative error, total variation, argmax.

    At the argmax of `logits`, the reference's logit must be its highest one, up to rounding.
    dtype: key of LOGIT_LIMITS. wider: factor on these limits.
    """
    error_limit, distance_limit = (wider * limit for limit in LOGIT_LIMITS[dtype])
    return Checks(
        [
            Check.at_most("logits_relative_error", relative_error(logits, reference), error_limit),
            Check.at_most("total_variation", total_variation(logits, reference), distance_limit),
            choice_check("choice_below_best", reference, logits.argmax(-1), dtype, wider),
        ]
    )


def rounding_of(case: Case) -> str:
    """Return the coarser of the dtypes of activations and state, as a key of LOGIT_LIMITS."""
    roundings = (case.dtype, STATE_ROUNDING.get(case.state_dtype, case.state_dtype))
    return max(filter(None, roundings), key=LOGIT_LIMITS.__getitem__)


def widening(case: Case) -> float:
    """Return the factor on LOGIT_LIMITS for the case's model: its value in WIDER, else 1."""
    return WIDER.get((case.system, str(case.option("backbone", "")), case.dtype), 1.0)


def widened(case: Case) -> dict[str, str]:
    """Return a setting for the record that describes wider limits; {} for the usual limits."""
    wider = widening(case)
    return {} if wider == 1 else {"check_limits": f"{wider:g} times those of other models, as it rounds more"}


def limits_by_rounding(rounded: torch.Tensor | None, reference: torch.Tensor, case: Case) -> float:
    """Return the factor on LOGIT_LIMITS[case.dtype], at most `widening(case)`.

    With this factor, the relative error may be at most ROUNDINGS times the relative error of `rounded`.
    rounded: a reference's logits in the case's dtype; if None, the factor is `widening(case)`.
    reference: the exact logits.
    """
    if rounded is None:
        return widening(case)
    return min(widening(case), ROUNDINGS * relative_error(rounded, reference) / LOGIT_LIMITS[case.dtype][0])


def check_response(
    got: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor], width: int
) -> Checks:
    """Check that a change of early tokens changes the logits as in the reference.

    got: the model's logits [B, V] before and after the change. expected: the reference's logits before and after.
    The slope of a regression between the two differences must be near 1.
    If rounding hides the change, nothing is checked. width: the model's channels; more permit more noise.
    """
    change, truth = (after.double() - before.double() for before, after in (got, expected))
    size = float(truth.norm())
    slope = float((change * truth).sum()) / size**2 if size else 1.0
    if float((change - slope * truth).norm()) > RESPONSE_NOISE * math.sqrt(width * len(truth)) * size:
        return Checks([], "these weights forget: rounding hides how the timed logits change with an earlier past")
    return Checks([Check.at_most("response_to_the_past_off", abs(slope - 1), RESPONSE_OFF)])


def choice_check(name: str, logits: torch.Tensor, chosen: torch.Tensor, dtype: str, wider: float = 1.0) -> Check:
    """Check that logits [..., V] at `chosen` [...] are almost the highest. wider: limit factor."""
    below = logits.amax(-1) - logits.gather(-1, chosen[..., None])[..., 0]
    limit = CHOICE_LIMITS * wider * LOGIT_LIMITS[dtype][0]
    return Check.at_most(name, float((below / logits.std(-1)).amax()), limit)
