"""How far may the logits of a language model be from its reference's?"""

import math

import torch

from harness.measure.gate import Check, Verdict, relative_error, total_variation
from harness.schema.case import Case

# Relative error of the logits and total variation of the next token's probabilities against the reference. Rounding
# of 24 layers of bfloat16 activations reaches 2e-2; float32 against float64 stays far below 1e-4.
LOGIT_LIMITS = {"bfloat16": (5e-2, 2e-2), "float16": (2e-2, 1e-2), "float32": (1e-4, 1e-4)}
STATE_ROUNDING = {"float32-planes": "bfloat16"}  # whose rows of a mini-batch are in bfloat16
# By how much the limits are wider, by system, backbone and dtype. TTT-Linear on the Transformer's backbone rounds more:
# at 1.3B, bfloat16 in plain PyTorch is 0.9 to 1.5 times the table's limits off float32, after 48 to 6,144 tokens and
# not growing with them, where it is 0.6 to 0.7 of them on the Mamba backbone.
WIDER = {("ttt-linear", "transformer", "bfloat16"): 2.0}

# The error of the timed logits over that of plain PyTorch in the same dtype: 0.8 to 1.2 for every kernel at 1.3B in the
# committed runs. Weights of eight bits have 1.9 times it or more.
ROUNDINGS = 1.5
_AS_WIDE = ("", "float32", "float32-planes")  # states whose rounding the activations' covers
# How far the logits' response to another past may be from the reference's, and the noise that hides a response.
RESPONSE_OFF, RESPONSE_NOISE = 0.5, 0.1

# A token is a model's choice where the reference's logit of it lies at most so many of the limits above below its
# largest, in standard deviations over the vocabulary: the limit is a root mean square, and either logit may be off by
# twice that. A token drawn at random lies some 4 standard deviations below, 20 times as far in bfloat16.
CHOICE_LIMITS = 4


def logits_verdict(logits: torch.Tensor, reference: torch.Tensor, dtype: str, wider: float = 1.0) -> Verdict:
    """Logits [..., V] of a model in `dtype` against its reference's; wider: see `widening`."""
    error_limit, distance_limit = (wider * limit for limit in LOGIT_LIMITS[dtype])
    return Verdict(
        [
            Check.at_most("logits_relative_error", relative_error(logits, reference), error_limit),
            Check.at_most("total_variation", total_variation(logits, reference), distance_limit),
            choice_check("choice_below_best", reference, logits.argmax(-1), dtype, wider),
        ]
    )


def rounding_of(case: Case) -> str:
    """The coarser of the roundings of a case's activations and of its state: that whose limits hold."""
    roundings = (case.dtype, STATE_ROUNDING.get(case.state_dtype, case.state_dtype))
    return max(filter(None, roundings), key=LOGIT_LIMITS.__getitem__)


def widening(case: Case) -> float:
    """By how much the limits of a case's model are wider than the table's: 1 unless its activations round more."""
    return WIDER.get((case.system, str(case.option("backbone", "")), case.dtype), 1.0)


def limits_by_rounding(rounded: torch.Tensor, reference: torch.Tensor, case: Case) -> float:
    """How wide the limits of a case are, in those of the table: ROUNDINGS times the error of its dtype at most.

    rounded: logits of the reference's code in the case's dtype. float32 keeps the table's limits.
    """
    wider = widening(case)
    if case.dtype == "float32" or case.state_dtype not in _AS_WIDE:
        return wider
    return min(wider, ROUNDINGS * relative_error(rounded, reference) / LOGIT_LIMITS[case.dtype][0])


def response_verdict(
    got: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor], width: int
) -> Verdict:
    """Whether logits [rows, V] change with another past as the reference's do: the slope of their change is 1.

    The slope averages the rounding over rows and `width`, so it shows what each logit's limit hides.
    """
    change, truth = (after.double() - before.double() for before, after in (got, expected))
    size = float(truth.norm())
    slope = float((change * truth).sum()) / size**2 if size else 1.0
    if float((change - slope * truth).norm()) > RESPONSE_NOISE * math.sqrt(width * len(truth)) * size:
        return Verdict([], "these weights forget: rounding hides how the timed logits change with an earlier past")
    return Verdict([Check.at_most("response_to_the_past_off", abs(slope - 1), RESPONSE_OFF)])


def choice_check(name: str, logits: torch.Tensor, chosen: torch.Tensor, dtype: str, wider: float = 1.0) -> Check:
    """Whether `chosen` [...] are the tokens of the largest logits [..., V] of a reference, as far as rounding tells."""
    below = logits.amax(-1) - logits.gather(-1, chosen[..., None])[..., 0]
    limit = CHOICE_LIMITS * wider * LOGIT_LIMITS[dtype][0]
    return Check.at_most(name, float((below / logits.std(-1)).amax()), limit)
