"""Run a model over a sequence in pieces."""

from typing import Any

from torch import Tensor


def run(model: Any, ids: Tensor, plan: tuple[int, ...], state: Any = None) -> Tensor:
    """Run a model over the tokens ids [B, T] in pieces; return the last logits [B, V].

    plan: an entry n > 0 runs n tokens in one forward call; -n runs n generate steps. Together they cover T tokens.
    state: the state to start from; None starts a new sequence.
    """
    state, at = state or model.init_state(*ids.shape), 0
    for n in plan:
        if n > 0:
            logits, state = model.prefill(ids[:, at : at + n], state)
        for t in range(at, at - n):
            logits, state = model.generate_step(ids[:, t], state)
        at += abs(n)
    assert at == ids.shape[1]
    return logits
