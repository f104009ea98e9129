"""Systems, suites and metrics: the one source of names and labels."""

from bench.catalogue.metrics import AXES, METRICS, PHASE_LABELS
from bench.catalogue.systems import BACKENDS, SYSTEMS
from bench.errors import UserError
from harness.schema.catalogue import BackendEntry, Catalogue, SuiteEntry, SystemEntry


def catalogue(suites: tuple[SuiteEntry, ...]) -> Catalogue:
    """Return the catalogue that a run of these suites stores. Raises UserError for an entry that no page can draw."""
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
