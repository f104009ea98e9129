"""Scripts must not spread long arrays into arguments of a call, which would exceed the call stack."""

import re
from pathlib import Path

import pytest

SCRIPTS = sorted(Path(__file__).parents[2].glob("reports/*/*.js"))
SPREAD = re.compile(r"Math\.(?:min|max)\([^;]*?\.\.\.|\.append\(\.\.\.rows\b")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_script_spreads_values_or_rows_over_arguments(script: Path) -> None:
    assert SPREAD.findall(script.read_text("utf-8")) == []
