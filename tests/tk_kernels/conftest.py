"""Fixtures for the tests of the kernels."""

import pytest


@pytest.fixture
def poisoned():
    """New tensors hold NaN until they are written."""
    import torch

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
