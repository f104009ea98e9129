"""Without a GPU, run Triton kernels in the interpreter. Handle SIGINT even if pytest was started with it ignored."""

import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module

import pytest

from harness.measure import nvml
from tests.interpreter import INTERPRETED, speed_up
from tests.two_gpus import TwoGpus

# A shell starts background jobs with SIGINT ignored, and child processes inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

original = os.environ.get("TRITON_INTERPRET")
KERNELS = (
    *(f"ttt_{learner}.{part}" for learner in ("linear", "mlp") for part in ("forward", "generate")),
    "generate.slots",
    "edges.norms_and_gates",
    "edges.short_convolution",
)


# Triton reads the variable where a kernel is defined, so it is set while pytest imports test modules. Otherwise only
# tests with `triton_kernels` see it: Triton and child processes behave differently with it.
def pytest_collectstart() -> None:
    if INTERPRETED:
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if INTERPRETED:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def pytest_collection_finish(session: pytest.Session) -> None:
    needed = any("triton_kernels" in getattr(item, "fixturenames", ()) for item in session.items)
    if INTERPRETED and (needed or "triton" in sys.modules):
        for name in KERNELS:  # define all kernels while the variable is set
            import_module(f"tk_kernels.{name}")
        speed_up()
    if original is None:
        os.environ.pop("TRITON_INTERPRET", None)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Run tiny models on one thread: on a loaded machine a second thread costs seconds."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def triton_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRETED:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoGpus]:
    fake = TwoGpus()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml._initialised.cache_clear()
    yield fake
    nvml._initialised.cache_clear()
