import math

import pytest

from harness.measure.correctness import Check, Checks, relative_error, total_variation

torch = pytest.importorskip("torch")


def test_at_most() -> None:
    assert Check.at_most("error", 0.01, 0.01).passed
    assert not Check.at_most("error", 0.011, 0.01).passed
    assert not Check.at_most("error", math.nan, 0.01).passed
    assert not Check.at_most("error", math.inf, 0.01).passed


def test_every_check_must_pass() -> None:
    good, bad = Check.at_most("a", 0, 1), Check.at_most("b", 2, 1)
    assert Checks([good]).passed
    assert not Checks([good, bad]).passed
    assert Checks([good, bad]).reason == "b is 2, limit 1"
    assert (Checks([]).passed, Checks([]).reason) == (False, "nothing was checked")


def test_adding_keeps_checks_and_notes_of_both() -> None:
    good, bad = Check.at_most("a", 0, 1), Check.at_most("b", 2, 1)
    both = Checks([good], "half of the heads") + Checks([bad])
    assert both == Checks([good, bad], "half of the heads")
    assert (both + Checks([], "the last token")).unchecked == "half of the heads; the last token"
    assert (both + both).unchecked == "half of the heads"


def test_relative_error() -> None:
    ref = torch.tensor([3.0, 4.0])
    assert relative_error(ref, ref) == 0
    assert relative_error(ref + torch.tensor([0.0, 0.5]), ref) == pytest.approx(0.1)
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0
    assert relative_error(torch.ones(2), torch.zeros(2)) == math.inf


def test_relative_error_of_low_precision_is_taken_in_float64() -> None:
    ref = torch.full((4096,), 100.0, dtype=torch.float64)
    assert relative_error(ref.bfloat16(), ref) == 0
    assert relative_error((ref + 1e-9), ref) == pytest.approx(1e-11, rel=1e-3)
    # The squares overflow in half precision.
    assert relative_error(torch.full((8,), 6e4, dtype=torch.float16), torch.full((8,), 6e4)) < 1e-3


def test_relative_error_by_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    out, ref = torch.randn(3, 50), torch.randn(3, 50)
    expected = float((out - ref).double().norm() / ref.double().norm())
    monkeypatch.setattr("harness.measure.correctness._CHUNK", 7)
    assert relative_error(out, ref) == pytest.approx(expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_not_finite_never_passes(bad: float) -> None:
    ref = torch.ones(4, 8)
    out = ref.clone()
    out[2, 3] = bad
    for a, b in [(out, ref), (ref, out), (out, out)]:
        assert not Check.at_most("error", relative_error(a, b), 1e9).passed
    assert not Check.at_most("distance", total_variation(out, ref), 1.0).passed


def test_total_variation_is_of_the_worst_row() -> None:
    ref = torch.log(torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
    out = torch.log(torch.tensor([[0.5, 0.5], [0.8, 0.2]]))
    assert total_variation(out, ref) == pytest.approx(0.3)
    assert total_variation(ref, ref) == 0
    assert total_variation(ref[:0], ref[:0]) == 0


def test_probabilities_of_low_precision_are_taken_in_float64() -> None:
    out = torch.linspace(-3, 3, 1000).bfloat16()
    assert total_variation(out, out.double()) < 1e-12


@pytest.mark.parametrize("distance", [relative_error, total_variation])
def test_shapes_must_agree(distance: object) -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 3\): the reference has \(3, 2\)"):
        distance(torch.zeros(2, 3), torch.zeros(3, 2))  # type: ignore[operator]
