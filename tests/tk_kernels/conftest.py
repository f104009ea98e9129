"""Fixtures for the tests of the kernels."""

import sys

import pytest


@pytest.fixture(autouse=True)
def memory_for_others():
    """Tests that run side by side share a GPU's memory: what one keeps for its next tensors, the largest lacks."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@pytest.fixture
def poisoned():
    """New tensors hold NaN until they are written."""
    import torch

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
