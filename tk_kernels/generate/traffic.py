"""Bytes that one generated token moves, for any learner: averages over the tokens of a mini-batch."""

from typing import NamedTuple

from tk_kernels import FORMS


class StatePrecision(NamedTuple):
    """Bytes of one weight: kept, read at every token, and moved in addition by a token that rewrites the weights."""

    kept: int
    read: int
    rewrite: int


# planes: the rounded upper half of a float32 serves 15 of 16 tokens; a rewrite reads the lower half and writes both
STATE_PRECISIONS = {
    "planes": StatePrecision(4, 2, 6),
    "float32": StatePrecision(4, 4, 4),
    "float16": StatePrecision(2, 2, 2),
    "bfloat16": StatePrecision(2, 2, 2),
}


def check_form_name(form: str) -> None:
    """Raise ValueError for an unknown form of generate."""
    if form not in FORMS:
        raise ValueError(f"form is {form!r}: supported are {', '.join(map(repr, FORMS))}")


def precision_of(state: str) -> StatePrecision:
    """ValueError for a name that is not in STATE_PRECISIONS."""
    if state not in STATE_PRECISIONS:
        raise ValueError(f"state is {state!r}: supported are {', '.join(map(repr, STATE_PRECISIONS))}")
    return STATE_PRECISIONS[state]


def weight_bytes(weights: int, mini_batch: int, form: str, state: str, sum_element_bytes: int) -> float:
    """Bytes moved for `weights` weights.

    dual: W is read at every token and rewritten at one in m. primal: besides, the gradient sum is read at every token
    but a mini-batch's first and written at every one but its last.
    """
    check_form_name(form)
    _, read, rewrite = precision_of(state)
    sums = sum_bytes(weights, mini_batch, sum_element_bytes) if form == "primal" else 0
    return weights * (read + rewrite / mini_batch) + sums


def sum_bytes(elements: int, mini_batch: int, element_bytes: int) -> float:
    """Bytes of a gradient sum: read at every token but a mini-batch's first, written at every one but its last."""
    return 2 * elements * element_bytes * (mini_batch - 1) / mini_batch


def row_bytes(elements: int, mini_batch: int, element_bytes: int) -> float:
    """Bytes of the rows of `elements` a token: (m-1)/2 earlier ones are read on average, one is written."""
    return elements * element_bytes * ((mini_batch - 1) / 2 + 1)
