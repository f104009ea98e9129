from pathlib import Path

import pytest

from harness.schema.reason import LIMIT, last_words, of_exception, rounded, sentence


def test_one_line_of_limited_length() -> None:
    assert sentence("  two\n  lines\t") == "two lines"
    assert len(sentence("x " * 1000)) == LIMIT
    assert sentence("x " * 1000).endswith("…")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot open /home/someone/models/x.bin", "cannot open x.bin"),
        ("in '/opt/a/b.py', line 3", "in 'b.py', line 3"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("1/2 of the tokens/s", "1/2 of the tokens/s"),
        (f"{Path.home()} is full", "~ is full"),
    ],
)
def test_no_folders(text: str, expected: str) -> None:
    assert sentence(text) == expected


@pytest.mark.parametrize("home", ["/", None])
def test_a_user_may_have_no_home(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    def home_of_nobody() -> Path:
        if home is None:
            raise RuntimeError("Could not determine home directory.")
        return Path(home)

    monkeypatch.setattr(Path, "home", home_of_nobody)
    assert sentence("a/b failed: 3 GB/s at /srv/alice/run/x.py") == "a/b failed: 3 GB/s at x.py"


def test_of_exception() -> None:
    assert of_exception(RuntimeError("\nCUDA error: bad\nCompile with ...")) == "RuntimeError: CUDA error: bad"
    assert of_exception(MemoryError()) == "MemoryError"


TRACEBACK = """Loading weights
Traceback (most recent call last):
  File "/x/y.py", line 1, in <module>
    import nothing
ModuleNotFoundError: No module named 'nothing'
[W1121 10:00:00 something was not shut down]
"""


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        (TRACEBACK, "ModuleNotFoundError: No module named 'nothing' (y.py, line 1)"),
        (
            "  File \"/x/own.py\", line 18\n    class A\n           ^\nSyntaxError: expected ':'\n",
            "SyntaxError: expected ':' (own.py, line 18)",
        ),
        (
            'Traceback (most recent call last):\n  File "/x/own.py", line 3, in build\n'
            '  File "/v/lib/python3.12/site-packages/torch/nn.py", line 9, in f\nValueError: no\n',
            "ValueError: no (own.py, line 3)",
        ),
        ("hello\nworld\n\n  indented\n-----\n", "world"),
        ("Fatal Python error: Segmentation fault\n\nCurrent thread 0x00 (most recent call first):\n", "Fatal Python"),
        ("", ""),
        ("  \n---\n", ""),
    ],
)
def test_last_words(stderr: str, expected: str) -> None:
    found = last_words(stderr)
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


@pytest.mark.parametrize(
    ("number", "said"),
    [(4.0, "4"), (4.456, "4.46"), (3343.0, "3,340"), (1.6e12, "1,600,000,000,000"), (0.0123, "0.0123")],
)
def test_three_digits_without_an_exponent(number: float, said: str) -> None:
    assert rounded(number) == said
