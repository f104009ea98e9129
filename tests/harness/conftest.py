"""What the tests of the harness share."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a run is to be."""
    return tmp_path / "out"
