"""TTT-MLP's CUDA forward kernel on an emulated GPU matches the float64 reference, without races."""

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

from tests.tk_kernels.forward_prompts import assert_matches, exact, mlp_arguments
from tk_kernels.reference.token_rows import clone
from tk_kernels.ttt_mlp import ops
from tk_kernels.ttt_mlp.reference import MLP

EMULATOR = Path(__file__).parent / "emulator"
SOURCES = {path.name: path.read_text() for path in Path(ops.__file__).parent.glob("block_*.cuh")}
ORDERS = int(os.environ.get("EMULATED_ORDERS", "3"))  # rare races need hundreds


def compiles_c20() -> bool:
    if shutil.which("g++") is None:
        return False
    command = ["g++", "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    return subprocess.run(command, input=b"_Float16 x;", capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the emulator's threads need Linux's ucontext"),
    pytest.mark.skipif(not compiles_c20(), reason="there is no g++ with C++20 and _Float16"),
]


def compiled(folder: Path, sources: dict[str, str]) -> ctypes.CDLL:
    for name, source in sources.items():
        (folder / name).write_text(source)
    library = folder / "forward.so"
    options = ["-std=c++20", "-Og", "-shared", "-fPIC", "-Wno-unknown-pragmas", f"-I{folder}", f"-I{EMULATOR}"]
    subprocess.run(["g++", *options, EMULATOR / "forward.cpp", "-o", library], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.forward.restype = ctypes.c_char_p
    return loaded


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("emulated"), SOURCES)


def run(kernel: ctypes.CDLL, tensors: list[Tensor], rope: bool, seed: int = 0) -> str:
    """Run the kernel; return an error message or "". tensors: inputs, then results. seed: sets the order of warps."""
    assert all(x.is_contiguous() for x in tensors)
    pointers = (ctypes.c_void_p * len(tensors))(*(x.data_ptr() for x in tensors))
    batch, tokens, heads, _ = tensors[0].shape
    return kernel.forward(pointers, batch, tokens, heads, int(rope), seed).decode()


def prompt(tokens: int) -> list[Tensor]:
    args = mlp_arguments(tokens, batch=1, heads=1)
    return [x.contiguous() for x in (*args[:-1], *args[-1][:4])]


def empty_results(tensors: list[Tensor]) -> list[Tensor]:
    q, token_scale, hidden = tensors[0], tensors[4], tensors[7].shape[-1]
    shapes = MLP.shapes((q.shape[3], hidden, q.shape[3]), (len(q), q.shape[2]), len(token_scale))
    return [torch.empty_like(q), *(torch.empty(shapes[name]) for name in MLP.state._fields[:-1])]


@pytest.fixture
def forward(kernel: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch):
    def emulated(tokens, outer, weights, results, rope, _):
        inputs = (*tokens, *outer, *weights)
        for result in results:
            if all(result is not given for given in inputs):
                result.fill_(float("nan"))
        failure = run(kernel, [*(x.contiguous() for x in inputs), *results], rope)
        assert not failure

    monkeypatch.setattr(ops.OPERATOR, "launch", emulated)
    return ops.forward


@pytest.mark.parametrize(("tokens", "rotate"), [(1, False), (16, True), (50, True), (64, False), (100, False)])
def test_matches_the_reference(forward, tokens, rotate):
    args = mlp_arguments(tokens, batch=1, heads=2)
    assert_matches("mlp", *forward(*args, start=0, rope=rotate), exact("mlp", args, rotate), rotate)


def test_continues_from_a_state_and_in_the_middle_of_a_mini_batch(forward):
    args = mlp_arguments(75, batch=2, heads=1)
    outputs, state = [], args[-1]
    for piece in (slice(16), slice(16, 37), slice(37, None)):
        out, state = forward(*(x[:, piece] for x in args[:4]), *args[4:7], state, rope=True)
        outputs.append(out)
    assert_matches("mlp", torch.cat(outputs, 1), state, exact("mlp", args, rotate=True), rotate=True)


