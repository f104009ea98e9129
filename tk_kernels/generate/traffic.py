"""Bytes of a generate state, and bytes that one token moves on average over a mini-batch, for any learner."""

from typing import NamedTuple

from tk_kernels import FORMS


class StatePrecision(NamedTuple):
    """Bytes per weight: stored, read at every token, and moved in addition by a token that rewrites the weights."""

    kept: int
    read: int
    rewrite: int


# planes: 15 of 16 tokens read the rounded upper half of a float32; a rewrite reads the lower half and writes both
STATE_PRECISIONS = {
    "planes": StatePrecision(4, 2, 6),
    "float32": StatePrecision(4, 4, 4),
    "float16": StatePrecision(2, 2, 2),
    "bfloat16": StatePrecision(2, 2, 2),
}


class Learner(NamedTuple):
    """Elements per head: weights, biases, and the rows that one token caches in the dual form."""

    weights: int
    biases: int
    rows: int


def check_form_name(form: str) -> None:
    """Raise ValueError for an unknown form of generate."""
    if form not in FORMS:
        raise ValueError(f"form is {form!r}: supported are {', '.join(map(repr, FORMS))}")


def precision_of(state: str) -> StatePrecision:
    """Return the precision with the name `state`. Raises ValueError for an unknown name."""
    if state not in STATE_PRECISIONS:
        raise ValueError(f"state is {state!r}: supported are {', '.join(map(repr, STATE_PRECISIONS))}")
    return STATE_PRECISIONS[state]


def kept_bytes(
    learner: Learner,
    mini_batch: int = 16,
    form: str = "dual",
    state: str = "planes",
    row_element_bytes: int = 2,
    sum_element_bytes: int = 4,
) -> int:
    """Bytes of a head's state: weights in the precision `state`, biases in float32.

    The dual form adds m rows. The primal form adds the gradient sums; those of the biases are float32.
    """
    check_form_name(form)
    weights, biases = learner.weights * precision_of(state).kept, 4 * learner.biases
    if form == "dual":
        return weights + biases + mini_batch * learner.rows * row_element_bytes
    return weights + biases + learner.weights * sum_element_bytes + biases


def moved_bytes(
    learner: Learner,
    mini_batch: int = 16,
    form: str = "dual",
    state: str = "planes",
    row_element_bytes: int = 2,
    sum_element_bytes: int = 4,
) -> float:
    """Least bytes of a head's state that a token moves: weights as in `weight_bytes`, biases read in float32.

    The dual form adds the rows as in `row_bytes`, the primal form the biases' gradient sums as in `sum_bytes`.
    """
    weights = weight_bytes(learner.weights, mini_batch, form, state, sum_element_bytes)
    if form == "dual":
        inner = row_bytes(learner.rows, mini_batch, row_element_bytes)
    else:
        inner = sum_bytes(learner.biases, mini_batch, 4)
    return weights + inner + 4 * learner.biases


def weight_bytes(weights: int, mini_batch: int, form: str, state: str, sum_element_bytes: int) -> float:
    """Mean bytes that a token moves for `weights` weights: every token reads them, one in m rewrites them.

    The primal form adds their gradient sums, as in `sum_bytes`.
    """
    check_form_name(form)
    _, read, rewrite = precision_of(state)
    sums = sum_bytes(weights, mini_batch, sum_element_bytes) if form == "primal" else 0
    return weights * (read + rewrite / mini_batch) + sums


def sum_bytes(elements: int, mini_batch: int, element_bytes: int) -> float:
    """Mean bytes that a token moves for gradient sums: a mini-batch begins without a read, ends without a write."""
    return 2 * elements * element_bytes * (mini_batch - 1) / mini_batch


def row_bytes(elements: int, mini_batch: int, element_bytes: int) -> float:
    """Mean bytes that a token moves for rows of `elements` elements: it reads (m-1)/2 earlier rows and writes one."""
    return elements * element_bytes * ((mini_batch - 1) / 2 + 1)
