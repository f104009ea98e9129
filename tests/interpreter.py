"""How do tests of Triton kernels run without a GPU? In Triton's interpreter, in a process of their own.

TRITON_INTERPRET counts when Triton is imported, so it cannot be set for single tests.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"


def assert_passes_interpreted(test_file: str) -> None:
    """Run what needs no GPU of `test_file` in a process whose Triton interprets; skipped inside of that process."""
    pytest.importorskip("triton")
    if INTERPRETED:
        pytest.skip("this is that process")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not gpu", test_file]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
