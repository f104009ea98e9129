"""TTT-MLP's sixth design computes what the float64 reference does, without races, on an emulated GPU.

The kernel's own source is compiled for the CPU with `emulator/`, so that it is known right before a GPU runs it.
"""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.tk_kernels.test_ttt_mlp_forward import arguments, assert_matches, exact
from tk_kernels.ttt_mlp import ops
from tk_kernels.ttt_mlp.reference import MLPState

EMULATOR = Path(__file__).parent / "emulator"
KERNEL = Path(ops.__file__).parent / "forward_sixth_sm90.cuh"


def compiles_c20() -> bool:
    """Whether there is a g++ with C++20 and 16-bit floats, as the emulator needs."""
    if shutil.which("g++") is None:
        return False
    command = ["g++", "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    return subprocess.run(command, input=b"_Float16 x;", capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the emulator's threads are contexts of Linux"),
    pytest.mark.skipif(not compiles_c20(), reason="there is no g++ with C++20 and _Float16"),
]


def compiled(folder: Path, source: str) -> ctypes.CDLL:
    """The emulated kernel of this source."""
    (folder / KERNEL.name).write_text(source)
    library = folder / "forward.so"
    options = ["-std=c++20", "-O2", "-shared", "-fPIC", "-Wno-unknown-pragmas", f"-I{folder}", f"-I{EMULATOR}"]
    subprocess.run(["g++", *options, EMULATOR / "forward_sixth.cpp", "-o", library], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.forward.restype = ctypes.c_char_p
    return loaded


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("emulated"), KERNEL.read_text())


def run(kernel: ctypes.CDLL, tensors: list[Tensor], rope: bool, seed: int = 0) -> str:
    """The kernel over pointers to its arguments and results; what went wrong, or nothing."""
    assert all(x.is_contiguous() for x in tensors)
    pointers = (ctypes.c_void_p * len(tensors))(*(x.data_ptr() for x in tensors))
    batch, tokens, heads, _ = tensors[0].shape
    return kernel.forward(pointers, batch, tokens, heads, int(rope), seed).decode()


@pytest.fixture
def forward(kernel: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch):
    """The operator, its kernel emulated: results begin as NaN."""

    def emulated(*tensors_and_rope, seed=0):
        *tensors, rope = tensors_and_rope
        results = ops._empty_results(tensors[0], tensors[4], *tensors[7:])
        for result in results:
            result.fill_(float("nan"))
        failure = run(kernel, [x.contiguous() for x in (*tensors, *results)], rope, seed)
        assert not failure
        return results

    monkeypatch.setattr(ops, "_forward", emulated)
    return ops.forward


@pytest.mark.parametrize(("tokens", "rotate"), [(1, False), (16, True), (50, True), (64, False), (100, False)])
def test_matches_the_reference(forward, tokens, rotate):
    args = arguments(tokens, batch=1, heads=2)
    assert_matches(*forward(*args, start=0, rope=rotate), exact(args, rotate=rotate))
