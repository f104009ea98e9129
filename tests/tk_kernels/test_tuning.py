"""Every generate kernel finds launch settings on any GPU, and tuning prints what the table reads."""

import math
import tomllib

import pytest

from tk_kernels import FORMS
from tk_kernels.generate import tune
from tk_kernels.generate import tuning as table
from tk_kernels.generate.common import PRECISIONS, SM90
from tk_kernels.generate.tune import OPERATORS, candidates, fastest, section, sections
from tk_kernels.generate.tuning import Tuning, tuning

ROWS = [(operator, form, precision) for operator in OPERATORS for form in FORMS for precision in PRECISIONS]


@pytest.fixture
def another_table(tmp_path, monkeypatch):
    """A function that puts a text in the place of the repository's table."""
    path = tmp_path / "tuning.toml"
    monkeypatch.setattr(table, "TABLE", path)

    def write(text):
        path.write_text(text)
        for cached in (table._table, tuning):
            cached.cache_clear()

    yield write
    for cached in (table._table, tuning):
        cached.cache_clear()


@pytest.mark.parametrize(("operator", "form", "precision"), ROWS)
def test_an_unknown_gpu_has_settings(operator, form, precision):
    assert tuning(operator, form, precision, "a GPU of tomorrow").warps in (1, 2, 4, 8, 16)


def test_a_missing_row_is_named():
    with pytest.raises(KeyError, match=r"no row ttt_conv\.dual"):
        tuning("ttt_conv", "dual", "planes", "cpu")


def test_a_gpu_of_the_table_has_its_own_settings_and_the_default_beside_them(another_table):
    own = section("NVIDIA A100", "ttt_linear", "dual", {"planes": Tuning(warps=2, block=16, registers=128)})
    another_table(
        own + "\n[default.ttt_linear.dual]\nplanes = { warps = 1, block = 32 }\nfloat32 = { warps = 4, block = 64 }"
    )
    assert tuning("ttt_linear", "dual", "planes", "NVIDIA A100-SXM4-80GB") == Tuning(warps=2, block=16, registers=128)
    assert tuning("ttt_linear", "dual", "float32", "NVIDIA A100-SXM4-80GB") == Tuning(warps=4, block=64)
    assert tuning("ttt_linear", "dual", "planes", "NVIDIA H100") == Tuning(warps=1, block=32)


def test_what_tuning_prints_is_what_the_table_reads():
    rows = {"planes": Tuning(warps=8, block=64, matrix=True, registers=128), "float32": Tuning(warps=4, block=32)}
    [(gpu, read)] = tomllib.loads(section("NVIDIA L40S, 48GB", "ttt_mlp", "dual", rows)).items()
    assert gpu == "NVIDIA L40S, 48GB"
    assert {precision: Tuning(**row) for precision, row in read["ttt_mlp"]["dual"].items()} == rows


@pytest.mark.parametrize(("operator", "form", "precision"), ROWS)
def test_the_defaults_are_among_the_candidates(operator, form, precision):
    tried = list(candidates(operator, form, precision))
    assert tuning(operator, form, precision, "a GPU of tomorrow") in tried
    assert len(tried) == len(set(tried))


def test_the_fastest_that_is_right_is_chosen():
    slow, fast, wrong = Tuning(1, 16), Tuning(2, 16), Tuning(4, 16)
    assert fastest([(slow, 3.0), (fast, 2.0), (wrong, math.inf)]) == fast
    assert fastest([(wrong, math.inf)]) is None


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("precision", [p for p in PRECISIONS if p != "float32"])
def test_the_settings_of_the_hopper_kernels_are_among_their_candidates(operator, precision):
    chosen = tuning(operator, "dual", precision, SM90)
    assert chosen.sm90
    assert chosen in candidates(operator, "dual", precision, sm90=True)


def test_sections_are_those_of_the_fastest_settings(monkeypatch):
    """What a command calls: one section for each table entry, with the rows that had a right candidate."""

    def measured(operator, form, precision, batch, log):
        log(f"{operator} {form} {precision} {batch}")
        return ("a GPU", Tuning(warps=2, block=32) if precision == "planes" else None)

    monkeypatch.setattr(tune, "tune", measured)
    monkeypatch.setattr(tune, "available", lambda: "")
    monkeypatch.setattr(tune.torch.cuda, "is_available", lambda: True)
    seen = []
    (text,) = sections(["ttt_mlp"], ["dual"], ["planes", "float32"], 8, seen.append)
    assert tomllib.loads(text) == {"a GPU": {"ttt_mlp": {"dual": {"planes": {"warps": 2, "block": 32}}}}}
    assert seen == ["ttt_mlp dual planes 8", "ttt_mlp dual float32 8"]


def test_without_a_gpu_tuning_says_so(monkeypatch):
    monkeypatch.setattr(tune, "available", lambda: "There is no CUDA GPU")
    with pytest.raises(RuntimeError, match="no CUDA GPU"):
        next(sections())
