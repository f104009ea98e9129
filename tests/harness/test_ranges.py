import sys
from types import SimpleNamespace

import pytest

from harness.measure.ranges import nvtx_range, on_range, profiler_range


class FakeNvtx:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, in_use: bool = True) -> None:
        self.calls: list[str] = []
        nvtx = SimpleNamespace(range_push=self.calls.append, range_pop=lambda: self.calls.append("pop"))
        cuda = SimpleNamespace(is_initialized=lambda: in_use, nvtx=nvtx)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def test_nvtx_range_is_popped_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    nvtx = FakeNvtx(monkeypatch)
    with pytest.raises(KeyError), nvtx_range("forward"):
        raise KeyError
    assert nvtx.calls == ["forward", "pop"]


def test_the_callback_gets_each_range_as_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    with on_range(names.append), nvtx_range("forward"), nvtx_range("layer 0"):
        names.append("work")
    with nvtx_range("after the block"):
        assert names == ["forward", "layer 0", "work"]


def test_before_cuda_is_in_use_a_range_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nvtx = FakeNvtx(monkeypatch, in_use=False)
    with nvtx_range("forward"):
        ran = True
    assert ran
    assert nvtx.calls == []


def test_a_range_imports_no_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with nvtx_range("forward"):
        assert "torch" not in sys.modules


def test_profiler_range_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    calls: list[str] = []
    interface = SimpleNamespace(
        cudaProfilerStart=lambda: calls.append("start"), cudaProfilerStop=lambda: calls.append("stop")
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("wait"))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: interface)
    with profiler_range("cuda"):
        calls.append("work")
    with profiler_range("cpu"):
        calls.append("cpu work")
    assert calls == ["wait", "start", "work", "wait", "stop", "cpu work"]
