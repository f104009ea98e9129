"""`ttt-bench build --tune`: launch settings of the Triton kernels for this GPU, as sections of `tuning.toml`."""

import sys
from collections.abc import Iterator, Sequence
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
    """Write a section for each learner and form to a new file, or print it; each candidate goes to stderr."""
    for word in learners:
        _known("LEARNER", word, LEARNERS)
    forms_asked = words("--form", forms, lambda word: _known("--form", word, TUNED)) or TUNED

    from tk_kernels.generate.common import PRECISIONS, available

    known = tuple(PRECISIONS)
    precisions_asked = words("--precision", precisions, lambda word: _known("--precision", word, known)) or known
    if reason := available() or _no_gpu():
        raise UserError(f"nothing can be tuned here: {reason}")

    with _opened(output) as file:
        for learner, form in product(dict.fromkeys(learners or LEARNERS), forms_asked):
            for name, rows in _rows(learner, form, precisions_asked, batch).items():
                print(section(name, f"ttt_{learner}", form, rows), end="\n\n", file=file, flush=True)


def _rows(learner: str, form: str, precisions: Sequence[str], batch: int) -> dict[str, dict[str, Tuning]]:
    """The fastest settings by section of the table and row."""
    from bench.systems.ttt.trial import ForwardTrial, Trial

    forward, found = form == FORWARD, dict[str, dict[str, Tuning]]()
    for row in FORWARD_ROWS[f"ttt_{learner}"] if forward else precisions:
        name, launch = (ForwardTrial(learner, row) if forward else Trial(learner, form, row, batch)).fastest(_log)
        if launch is None:
            _log(f"ttt-{learner} {form} {row}: no candidate can be used")
        else:
            found.setdefault(name, {})[row] = launch
    return found


def _known(option: str, word: str, known: Sequence[str]) -> str:
    if word not in known:
        raise UserError(f"{option} {word}: unknown; there are {', '.join(known)}")
    return word


def _no_gpu() -> str:
    import torch

    return "" if torch.cuda.is_available() else NO_GPU


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    """A new file, opened before anything is measured, or standard output; no file is overwritten."""
    if output is None:
        yield sys.stdout
        return
    try:
        file = output.open("x")
    except FileExistsError:
        raise UserError(f"{output}: exists; name another file") from None
    except OSError as error:
        raise UserError(f"{output}: cannot be written: {error.strerror}") from None
    with file:
        yield file
