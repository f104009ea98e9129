"""Read what the command line asks for: words to suites, systems, sizes and axes; each mistake is one sentence."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.catalogue.suites import TTT
from bench.catalogue.systems import ADAPTERS, Adapter
from bench.errors import UserError, unknown
from bench.models.case_model import Checkpoint
from bench.models.config import BACKBONES, SIZES
from bench.plan import Selection
from harness.schema.case import MOST, PHASES, Scalar

T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """What a command that plans is asked for, in the words of the command line; each list is separated by commas.

    systems, sizes, batch, context, phase, mini_batch, backbone: None for the suites' own.
    """

    suites: tuple[str, ...] = ()
    systems: str | None = None
    sizes: str | None = None
    batch: str | None = None
    context: str | None = None
    phase: str | None = None
    mini_batch: str | None = None
    backbone: str | None = None
    checkpoint: Path | None = None
    device: str = "auto"
    systems_file: Path | None = None
    budget_s: float | None = None
    min_samples: int | None = None
    repeats: int = 1


def select(asked: Asked, device: str, checkpoint: Checkpoint | None = None) -> Selection:
    """The cases that are asked for on `device` ("cpu", "cuda"); of a checkpoint its own size and options.

    Without `systems` it has those made for the device; one that is named is tried anywhere.
    """
    batches = words("--batch", asked.batch, lambda word: _count("--batch", word))
    contexts = words("--context", asked.context, lambda word: _count("--context", word))
    phases = words("--phase", asked.phase, lambda word: _one_of("--phase", word, PHASES))
    if checkpoint:
        own = {"--sizes": asked.sizes, "--mini-batch": asked.mini_batch, "--backbone": asked.backbone}
        _refuse_beside_checkpoint(own)
        adapters = _of_checkpoint(checkpoint, asked.systems, device)
        return Selection(adapters, (checkpoint.size,), batches, contexts, checkpoint.options, phases)
    sizes = words("--sizes", asked.sizes, lambda word: _one_of("--sizes", word, SIZES))
    options: dict[str, tuple[Scalar, ...]] = {
        "mini_batch": words("--mini-batch", asked.mini_batch, lambda word: _count("--mini-batch", word)),
        "backbone": words("--backbone", asked.backbone, lambda word: _one_of("--backbone", word, BACKBONES)),
    }
    given = {name: values for name, values in options.items() if values}
    adapters = _adapters(asked.systems, device)
    if given and not any(adapter.system in TTT for adapter in adapters):
        option = f"--{next(iter(given)).replace('_', '-')}"
        raise UserError(
            f"{option}: none of the systems {', '.join(a.label for a in adapters)} has it; {' and '.join(TTT)} do"
        )
    return Selection(adapters, sizes, batches, contexts, given, phases)


def _refuse_beside_checkpoint(options: dict[str, str | None]) -> None:
    for option, value in options.items():
        if value is not None:
            raise UserError(f"{option} {value}: a checkpoint has its own; leave it out beside --checkpoint")


def _of_checkpoint(checkpoint: Checkpoint, systems: str | None, device: str) -> tuple[Adapter, ...]:
    """The backends of its system; UserError where another system is named."""
    chosen = _adapters(checkpoint.system if systems is None else systems, device)
    for adapter in chosen:
        if adapter.system != checkpoint.system:
            raise UserError(
                f"--checkpoint {checkpoint.folder.name}: its config.json is of {checkpoint.system}, "
                f"which {adapter.label} of --systems does not run"
            )
    return chosen


def _adapters(text: str | None, device: str) -> tuple[Adapter, ...]:
    if text is None:
        return tuple(adapter for adapter in ADAPTERS if device in adapter.devices)
    chosen = [adapter for word in _split("--systems", text) for adapter in _named(word, device)]
    return tuple(dict.fromkeys(chosen))


def _named(word: str, device: str) -> list[Adapter]:
    """`ttt-linear` is that system on its backends for `device`, on all where it has none; `ttt-linear/torch` is one."""
    found = [adapter for adapter in ADAPTERS if word in (adapter.system, adapter.label)]
    made = [adapter for adapter in found if word == adapter.label or device in adapter.devices]
    if not found:
        if " " in word:
            raise UserError(f"--systems {word!r}: names are separated by commas")
        systems = dict.fromkeys(adapter.system for adapter in ADAPTERS)
        names = [*(adapter.label for adapter in ADAPTERS), *systems]
        raise unknown(f"--systems {word}", word, names, f"{', '.join(systems)}, each also as SYSTEM/BACKEND")
    return made or found


def _one_of(option: str, word: str, known: Iterable[str]) -> str:
    if word not in known:
        raise UserError(f"{option} {word}: unknown; there are {', '.join(known)}")
    return word


def _count(option: str, word: str) -> int:
    try:
        value = int(word)
    except ValueError:
        raise UserError(f"{option} {word}: not a whole number{_as_number(word)}") from None
    if value < 1:
        raise UserError(f"{option} {word}: must be at least 1")
    if value > MOST:
        raise UserError(f"{option} {word}: must be at most {MOST}")
    return value


def _as_number(word: str) -> str:
    """What is to be written for `2k`."""
    number, unit = word[:-1], word[-1:].lower()
    return f"; write {int(number) << 10}" if unit == "k" and number.isdecimal() and len(number) < 16 else ""


def words(option: str, text: str | None, parse: Callable[[str], T]) -> tuple[T, ...]:
    """The words of an option's comma-separated list, each parsed, once; none for None. UserError for an empty list."""
    return () if text is None else tuple(dict.fromkeys(parse(word) for word in _split(option, text)))


def _split(option: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UserError(f"{option} {text!r}: is an empty list")
    return words
