"""Systems, suites and metrics: the one source of names and labels."""

from bench.catalogue.metrics import AXES, METRICS, PHASE_LABELS
from bench.catalogue.systems import BACKENDS, SYSTEMS
from harness.schema.catalogue import Catalogue, SuiteEntry


def catalogue(suites: tuple[SuiteEntry, ...]) -> Catalogue:
    """Return the catalogue that run.json stores: all names and labels, and these suites."""
    return Catalogue(SYSTEMS, BACKENDS, METRICS, AXES, PHASE_LABELS, suites)
