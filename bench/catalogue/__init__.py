"""Labels, units and drawing styles of systems, backends, options and metrics, from `catalogue.toml`."""

import json
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from bench.errors import UserError
from harness.schema.catalogue import Catalogue
from harness.schema.files import read_toml
from harness.schema.reason import invalid

_FILE = Path(__file__).parent / "catalogue.toml"
try:  # run.json stores the catalogue, with the suites of the run
    CATALOGUE = TypeAdapter(Catalogue).validate_json(json.dumps(read_toml(_FILE, UserError)))
except ValidationError as error:
    raise UserError(f"{_FILE.name}: {invalid(error)}") from None
OPTION_DEFAULTS = {axis.name: axis.default for axis in CATALOGUE.axes if axis.default is not None}
