"""What the tests of the models share."""

import pytest


@pytest.fixture(scope="module")
def one_thread():
    """Operations of tiny models on one thread: they only wait for a second one, for seconds where cores are busy."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
