import pytest

from harness.measure import process_state
from harness.measure.process_state import ResidentPeak


def test_a_peak_is_seen_although_it_is_over() -> None:
    peak = ResidentPeak()
    peak.start()
    before = peak.peak_bytes()
    block = bytearray(b"x") * (64 << 20)
    del block
    assert peak.peak_bytes() - before > 48 << 20


def test_an_earlier_peak_is_forgotten_where_the_system_allows_it() -> None:
    try:
        (process_state._PROCESS / "clear_refs").write_text("5")
    except OSError:
        pytest.skip("the high-water mark cannot be reset here")
    block = bytearray(b"x") * (64 << 20)
    peak = ResidentPeak()
    high = peak.peak_bytes()
    del block
    peak.start()
    assert high - peak.peak_bytes() > 48 << 20


def test_without_proc_the_process_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(process_state, "_PROCESS", tmp_path)
    peak = ResidentPeak()
    peak.start()
    assert peak.peak_bytes() > 1 << 20
