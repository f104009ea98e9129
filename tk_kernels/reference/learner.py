"""How does a reference run over a whole input: cut into pieces, or one token a sequence?"""

from collections.abc import Callable

import torch
from torch import Tensor

from tk_kernels.checks import STATE_DTYPE, check_choice, check_outer, check_tokens
from tk_kernels.reference.layer import Outer
from tk_kernels.reference.mini_batches import pieces

FORMS = ("dual", "primal")
SEQUENCES, TOKENS = "[B, T, H, D]", "[B, H, D]"  # layouts of forward and of generate
# tokens of a piece (q, k, v [B, n, H, D], lr [B, n, H]) and where it starts in its mini-batch -> out [B, n, H, D]
Step = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]


def checked_outer(
    tokens: dict[str, Tensor], lr: Tensor, token_scale: Tensor, ln_weight: Tensor, ln_bias: Tensor, layout: str
) -> Outer:
    """The outer parameters in the dtype of the state; ValueError if they or the tokens (in this layout) do not fit."""
    check_tokens(tokens, lr, layout)
    x = next(iter(tokens.values()))
    check_outer(token_scale, ln_weight, ln_bias, *x.shape[-2:])
    return Outer(*(parameter.to(STATE_DTYPE[x.dtype]) for parameter in (token_scale, ln_weight, ln_bias)))


def forward_in_pieces(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    start: int,
    mini_batch: int,
    together: int,
    form: str,
    whole: Step,
    part: Step,
) -> Tensor:
    """Run the tokens: in the dual form whole mini-batches through `whole`, all else through `part`."""
    check_choice("form", form, FORMS)
    out = torch.empty_like(q)
    for piece in pieces(q.shape[1], start, mini_batch, together if form == "dual" else 1):
        step = whole if form == "dual" and piece.whole else part
        cut = slice(piece.low, piece.high)
        out[:, cut] = step(q[:, cut], k[:, cut], v[:, cut], lr[:, cut], (start + piece.low) % mini_batch)
    return out
