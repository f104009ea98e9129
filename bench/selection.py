"""Read what the command line asks for: words to suites, systems, sizes and axes; each mistake is one sentence."""

from collections.abc import Callable
from typing import TypeVar

from bench.catalogue.systems import ADAPTERS, Adapter
from bench.errors import UserError
from bench.models.config import SIZES
from bench.plan import Selection

T = TypeVar("T")


def select(systems: str | None, sizes: str | None, batch: str | None, context: str | None, device: str) -> Selection:
    """The selection of `run` and `verify`; each argument is a comma-separated list or None for the suite's own.

    Without `systems` it has those made for `device` ("cpu", "cuda"); one that is named is tried anywhere.
    """
    return Selection(
        adapters=_adapters(systems, device),
        sizes=words(sizes, _size),
        batches=words(batch, lambda word: _count("--batch", word)),
        contexts=words(context, lambda word: _count("--context", word)),
    )


def _adapters(text: str | None, device: str) -> tuple[Adapter, ...]:
    if text is None:
        return tuple(adapter for adapter in ADAPTERS if device in adapter.devices)
    chosen = [adapter for word in _split(text) for adapter in _named(word, device)]
    return tuple(dict.fromkeys(chosen))


def _named(word: str, device: str) -> list[Adapter]:
    """`ttt-linear` is that system on its backends for `device`, on all where it has none; `ttt-linear/torch` is one."""
    found = [adapter for adapter in ADAPTERS if word in (adapter.system, adapter.label)]
    made = [adapter for adapter in found if word == adapter.label or device in adapter.devices]
    if not found:
        known = ", ".join(adapter.label for adapter in ADAPTERS)
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
