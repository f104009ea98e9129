"""Fixtures for tests of the models."""

import pytest


@pytest.fixture(scope="module")
def one_thread():
    """Run tiny models on one thread: on a loaded machine a second one costs seconds."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
