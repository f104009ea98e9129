"""Labels, units and drawing styles of systems, backends, options and metrics, from `catalogue.toml`."""

import json
import tomllib
from pathlib import Path

from pydantic import TypeAdapter

from harness.schema.catalogue import Catalogue

_FILE = Path(__file__).parent / "catalogue.toml"
# run.json stores the catalogue, with the suites of the run.
CATALOGUE = TypeAdapter(Catalogue).validate_json(json.dumps(tomllib.loads(_FILE.read_text(encoding="utf-8"))))
OPTION_DEFAULTS = {axis.name: axis.default for axis in CATALOGUE.axes if axis.default is not None}
