import math
from pathlib import Path

import pytest

from harness.schema.reason import LIMIT, error_line, format_number, of_exception, rounded, sentence


def test_one_line_of_limited_length() -> None:
    assert sentence("  two\n  lines\t") == "two lines"
    assert len(sentence("x " * 1000)) == LIMIT
    assert sentence("seven77 " * 100).endswith("seven77 seven77…")
    assert len(sentence("x" * 1000)) == LIMIT


def test_torchs_advice_on_memory_is_left_out() -> None:
    needed = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 79.18 GiB of "
        "which 2.04 GiB is free."
    )
    assert sentence(f"{needed} Including non-PyTorch memory, this process has 77.13 GiB memory in use.") == needed


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


def test_a_user_may_have_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
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
def test_error_line(stderr: str, expected: str) -> None:
    found = error_line(stderr)
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0.00"), (0.0999, "0.0999"), (0.09996, "0.100"), (4.0, "4.00"), (99.96, "100"), (1146, "1,150"),
        (1.6e12, "1,600,000,000,000"), (-0.0123, "-0.0123"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_a_number_has_three_digits_and_no_exponent(number: float, expected: str) -> None:
    assert format_number(number) == expected


def test_numbers_of_json_are_rounded() -> None:
    assert [rounded(each, 4) for each in (12345.678, 0.00012345678, math.inf, None)] == [12350.0, 0.0001235, None, None]
