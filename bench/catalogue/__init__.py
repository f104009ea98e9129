"""What is measured: the only place where names and labels are defined."""

from bench.catalogue.metrics import AXES, METRICS, PHASE_LABELS
from bench.catalogue.systems import BACKENDS, SYSTEMS
from bench.errors import UserError
from harness.schema.catalogue import BackendEntry, Catalogue, SuiteEntry, SystemEntry


def catalogue(suites: tuple[SuiteEntry, ...]) -> Catalogue:
    """The catalogue that a run of these suites carries with it; UserError where an entry cannot be drawn."""
    try:
        return Catalogue(
            systems=tuple(SystemEntry(s.name, s.label, s.family, s.tone, s.marker) for s in SYSTEMS),
            backends=tuple(BackendEntry(b.name, b.label, b.dash) for b in BACKENDS),
            metrics=METRICS,
            axes=AXES,
            phases=PHASE_LABELS,
            suites=suites,
        )
    except ValueError as error:
        raise UserError(str(error)) from None
