"""`ttt-bench build --tune`: measure launch settings of the Triton kernels for this GPU, as `tuning.toml` sections."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TextIO

from bench.errors import UserError
from bench.models.config import BASE_LR
from bench.request import words
from tk_kernels import FORMS
from tk_kernels.build import NO_GPU
from tk_kernels.generate.tuning import FORWARD, FORWARD_ROWS, Tuning, section

LEARNERS = tuple(BASE_LR)
TUNED = (*FORMS, FORWARD)


def tune(learners: Sequence[str], forms: str | None, precisions: str | None, batch: int, output: Path | None) -> None:
    """Measure launch settings; write a TOML section per learner and form to a new file or stdout, a log to stderr.

    forms, precisions: comma-separated, None for all. batch: sequences of a generate step. output: None for stdout.
    """
    chosen_learners = _known("LEARNER", learners, LEARNERS) or LEARNERS
    chosen_forms = _known("--form", words("--form", forms), TUNED) or TUNED

    from tk_kernels.generate.common import PRECISIONS, available

    known = tuple(PRECISIONS)
    chosen_precisions = _known("--precision", words("--precision", precisions), known) or known
    if reason := available() or _no_gpu():
        raise UserError(f"nothing can be tuned here: {reason}")

    with _opened(output) as file:
        for learner, form in product(chosen_learners, chosen_forms):
            for name, rows in _rows(learner, form, chosen_precisions, batch).items():
                print(section(name, f"ttt_{learner}", form, rows), end="\n\n", file=file, flush=True)


def _rows(learner: str, form: str, precisions: Sequence[str], batch: int) -> dict[str, dict[str, Tuning]]:
    """Measure and return the fastest settings: name of a section -> row of its table -> settings."""
    from bench.systems.ttt.trial import ForwardTrial, Trial

    forward, found = form == FORWARD, dict[str, dict[str, Tuning]]()
    for row in FORWARD_ROWS[f"ttt_{learner}"] if forward else precisions:
        name, launch = (ForwardTrial(learner, row) if forward else Trial(learner, form, row, batch)).fastest(_log)
        if launch is None:
            _log(f"ttt-{learner} {form} {row}: no candidate can be used")
        else:
            found.setdefault(name, {})[row] = launch
    return found


def _known(option: str, given: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    for word in given:
        if word not in known:
            raise UserError(f"{option} {word}: unknown; there are {', '.join(known)}")
    return tuple(dict.fromkeys(given))


def _no_gpu() -> str:
    import torch

    return "" if torch.cuda.is_available() else NO_GPU


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    """Yield a new file, opened before the measurements, or stdout for None. Raises UserError if the file exists."""
    if output is None:
        yield sys.stdout
        return
    if output.exists():
        raise UserError(f"{output}: exists; name another file")
    with output.open("x") as file:
        yield file
