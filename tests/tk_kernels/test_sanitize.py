"""`make sanitize` runs every kernel of the package."""

import re
from pathlib import Path

import tk_kernels
from tests.tk_kernels.sanitize import KERNELS
from tk_kernels import build

ROOT = Path(tk_kernels.__file__).parent
HELPERS = {"forward/common", "generate/common", "generate/gluon"}  # have no kernels of their own


def test_every_kernel_is_sanitized() -> None:
    files = {path.relative_to(ROOT).with_suffix("").as_posix(): path.read_text() for path in ROOT.rglob("*.py")}
    triton = {name for name, text in files.items() if re.search(r"^@(gluon\.)?jit$", text, re.MULTILINE)}
    generated = {name.removesuffix("_sm90") for name in triton - HELPERS}
    assert generated | set(build.KERNELS) == set(KERNELS)
