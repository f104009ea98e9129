"""Systems, suites and metrics: the one source of names and labels."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from harness.schema.catalogue import Catalogue, SuiteEntry

_FILE = Path(__file__).parent / "catalogue.toml"
CATALOGUE = TypeAdapter(Catalogue).validate_json(json.dumps(tomllib.loads(_FILE.read_text(encoding="utf-8"))))
OPTION_DEFAULTS = {axis.name: axis.default for axis in CATALOGUE.axes if axis.default is not None}


def catalogue(suites: tuple[SuiteEntry, ...]) -> Catalogue:
    """Return the catalogue that run.json stores: all names and labels, and these suites."""
    return replace(CATALOGUE, suites=suites)
