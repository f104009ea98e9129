"""Which systems, sizes and options does a request choose? Each mistake is one sentence."""

from dataclasses import dataclass

from bench.catalogue.suites import TTT, Panel
from bench.catalogue.systems import ADAPTERS, Adapter
from bench.errors import UserError, unknown
from bench.models.case_model import Checkpoint
from bench.request import RunRequest
from harness.schema.case import Scalar


@dataclass(frozen=True)
class Selection:
    """The systems of a plan, and its axes; an empty one leaves the suite's own. A checkpoint has its size and options.

    With a checkpoint only whole models run: the inputs of a layer's case are random.
    """

    adapters: tuple[Adapter, ...]
    batches: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    phases: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None

    def sizes_of(self, panel: Panel) -> tuple[str, ...]:
        """The sizes of a panel's cases."""
        return (self.checkpoint.size,) if self.checkpoint else panel.sizes

    def options_of(self, panel: Panel) -> dict[str, tuple[Scalar, ...]]:
        """The options of a panel's cases, each with its values."""
        own: dict[str, tuple[Scalar, ...]] = {**panel.options, "scope": (panel.scope,)}
        return {**own, **self.checkpoint.options} if self.checkpoint else own


def select(request: RunRequest, device: str, checkpoint: Checkpoint | None = None) -> Selection:
    """What is asked for on `device` ("cpu", "cuda").

    Without `systems` it has those made for the device; one that is named is tried anywhere.
    """
    adapters = _adapters(request.systems, device)
    if checkpoint:
        adapters = _of_checkpoint(checkpoint, adapters if request.systems else _adapters((checkpoint.system,), device))
    return Selection(adapters, request.batch, request.context, request.phase, checkpoint)


def _of_checkpoint(checkpoint: Checkpoint, adapters: tuple[Adapter, ...]) -> tuple[Adapter, ...]:
    """The adapters; UserError for one of a system other than the checkpoint's."""
    assert checkpoint.system in TTT
    for adapter in adapters:
        if adapter.system != checkpoint.system:
            raise UserError(
                f"--checkpoint {checkpoint.folder.name}: its config.json is of {checkpoint.system}, "
                f"which {adapter.label} of --systems does not run"
            )
    return adapters


def _adapters(names: tuple[str, ...], device: str) -> tuple[Adapter, ...]:
    if not names:
        return tuple(adapter for adapter in ADAPTERS if device in adapter.devices)
    return tuple(dict.fromkeys(adapter for name in names for adapter in _named(name, device)))


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
