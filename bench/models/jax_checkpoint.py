"""Convert a checkpoint of the authors' JAX code to Hugging Face's layout, without rounding.

The file is `streaming_params`, or `streaming_train_state` with the optimizer (ttt/infra/checkpoint.py of
github.com/test-time-training/ttt-lm-jax). It is a stream of msgpack pairs (path, bytes). The bytes are one array in
flax's msgpack: extension type 1 with (shape, dtype name, data in C order). Array shapes give the model's sizes;
epsilon and RoPE theta have the values of all published configurations.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from bench.models.checkpoint import WEIGHTS_FILE, load
from bench.models.config import BASE_LR, CheckpointError, ConfigError, TTTConfig
from bench.models.hugging_face import CONFIG_FILE, config_values
from harness.schema.files import open_regular, refusing

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
TRAIN_STATE = ("params", "params")  # the path of the weights in a train state

# Path patterns of the JAX code -> names of the authors' PyTorch model, applied in order.
_RENAMED = (
    (r"^model\.wte\.embedding$", "model.embed_tokens.weight"),
    (r"^model\.ln_f\.", "model.norm."),
    (r"^model\.h\.", "model.layers."),
    (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
    (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
    (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
    (r"\.conv\.conv_norm\.", ".conv.norm."),
    (r"\.conv\.conv1\.", ".conv.conv."),
    (r"\.w([qkvog])\.", r".\1_proj."),
    (r"\.ttt_dense_0$", ".W1"),
    (r"\.ttt_bias_0$", ".b1"),
    (r"\.ttt_dense_1$", ".W2"),
    (r"\.ttt_bias_1$", ".b2"),
    (r"\.(ttt_norm)\.(?:scale|kernel)$", r".\1_weight"),
    (r"\.(learnable_ttt_lr)\.kernel$", r".\1_weight"),
    (r"\.(ttt_norm|learnable_ttt_lr)\.bias$", r".\1_bias"),
    (r"\.(kernel|scale)$", ".weight"),
)


def convert(file: Path, folder: Path, base_lr: float | None = None) -> None:
    """Convert a JAX checkpoint to a new folder with config.json and model.safetensors.

    base_lr: the training run's `ttt_base_lr`; None for the paper's value. The new folder is loaded once to check it.
    Raises CheckpointError for a file of another format or model, or an existing folder; ImportError without msgpack.
    """
    if folder.exists():
        raise CheckpointError(f"{folder}: exists; name a new folder")
    weights = {}
    for path, array in read_arrays(file):
        name = pytorch_name(path)
        if name in weights:
            raise CheckpointError(f"{file}: holds {'/'.join(path)} twice")
        weights[name] = in_pytorch_layout(path, array)
    values = config_of_weights(file, weights, base_lr)
    folder.mkdir(parents=True)
    try:
        (folder / CONFIG_FILE).write_text(json.dumps(values, indent=1) + "\n")
        save_file(weights, folder / WEIGHTS_FILE, {"format": "pt"})
        load(folder, "cpu", torch.bfloat16)
    except BaseException as error:
        shutil.rmtree(folder)
        if isinstance(error, SafetensorError):
            raise CheckpointError(f"{folder}: cannot be written: {error}") from None
        raise


def read_arrays(file: Path) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield (path, tensor) of each weight, without optimizer state; CheckpointError if unreadable."""
    import msgpack

    path: tuple[str, ...] = ()
    with refusing(file, "read", CheckpointError), open_regular(file) as opened:
        unpacker, end = msgpack.Unpacker(opened, max_buffer_size=0), 0
        try:
            for path, packed in unpacker:
                end = unpacker.tell()
                path = tuple("/".join(path).split("/"))  # some parameters have a slash in their names
                in_train_state = path[:2] == TRAIN_STATE
                if in_train_state or path[0] in ("model", "lm_head"):
                    shape, dtype, data = msgpack.unpackb(msgpack.unpackb(packed, raw=False).data, raw=True)
                    array = torch.frombuffer(bytearray(data), dtype=DTYPES[dtype.decode()]).reshape(shape)
                    yield path[2:] if in_train_state else path, array
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError, msgpack.UnpackException) as error:
            where = f"{'/'.join(path)}: not an array" if path else "not a stream of msgpack'd (path, array) pairs"
            raise CheckpointError(f"{file}: {where} ({type(error).__name__}: {error})") from None
        # The unpacker raises no error if the file ends in the middle of a pair.
        if beyond := opened.seek(0, os.SEEK_END) - end:
            raise CheckpointError(f"{file}: is truncated: its last {beyond} bytes are no complete (path, array) pair")


def pytorch_name(path: tuple[str, ...]) -> str:
    """Return the name in the authors' PyTorch code for the weight at a JAX path."""
    name = ".".join(path)
    for jax, torch_name in _RENAMED:
        name = re.sub(jax, torch_name, name)
    return name


def in_pytorch_layout(path: tuple[str, ...], array: Tensor) -> Tensor:
    """Return a JAX weight in PyTorch's layout: arrays named `kernel` are transposed.

    [in, out] becomes [out, in], and [4, 1, C] becomes [C, 1, 4]; the learning rate's [H, C, 1] becomes [H, 1, C].
    RoPE pairs are interleaved in both codes, so Q and K are not permuted.
    """
    if path[-1:] != ("kernel",) or array.ndim < 2:
        return array
    if path[-2:-1] == ("learnable_ttt_lr",) and array.ndim == 3:
        return array.transpose(1, 2).contiguous()
    return array.permute(*reversed(range(array.ndim))).contiguous()


def config_of_weights(file: Path, weights: dict[str, Tensor], base_lr: float | None) -> dict[str, Any]:
    """Derive config.json from {PyTorch name: weight}; CheckpointError if it is not a TTT model."""
    block = "model.layers.0.seq_modeling_block."
    inner = (f"{block}W1", f"{block}learnable_token_idx")
    needed = ("model.embed_tokens.weight", "model.layers.0.mlp.gate_proj.weight", *inner)
    if missing := [name for name in needed if name not in weights]:
        raise CheckpointError(f"{file}: holds no {missing[0]}, so it is not a TTT model, or truncated")
    embedding, gate, first, index = (weights[name] for name in needed)
    learner = "mlp" if f"{block}W2" in weights else "linear"
    layers = {name.split(".")[2] for name in weights if name.startswith("model.layers.")}
    try:
        config = TTTConfig(
            learner=learner,
            width=embedding.shape[1],
            ffn_width=gate.shape[0],
            layers=len(layers),
            heads=first.shape[0],
            vocabulary=embedding.shape[0],
            backbone="mamba" if "model.layers.0.conv.conv.weight" in weights else "transformer",
            mini_batch=index.numel(),
            base_lr=BASE_LR[learner] if base_lr is None else base_lr,  # by default the paper's
            tied="lm_head.weight" not in weights,
        )
    except ConfigError as error:
        raise CheckpointError(f"{file}: {error}") from None
    return config_values(config) | {"dtype": str(embedding.dtype).removeprefix("torch.")}
