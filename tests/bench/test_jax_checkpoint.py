"""Checkpoints of the authors' JAX code are converted; these tests write files as that code does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.commands.convert import convert_checkpoint
from bench.errors import UserError
from bench.models.checkpoint import load
from bench.models.config import TTTConfig, model_config
from bench.models.factory import from_seed

msgpack = pytest.importorskip("msgpack")
pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).resolve().parents[2]
DENSE = {"q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo", "g_proj": "wg"}
LEARNER = {"W1": "ttt_dense_0", "b1": "ttt_bias_0", "W2": "ttt_dense_1", "b2": "ttt_bias_1"}
FFN = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def jax_params(weights: dict[str, Tensor]) -> dict[tuple[str, ...], Tensor]:
    """Convert PyTorch weights to {path: array}, as in the authors' JAX model (ttt/models/model.py)."""
    found = {("model", "wte", "embedding"): weights["model.embed_tokens.weight"]}
    found["model", "ln_f", "kernel"] = weights["model.norm.weight"]
    for name, weight in weights.items():
        if not name.startswith("model.layers."):
            continue
        _, _, index, *rest = name.split(".")
        layer = ("model", "h", index)
        match rest:
            case [("seq_norm" | "ffn_norm") as norm, "weight"]:
                found[*layer, norm, "kernel"] = weight
            case ["conv", "norm", "weight"]:
                found[*layer, "conv", "conv_norm", "kernel"] = weight
            case ["conv", "conv", kind]:
                found[*layer, "conv", "conv1", "kernel" if kind == "weight" else kind] = swapped(weight)
            case ["mlp", which, "weight"]:
                found[*layer, "feed_forward", FFN[which], "kernel"] = weight.T
            case ["seq_modeling_block", *inner]:
                path, value = jax_inner(inner, weight)
                found[*layer, "seq_modeling_block", *path] = value
            case _:
                raise AssertionError(name)
    return found


def jax_inner(inner: list[str], weight: Tensor) -> tuple[tuple[str, ...], Tensor]:
    """Return (path, array) of a parameter of ttt/models/ttt_layer.py. inner: its PyTorch name, split at dots."""
    match inner:
        case [("conv_q" | "conv_k") as conv, kind]:
            return (conv, "kernel" if kind == "weight" else kind), swapped(weight)
        case ["post_norm", kind]:
            return ("post_norm", "scale" if kind == "weight" else kind), weight
        case [dense, "weight"]:
            return (DENSE[dense], "kernel"), weight.T
        case ["ttt_norm_weight"]:
            return ("ttt_norm/scale",), weight  # `get_multi_head_params` has slashes in its names
        case ["learnable_ttt_lr_weight"]:
            return ("learnable_ttt_lr/kernel",), weight.transpose(1, 2)
        case [("ttt_norm_bias" | "learnable_ttt_lr_bias") as name]:
            return (f"{name.removesuffix('_bias')}/bias",), weight
        case [name]:
            return (LEARNER.get(name, name),), weight
    raise AssertionError(inner)


def swapped(weight: Tensor) -> Tensor:
    """Permute a convolution's weight [C, 1, 4] to [4, 1, C]; return a bias unchanged."""
    return weight.permute(2, 1, 0) if weight.ndim == 3 else weight


def packed(array: Tensor, name: str = "") -> bytes:
    """Pack an array as flax.serialization does. name: dtype name to store, by default the array's."""
    data = bytes(array.reshape(-1).clone().view(torch.uint8).tolist())
    inner = (tuple(array.shape), name or str(array.dtype).removeprefix("torch."), data)
    return msgpack.packb(msgpack.ExtType(1, msgpack.packb(inner, use_bin_type=True)))


def write(file: Path, params: dict[tuple[str, ...], Any], prefix: tuple[str, ...] = ()) -> None:
    """Write {path: array or packed bytes} as the authors' StreamingCheckpointer does. prefix: put before each path."""
    with file.open("wb") as opened:
        for path, array in params.items():
            opened.write(msgpack.packb(((*prefix, *path), array if isinstance(array, bytes) else packed(array))))


def model_of(learner: str, backbone: str = "mamba", dtype: torch.dtype = torch.float32) -> Any:
    config = model_config(f"ttt-{learner}", "tiny", backbone=backbone, mini_batch=8)
    model = from_seed(config, 3, "cpu", dtype)
    generator = torch.Generator().manual_seed(1)
    for weight in model.weights().values():
        weight += 0.1 * torch.randn(weight.shape, generator=generator).to(weight)
    return model


