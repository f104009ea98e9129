"""`ttt-bench site` writes a run's site; a user error is one sentence and leaves no files."""

import pytest
from command_line import ROOT, called, one_sentence, ttt_bench

COMMITTED = ROOT / "reports" / "results" / "h100"


def test_the_committed_run_has_a_site(tmp_path):
    done = ttt_bench("site", COMMITTED, "-o", "site", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "wrote site/index.html: 1 run\n"
    assert done.stderr == "[1/1] h100\n"
    assert "NVIDIA H100 80GB HBM3" in (tmp_path / "site" / "index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["site", "none", "-o", "new"], "none: no such folder"),
        (["site", ".", "-o", "new"], "is not a run"),
        (["site", COMMITTED, "-o", ROOT], "is not a ttt-bench site"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_nothing_behind(tmp_path, arguments, words):
    assert words in one_sentence(called(*arguments, cwd=tmp_path))
    assert not list(tmp_path.iterdir())
