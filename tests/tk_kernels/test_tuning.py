"""Every generate kernel finds launch settings on any GPU, among candidates, and a section is what the table reads."""

import tomllib

import pytest

from tk_kernels import FORMS
from tk_kernels.generate import tuning as table
from tk_kernels.generate.common import PRECISIONS, SM90
from tk_kernels.generate.tuning import Tuning, candidates, section, tuning

OPERATORS = ("ttt_linear", "ttt_mlp")
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


def test_a_section_is_what_the_table_reads():
    rows = {"planes": Tuning(warps=8, block=64, matrix=True, registers=128), "float32": Tuning(warps=4, block=32)}
    [(gpu, read)] = tomllib.loads(section("NVIDIA L40S, 48GB", "ttt_mlp", "dual", rows)).items()
    assert gpu == "NVIDIA L40S, 48GB"
    assert {precision: Tuning(**row) for precision, row in read["ttt_mlp"]["dual"].items()} == rows


@pytest.mark.parametrize(("operator", "form", "precision"), ROWS)
def test_the_defaults_are_among_the_candidates(operator, form, precision):
    tried = list(candidates(operator, form, precision))
    assert tuning(operator, form, precision, "a GPU of tomorrow") in tried
    assert len(tried) == len(set(tried))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("precision", [p for p in PRECISIONS if p != "float32"])
def test_the_settings_of_the_hopper_kernels_are_among_their_candidates(operator, precision):
    chosen = tuning(operator, "dual", precision, SM90)
    assert chosen.sm90
    assert chosen in candidates(operator, "dual", precision, sm90=True)