@pytest.mark.parametrize(
    ("learner", "backbone", "prefix"),
    [("linear", "mamba", ()), ("mlp", "mamba", ("params", "params")), ("mlp", "transformer", ())],
)
def test_every_weight_comes_back_exactly(
    learner: str, backbone: str, prefix: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, file, folder = model_of(learner, backbone), tmp_path / "streaming", tmp_path / "made"
    params = jax_params(model.weights())
    write(file, params, prefix)
    if prefix:
        with file.open("ab") as opened:  # other parts of a train state
            opened.write(msgpack.packb((("opt_state", "0", "mu", "x"), packed(torch.ones(3)))))
            opened.write(msgpack.packb((("step",), msgpack.packb(7))))
    convert_checkpoint(file, folder, None)
    assert f"ttt-{learner}, 2x128" in capsys.readouterr().out
    again = load(folder, "cpu", torch.float32)
    assert isinstance(again.config, TTTConfig)  # type: ignore[attr-defined]
    assert again.config == model.config  # type: ignore[attr-defined]
    assert all(torch.equal(weight, again.weights()[name]) for name, weight in model.weights().items())


def test_bfloat16_and_the_base_lr_of_the_run_are_preserved(tmp_path: Path) -> None:
    model, folder = model_of("mlp", dtype=torch.bfloat16), tmp_path / "made"
    write(tmp_path / "file", jax_params(model.weights()))
    convert_checkpoint(tmp_path / "file", folder, 0.5)
    assert json.loads((folder / "config.json").read_text())["ttt_base_lr"] == 0.5
    again = load(folder, "cpu", torch.bfloat16).weights()
    assert all(torch.equal(weight, again[name]) for name, weight in model.weights().items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda params: params.pop(("model", "ln_f", "kernel")), "model.norm.weight: missing"),
        (lambda params: params.pop(("model", "wte", "embedding")), "holds no model.embed_tokens.weight"),
        (
            lambda params: params.update({("model", "extra", "kernel"): torch.ones(2)}),
            "model.extra.weight: not a weight",
        ),
        (
            lambda params: params.update({("model", "ln_f", "kernel"): packed(torch.ones(2), "int4")}),
            "model/ln_f/kernel: not an array .KeyError: 'int4'",
        ),
        (
            lambda params: params.update({("model", "ln_f", "kernel"): packed(torch.ones(2), "bfloat16")}),
            "model/ln_f/kernel: not an array .RuntimeError",
        ),
    ],
)
def test_an_unusable_file_is_refused_with_the_reason(change: Any, words: str, tmp_path: Path) -> None:
    params = jax_params(model_of("linear").weights())
    change(params)
    write(tmp_path / "file", params)
    with pytest.raises(UserError, match=words) as refused:
        convert_checkpoint(tmp_path / "file", tmp_path / "made", None)
    assert "not a stream" not in str(refused.value)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("layers_last", [True, False])
def test_a_truncated_file_is_refused(layers_last: bool, tmp_path: Path) -> None:
    """A file that ends within a (path, array) pair is refused, even if the pairs before form a smaller model."""
    params = jax_params(model_of("linear").weights())
    params = dict(sorted(params.items(), key=lambda each: ("h" in each[0]) == layers_last))
    file = tmp_path / "file"
    write(file, params)
    whole = file.read_bytes()
    for length in (len(whole) - 1, len(whole) * 3 // 4, len(whole) // 2, 100):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"is truncated: its last|not a TTT model, or truncated"):
            convert_checkpoint(file, tmp_path / "made", None)
        assert not (tmp_path / "made").exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path / "file", jax_params(model_of("linear").weights()))
    with pytest.raises(UserError, match="file/made: cannot be written: Not a directory"):
        convert_checkpoint(tmp_path / "file", tmp_path / "file" / "made", None)


def test_a_file_that_is_no_msgpack_and_a_folder_that_is_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\x07")
    with pytest.raises(UserError, match="not a stream"):
        convert_checkpoint(tmp_path / "file", tmp_path / "made", None)
    with pytest.raises(UserError, match="exists"):
        convert_checkpoint(tmp_path / "file", tmp_path, None)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (["-o", "new"], "none: cannot be read"),
        (["-o", "new", "--output=other"], "--output is given twice"),
    ],
)
def test_a_wrong_argument_is_one_sentence(output, message):
    command = [sys.executable, "-m", "bench.commands.convert", "none", *output]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ttt-bench: {message}")
