"""Fixtures of the kernel tests."""

import sys

import pytest


@pytest.fixture(autouse=True)
def empty_gpu_cache():
    """Empty PyTorch's GPU cache after each test: parallel tests share the memory of one GPU."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@pytest.fixture
def poisoned():  # new tensors hold NaN until written
    import torch

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
