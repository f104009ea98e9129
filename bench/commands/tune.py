"""`ttt-bench build --tune`: measure Triton launch settings, as `tuning.toml` sections."""

import sys
from collections.abc import Sequence
from itertools import product

from bench.errors import UserError
from bench.models.config import BASE_LR
from tk_kernels import FORMS
from tk_kernels.generate.tuning import FORWARD, FORWARD_ROWS, Tuning, section

LEARNERS = tuple(BASE_LR)


def tune(learners: Sequence[str]) -> None:
    """Measure launch settings; print a TOML section per learner and form, and a log to stderr.

    learners: "linear" or "mlp"; () for both. Raises UserError for another word, or without a GPU.
    """
    for word in learners:
        if word not in LEARNERS:
            raise UserError(f"LEARNER {word}: unknown; there are {', '.join(LEARNERS)}")

    from bench.systems.needs import no_gpu
    from tk_kernels.generate.common import available

    if reason := available() or no_gpu():
        raise UserError(f"the kernels cannot be tuned on this machine: {reason}")
    for learner, form in product(dict.fromkeys(learners or LEARNERS), (*FORMS, FORWARD)):
        for name, rows in _rows(learner, form).items():
            print(section(name, f"ttt_{learner}", form, rows), end="\n\n", flush=True)


def _rows(learner: str, form: str) -> dict[str, dict[str, Tuning]]:
    """Return TOML section -> row (a precision, or one of FORWARD_ROWS) -> fastest settings."""
    from bench.systems.ttt.trial import fastest_forward, fastest_step
    from tk_kernels.generate.common import PRECISIONS

    forward, found = form == FORWARD, dict[str, dict[str, Tuning]]()
    for row in FORWARD_ROWS[f"ttt_{learner}"] if forward else PRECISIONS:
        name, launch = fastest_forward(learner, row, _log) if forward else fastest_step(learner, form, row, _log)
        if launch is None:
            _log(f"ttt-{learner} {form} {row}: no candidate can be used")
        else:
            found.setdefault(name, {})[row] = launch
    return found


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
