"""What did the user ask for? Command-line words to systems, sizes and axes, each mistake one sentence."""

from collections.abc import Callable
from typing import TypeVar

from bench.errors import UserError
from bench.models.config import SIZES
from bench.suites import Selection
from bench.systems import SYSTEMS, SystemSpec

T = TypeVar("T")


def select(systems: str | None, sizes: str | None, batch: str | None, context: str | None, device: str) -> Selection:
    """The selection of `run` and `verify`; each argument is a comma-separated list or None for the suite's own.

    Without `systems` it has those made for `device` ("cpu", "cuda"); one that is named is tried anywhere.
    """
    return Selection(
        systems=_systems(systems, device),
        sizes=words(sizes, _size),
        batches=words(batch, lambda word: _count("--batch", word)),
        contexts=words(context, lambda word: _count("--context", word)),
    )


def _systems(text: str | None, device: str) -> tuple[SystemSpec, ...]:
    if text is None:
        return tuple(spec for spec in SYSTEMS if device in spec.devices)
    chosen = [spec for word in _split(text) for spec in _named(word, device)]
    return tuple(dict.fromkeys(chosen))


def _named(word: str, device: str) -> list[SystemSpec]:
    """`ttt-linear` is that system on its backends for `device`, on all where it has none; `ttt-linear/torch` is one."""
    found = [spec for spec in SYSTEMS if word in (spec.system, spec.label)]
    made = [spec for spec in found if word == spec.label or device in spec.devices]
    if not found:
        known = ", ".join(spec.label for spec in SYSTEMS)
        raise UserError(f"--systems {word}: unknown; there are {known}")
    return made or found


def _size(word: str) -> str:
    if word not in SIZES:
        raise UserError(f"--sizes {word}: unknown; there are {', '.join(SIZES)}")
    return word


def _count(option: str, word: str) -> int:
    try:
        value = int(word)
    except ValueError:
        raise UserError(f"{option} {word}: not a whole number") from None
    if value < 1:
        raise UserError(f"{option} {word}: must be at least 1")
    return value


def words(text: str | None, parse: Callable[[str], T]) -> tuple[T, ...]:
    """The words of a comma-separated list, each parsed, once; none for None. UserError for an empty list."""
    return () if text is None else tuple(dict.fromkeys(parse(word) for word in _split(text)))


def _split(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UserError(f"{text!r}: an empty list")
    return words
