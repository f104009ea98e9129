import pytest

from harness.measure import process_state
from harness.measure.process_state import ResidentPeak


def test_a_past_peak_counts() -> None:
    peak = ResidentPeak()
    peak.start()
    before = peak.peak_bytes()
    block = bytearray(b"x") * (64 << 20)
    del block
    assert peak.peak_bytes() - before > 48 << 20


def test_start_forgets_an_earlier_peak() -> None:
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


def test_without_proc_the_peak_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(process_state, "_PROCESS", tmp_path)
    peak = ResidentPeak()
    peak.start()
    assert peak.peak_bytes() > 1 << 20
