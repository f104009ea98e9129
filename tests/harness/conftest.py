"""The fixture `folder`: a path at which a test can create a run."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out"
