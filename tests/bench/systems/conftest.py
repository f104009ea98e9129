"""Fixtures for the tests of the systems."""

import pytest


@pytest.fixture(autouse=True)
def few_gate_steps(monkeypatch):
    """Check logits after 2 steps instead of 13: the reference prefills a prompt per step."""
    monkeypatch.setattr("bench.systems.language_model.GATE_STEPS", 2)
