import sys
from types import SimpleNamespace
from typing import Any

import pytest

from harness.ranges import nvtx_range, profiler_range, told


def test_nvtx_range_is_popped_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    fake = SimpleNamespace(push_range=calls.append, pop_range=lambda: calls.append("pop"))
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    with pytest.raises(KeyError), nvtx_range("forward"):
        raise KeyError
    assert calls == ["forward", "pop"]


def test_who_asks_is_told_each_range_as_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    names: list[str] = []
    with told(names.append), nvtx_range("prefill"), nvtx_range("layer 0"):
        names.append("work")
    with nvtx_range("nobody asks"):
        assert names == ["prefill", "layer 0", "work"]


def test_without_nvtx_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with nvtx_range("forward"):
        ran = True
    assert ran


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
