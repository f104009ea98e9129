"""The fixture `without_torch`, which makes the workers of command-line tests start faster."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def without_torch(monkeypatch):
    """Make workers of PyTorch systems run a fake adapter: importing torch is slow."""
    from bench import environments

    fake = "tests.harness.fake_systems:Fake"
    adapters = [replace(each, entry=fake) if each.backend == "torch" else each for each in environments.ADAPTERS]
    monkeypatch.setattr(environments, "ADAPTERS", adapters)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
