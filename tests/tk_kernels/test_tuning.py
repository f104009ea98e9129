"""Kernels get settings from a user's file or tuning.toml; `candidates` includes all settings of tuning.toml."""

import tomllib

import pytest

from tk_kernels import FORMS
from tk_kernels.generate import tuning as table
from tk_kernels.generate.common import PRECISIONS, SM90
from tk_kernels.generate.tuning import FORWARD, FORWARD_ROWS, TABLE, VARIABLE, Tuning, candidates, section, tuning

OPERATORS = ("ttt_linear", "ttt_mlp")
ROWS = [(operator, form, precision) for operator in OPERATORS for form in FORMS for precision in PRECISIONS]
ROWS += [(operator, FORWARD, row) for operator in OPERATORS for row in FORWARD_ROWS[operator]]


@pytest.fixture
def another_table(tmp_path, monkeypatch):
    path = tmp_path / "tuning.toml"
    monkeypatch.setattr(table, "TABLE", path)

    def write(text):
        path.write_text(text)
        for cached in (table._tables, tuning):
            cached.cache_clear()

    yield write
    for cached in (table._tables, tuning):
        cached.cache_clear()


def test_a_missing_row_is_named():
    with pytest.raises(KeyError, match=r"no row ttt_conv\.dual"):
        tuning("ttt_conv", "dual", "planes", "cpu")


def test_sections_with_longer_names_come_first_and_missing_rows_from_default(another_table):
    gpu, kind = Tuning(warps=4, block=0, sm90=True, registers=168), Tuning(warps=4, block=0, sm90=True)
    another_table(
        "\n".join(
            [
                section("sm_90", "ttt_mlp", "dual", {"planes": kind, "bfloat16": kind}),
                section("sm_90 NVIDIA H200", "ttt_mlp", "dual", {"bfloat16": gpu}),
                section("default", "ttt_mlp", "dual", {"float32": Tuning(warps=8, block=64)}),
            ]
        )
    )
    assert tuning("ttt_mlp", "dual", "bfloat16", "sm_90 NVIDIA H200") == gpu
    assert tuning("ttt_mlp", "dual", "planes", "sm_90 NVIDIA H200") == kind
    assert tuning("ttt_mlp", "dual", "bfloat16", "sm_90 NVIDIA H100 80GB HBM3") == kind
    assert tuning("ttt_mlp", "dual", "float32", "sm_90 NVIDIA H200") == Tuning(warps=8, block=64)


def test_the_users_file_comes_first(another_table, tmp_path, monkeypatch):
    another_table("[default.ttt_mlp.forward]\nnarrow = { warps = 8, block = 0 }\nwide = { warps = 8, block = 32 }")
    own = tmp_path / "own.toml"
    own.write_text(section("NVIDIA L4", "ttt_mlp", FORWARD, {"wide": Tuning(warps=16, block=64, stages=1)}))
    monkeypatch.setenv(VARIABLE, str(own))
    assert tuning("ttt_mlp", FORWARD, "wide", "NVIDIA L40S") == Tuning(warps=16, block=64, stages=1)
    assert tuning("ttt_mlp", FORWARD, "wide", "NVIDIA A100") == Tuning(warps=8, block=32)
    assert tuning("ttt_mlp", FORWARD, "narrow", "NVIDIA L40S") == Tuning(warps=8, block=0)


@pytest.mark.parametrize(("text", "reason"), [(None, "No such file"), ("[", "Invalid")])
def test_a_users_file_that_cannot_be_read_is_named(another_table, tmp_path, monkeypatch, text, reason):
    another_table("")
    own = tmp_path / "own.toml"
    if text:
        own.write_text(text)
    monkeypatch.setenv(VARIABLE, str(own))
    with pytest.raises(ValueError, match=rf"TTT_BENCH_TUNING=.*own\.toml cannot be read \(.*{reason}.*unset it"):
        tuning("ttt_linear", FORWARD, "few", "cpu")


@pytest.mark.parametrize("name", tomllib.loads(TABLE.read_text()))
@pytest.mark.parametrize(("operator", "form", "precision"), ROWS)
def test_the_settings_in_use_are_candidates(operator, form, precision, name):
    in_gluon = name.startswith(SM90) and form == "dual" and precision != "float32"
    tried = list(candidates(operator, form, precision, sm90=in_gluon))
    chosen = tuning(operator, form, precision, name)
    assert chosen in tried
    assert chosen.sm90 == in_gluon
    assert len(tried) == len(set(tried))