@pytest.mark.parametrize("tokens", [5, 40, 64])
def test_in_place_it_leaves_the_same_bits(forward, tokens):
    args = mlp_arguments(tokens, batch=2, heads=1)
    expected, after = forward(*args, start=0)
    state = clone(args[-1])
    out, same = forward(*args[:-1], state, start=0, inplace=True)
    assert same is state
    assert all(torch.equal(a, b) for a, b in zip((out, *state), (expected, *after), strict=True))


@pytest.mark.parametrize("last", [0.0, 1e-4, 5e-3])
def test_a_small_last_scale(forward, last):
    """The kernel divides token_scale by its last entry (at least 2^-60), doubled until no ratio exceeds 64."""
    args = mlp_arguments(50, batch=1, heads=1)
    args[4][-1] = last
    out, state = forward(*args, start=0)
    assert_matches("mlp", out, state, exact("mlp", args))
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


def test_random_orders_of_longer_prompts_have_no_races(kernel):
    draw = random.Random(1)
    for _ in range(ORDERS):
        tokens, rope, seed = draw.choice((150, 208, 327)), draw.random() < 0.5, draw.randrange(10**6)
        tensors = prompt(tokens)
        found = run(kernel, [*tensors, *empty_results(tensors)], rope=rope, seed=seed)
        assert not found, (tokens, rope, seed, found)


# Statements of block_state_sm90.cuh, the same with a mistake where WRONG, and the failure.
PLANTED = {
    "W2 read before all warps stored it": (
        "barrier_sync(STATE + part, WARPGROUP);  // all of",
        "if (!WRONG) barrier_sync(STATE + part, WARPGROUP);  // all of",
        "race|not published",
    ),
    "stores without a fence before the GEMM": (
        "        activate(1, x2_to, z, t);\n        publish();",
        "        activate(1, x2_to, z, t);\n        if (!WRONG) publish();",
        "not published",
    ),
    "operand registers reused before the GEMM ends": (
        "if (k + AHEAD >= BUFFERS && k + AHEAD < 8) await_matmuls<BUFFERS - AHEAD>();",
        "if (!WRONG && k + AHEAD >= BUFFERS && k + AHEAD < 8) await_matmuls<BUFFERS - AHEAD>();",
        "changed",
    ),
    "lanes not synchronized": (
        "__syncwarp();  // four lanes share the sums",
        "if (!WRONG) __syncwarp();  // four lanes share the sums",
        "race: lane",
    ),
    "tokens overwritten while they are read": (
        "if (loads == VALUES) load_v(a, i + 1);",
        "if (loads == VALUES) load_v(a, i + (WRONG ? 2 : 1));",
        "race: TMA",
    ),
    "a missing arrival": (
        "mbarrier_arrive(AT(z2_ready));",
        "if (!WRONG || i != 3) mbarrier_arrive(AT(z2_ready));",
        "deadlock",
    ),
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return the kernel compiled once with all planted mistakes; its variable `mistake` selects the active one."""
    source = SOURCES["block_state_sm90.cuh"]
    for number, (right, wrong, _) in enumerate(PLANTED.values()):
        assert source.count(right) == 1
        source = source.replace(right, wrong.replace("WRONG", f"(mistake == {number})"))
    sources = SOURCES | {"block_state_sm90.cuh": f"int mistake = -1;\n{source}"}
    return compiled(tmp_path_factory.mktemp("broken"), sources)


@pytest.mark.parametrize("mistake", [None, *PLANTED])
def test_a_planted_mistake_is_found(broken, mistake):
    number = -1 if mistake is None else [*PLANTED].index(mistake)
    ctypes.c_int.in_dll(broken, "mistake").value = number
    tensors = prompt(150)
    results = empty_results(tensors)
    found = [run(broken, [*tensors, *results], rope=False, seed=seed) for seed in range(2)]
    if mistake is None:
        assert not any(found), found
    else:
        assert any(re.search(PLANTED[mistake][2], each) for each in found), found
