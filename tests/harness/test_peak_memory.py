import mmap
from pathlib import Path

import pytest

from harness.measure import process_state
from harness.measure.process_state import peak_bytes, reset_peak


def resident() -> mmap.mmap:
    """Return 64 MiB of new pages, all written: malloc may reuse pages that are resident already."""
    block = mmap.mmap(-1, 64 << 20)
    block[:: mmap.PAGESIZE] = b"x" * (len(block) // mmap.PAGESIZE)
    return block


def test_a_past_peak_counts() -> None:
    reset_peak("cpu")
    before = peak_bytes("cpu")
    resident().close()
    assert peak_bytes("cpu") - before > 48 << 20


def test_reset_peak_ignores_an_earlier_peak() -> None:
    try:
        (process_state._PROCESS / "clear_refs").write_text("5")
    except OSError:
        pytest.skip("the high-water mark cannot be reset here")
    block = resident()
    high = peak_bytes("cpu")
    block.close()
    reset_peak("cpu")
    assert high - peak_bytes("cpu") > 48 << 20


def test_without_a_high_water_mark_the_peak_is_ru_maxrss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "status").write_text("VmRSS: 1 kB\n")
    monkeypatch.setattr(process_state, "_PROCESS", tmp_path)
    reset_peak("cpu")
    assert peak_bytes("cpu") > 1 << 20
