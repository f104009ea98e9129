"""Without a GPU, tests run Triton kernels in its interpreter."""

import os

import pytest

from tests.interpreter import INTERPRETED

before = os.environ.get("TRITON_INTERPRET")

# The variable counts where a kernel is defined, so it is set while test modules are imported; afterwards only tests
# that ask for it see it, as Triton and child processes behave differently with it.
if INTERPRETED:
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_finish() -> None:
    if before is None:
        os.environ.pop("TRITON_INTERPRET", None)


@pytest.fixture
def triton_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that run Triton kernels: in the interpreter where there is no GPU."""
    if INTERPRETED:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
