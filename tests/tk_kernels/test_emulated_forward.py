"""TTT-MLP's forward kernel computes what the float64 reference does, without races, on an emulated GPU.

The kernel's own source is compiled for the CPU with `emulator/`, so that it is known right before a GPU runs it.
"""

import ctypes
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.tk_kernels.mlp_prompts import arguments, assert_matches, exact
from tk_kernels.reference.token_rows import clone
from tk_kernels.ttt_mlp import ops

EMULATOR = Path(__file__).parent / "emulator"
KERNEL = Path(ops.__file__).parent / "block_sm90.cuh"
ORDERS = int(os.environ.get("EMULATED_ORDERS", "3"))  # a race that needs rare delays took some 300


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
    options = ["-std=c++20", "-Og", "-shared", "-fPIC", "-Wno-unknown-pragmas", f"-I{folder}", f"-I{EMULATOR}"]
    subprocess.run(["g++", *options, EMULATOR / "forward.cpp", "-o", library], check=True)
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


INPUTS = 11  # q, k, v, lr, token_scale, ln_weight, ln_bias, W1, b1, W2, b2


def prompt(tokens: int) -> list[Tensor]:
    """The inputs of one sequence and head."""
    args = arguments(tokens, batch=1, heads=1)
    return [x.contiguous() for x in (*args[:-1], *args[-1][:4])]


def empty_results(tensors: list[Tensor]) -> list[Tensor]:
    """What the kernel writes: the outputs, the weights and the rows."""
    after = ops._empty_state(tuple(tensors[7:]), torch.empty(len(tensors[0]), dtype=torch.int32), len(tensors[4]))
    return [torch.empty_like(tensors[0]), *after[:-1]]


@pytest.fixture
def forward(kernel: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch):
    """The operator, its kernel emulated: results that are not the state's own tensors begin as NaN."""

    def emulated(*arguments):
        *tensors, rope, _ = arguments
        inputs, results = tensors[:INPUTS], tensors[INPUTS:]
        for result in results:
            if all(result is not given for given in inputs):
                result.fill_(float("nan"))
        failure = run(kernel, [*(x.contiguous() for x in inputs), *results], rope)
        assert not failure

    monkeypatch.setattr(ops, "_forward", emulated)
    return ops.forward


@pytest.mark.parametrize(("tokens", "rotate"), [(1, False), (16, True), (50, True), (64, False), (100, False)])
def test_matches_the_reference(forward, tokens, rotate):
    args = arguments(tokens, batch=1, heads=2)
    assert_matches(*forward(*args, start=0, rope=rotate), exact(args, rotate=rotate))


def test_continues_from_a_state_and_in_the_middle_of_a_mini_batch(forward):
    args = arguments(75, batch=2, heads=1)
    outputs, state = [], args[-1]
    for piece in (slice(16), slice(16, 37), slice(37, None)):
        out, state = forward(*(x[:, piece] for x in args[:4]), *args[4:7], state, rope=True)
        outputs.append(out)
    assert_matches(torch.cat(outputs, 1), state, exact(args, rotate=True))


@pytest.mark.parametrize("tokens", [5, 40, 64])
def test_in_place_it_leaves_the_same_bits(forward, tokens):
    args = arguments(tokens, batch=2, heads=1)
    expected, after = forward(*args, start=0)
    state = clone(args[-1])
    out, same = forward(*args[:-1], state, start=0, inplace=True)
    assert same is state
    assert all(torch.equal(a, b) for a, b in zip((out, *state), (expected, *after), strict=True))


@pytest.mark.parametrize("last", [0.0, 1e-4, 5e-3])
def test_a_small_last_scale(forward, last):
    """Other scales are then large in units of it: too large for 16 bits, unless the kernel changes the unit."""
    args = arguments(50, batch=1, heads=1)
    args[4][-1] = last
    out, state = forward(*args, start=0)
    assert_matches(out, state, exact(args))
    if last == 0:
        assert all(torch.equal(new, old) for new, old in zip(state[:4], args[-1][:4], strict=True))


def test_every_order_gives_the_same_bits(kernel):
    tensors = prompt(70)
    runs = []
    for seed in range(3):
        results = empty_results(tensors)
        assert not run(kernel, [*tensors, *results], rope=False, seed=seed)
        runs.append(results)
    assert all(torch.equal(a, b) for other in runs[1:] for a, b in zip(runs[0], other, strict=True))


def test_no_drawn_order_of_longer_prompts_races(kernel):
    draw = random.Random(1)
    for _ in range(ORDERS):
        tokens, rope, seed = draw.choice((150, 208, 327)), draw.random() < 0.5, draw.randrange(10**6)
        tensors = prompt(tokens)
        found = run(kernel, [*tensors, *empty_results(tensors)], rope=rope, seed=seed)
        assert not found, (tokens, rope, seed, found)


PLANTED = {
    "W2 read before it is whole": (
        "barrier_sync(STATE + part, WARPGROUP);  // all of",
        "// all of",
        "race|not published",
    ),
    "no wait for the group's readers": (
        "if ((i & 3) == 3 && i >= 7) mbarrier_wait(GROUP_READ",
        "if (false) mbarrier_wait(GROUP_READ",
        "race",
    ),
    "stores that products do not see": (
        "        activate(1, x2_to, z, t);\n        publish();",
        "        activate(1, x2_to, z, t);",
        "not published",
    ),
    "an operand taken back too early": (
        "if (k + AHEAD >= BUFFERS && k + AHEAD < 8) await_products<BUFFERS - AHEAD>();",
        "",
        "changed",
    ),
    "lanes in no order": ("        sync_warp();  // four lanes share them\n", "", "race: lane"),
    "tokens loaded over ones that are read": (
        "if (loads == VALUES) load_v(a, i + 1);",
        "if (loads == VALUES) load_v(a, i + 2);",
        "race: TMA",
    ),
    "an arrival less": ("mbarrier_arrive(Z2_READY);", "if (i != 3) mbarrier_arrive(Z2_READY);", "deadlock"),
    "the wrong phase": ("mbarrier_wait(G2_READY, (i + 1) & 1);", "mbarrier_wait(G2_READY, i & 1);", "deadlock|race"),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(tmp_path, mistake):
    right, wrong, message = PLANTED[mistake]
    source = KERNEL.read_text()
    assert source.count(right) == 1
    tensors = prompt(150)
    results = empty_results(tensors)
    broken = compiled(tmp_path, source.replace(right, wrong))
    found = [run(broken, [*tensors, *results], rope=False, seed=seed) for seed in range(2)]
    assert any(re.search(message, each) for each in found), found
