"""Checkpoints keep weights exactly; a wrong file is refused with the name of the wrong key."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.models.checkpoint import CheckpointError, load_weights, save
from bench.models.config import MODELS, model_config
from bench.models.factory import from_seed

BLOCK = "model.layers.0.seq_modeling_block."
IDS = torch.arange(40).reshape(2, 20)


@pytest.fixture
def linear(tmp_path):
    config = model_config("ttt-linear", "tiny")
    path = tmp_path / "model.safetensors"
    save(from_seed(config, 0, "cpu"), tmp_path)
    return config, {key: value.clone() for key, value in load_file(path).items()}, path  # clones: the file is mapped


def assert_refused(config, path, message):
    with pytest.raises(CheckpointError, match=message):
        load_weights(config, path.parent, "cpu")


def not_drawn(weight, *range_, **how):
    """Fail if a random weight is drawn into memory: drawing 1.3B weights is slow on a CPU."""
    assert weight.is_meta
    return weight


@pytest.mark.parametrize("system", MODELS)
def test_a_saved_model_loads_unchanged(system, tmp_path, monkeypatch):
    config = model_config(system, "tiny")
    model = from_seed(config, 0, "cpu")
    tmp_path /= "new"
    save(model, tmp_path)
    if system.startswith("ttt"):
        assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "float32"
    with monkeypatch.context() as patched:
        for name in ("normal_", "uniform_"):
            patched.setattr(torch.Tensor, name, not_drawn, raising=False)
        again = load_weights(config, tmp_path, "cpu")
    before, after = model.weights(), again.weights()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    logits = [each.prefill(IDS, each.init_state(2, 20))[0] for each in (model, again)]
    assert torch.equal(*logits)


@pytest.mark.parametrize("backbone", ["mamba", "transformer"])
@pytest.mark.parametrize("learner", ["linear", "mlp"])
def test_the_names_and_shapes_are_the_authors(learner, backbone, tmp_path):
    config = model_config(f"ttt-{learner}", "tiny", backbone=backbone)
    save(from_seed(config, 0, "cpu"), tmp_path)
    shapes = {key: tuple(value.shape) for key, value in load_file(tmp_path / "model.safetensors").items()}
    C, H, D, F, ffn = 128, 2, 64, 256, config.ffn_width
    expected = {"model.embed_tokens.weight": (512, C), "model.norm.weight": (C,)}
    for prefix in ("model.layers.0.", "model.layers.1."):
        inner = {"learnable_token_idx": (16,), "learnable_ttt_lr_weight": (H, 1, C), "learnable_ttt_lr_bias": (H, 1)}
        inner |= {"ttt_norm_weight": (H, D), "ttt_norm_bias": (H, D), "post_norm.weight": (C,), "post_norm.bias": (C,)}
        inner |= {f"{p}_proj.weight": (C, C) for p in ("qvog" if backbone == "mamba" else "qkvo")}
        if learner == "linear":
            inner |= {"W1": (H, D, D), "b1": (H, 1, D)}
        else:
            inner |= {"W1": (H, D, F), "b1": (H, 1, F), "W2": (H, F, D), "b2": (H, 1, D)}
        if backbone == "mamba":
            for conv in ("conv_q", "conv_k"):
                inner |= {f"{conv}.weight": (C, 1, 4), f"{conv}.bias": (C,)}
            expected |= {f"{prefix}conv.norm.weight": (C,)}
            expected |= {f"{prefix}conv.conv.weight": (C, 1, 4), f"{prefix}conv.conv.bias": (C,)}
        expected |= {f"{prefix}seq_modeling_block.{key}": shape for key, shape in inner.items()}
        expected |= {f"{prefix}seq_norm.weight": (C,), f"{prefix}ffn_norm.weight": (C,)}
        expected |= {f"{prefix}mlp.{p}_proj.weight": (ffn, C) for p in ("gate", "up")}
        expected |= {f"{prefix}mlp.down_proj.weight": (C, ffn)}
    assert shapes == expected


def test_loading_rounds_projections_and_keeps_the_learner(linear):
    config, tensors, path = linear
    weights = load_weights(config, path.parent, "cpu", torch.bfloat16).weights()
    assert torch.equal(weights[BLOCK + "q_proj.weight"], tensors[BLOCK + "q_proj.weight"].bfloat16())
    assert torch.equal(weights[BLOCK + "W1"], tensors[BLOCK + "W1"])


def test_the_files_of_a_folder_hold_each_weight_once(linear):
    config, tensors, path = linear
    path.with_name("._model.safetensors").write_bytes(b"\x00\x05\x16\x07")  # a hidden file is no shard
    shards = [path.with_name(f"model-0000{number}-of-00002.safetensors") for number in (1, 2)]
    keys = sorted(tensors)
    for shard, some in zip(shards, (keys[:9], keys[9:]), strict=True):
        save_file({key: tensors[key] for key in some}, shard)
    save_file(tensors | {keys[0]: tensors[keys[0]] + 1}, path)
    assert_refused(config, path, f": {keys[0]}: differs from {keys[0]}, which is stored too")
    path.unlink()
    weights = load_weights(config, path.parent, "cpu").weights()
    assert all(torch.equal(weights[key], tensors[key]) for key in tensors)
    shards[1].unlink()
    assert_refused(config, path, r"missing, expected .*; and \d+ more$")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (BLOCK + "W1", None, rf": {BLOCK}W1: missing, expected \[2, 64, 64\]"),
        ("extra", torch.zeros(1), r"extra: not a weight of this model"),
        (BLOCK + "b1", torch.zeros(1, 1, 64), r"b1: has shape \[1, 1, 64\], expected \[2, 1, 64\]"),  # broadcasts
        (
            "model.norm.weight",
            torch.ones(128, dtype=torch.int32),
            r"has dtype torch\.int32, expected a float",
        ),
        ("model.norm.weight", torch.full((128,), torch.nan), r"model\.norm\.weight: holds NaN or infinity"),
    ],
)
def test_a_wrong_key_is_refused_by_name(linear, key, value, message):
    config, tensors, path = linear
    if value is None:
        del tensors[key]
    else:
        tensors[key] = value
    save_file(tensors, path)
    assert_refused(config, path, message)


def test_a_weight_beyond_the_range_of_its_new_dtype(linear):
    config, tensors, path = linear
    tensors["model.norm.weight"][3] = 1e5
    save_file(tensors, path)
    load_weights(config, path.parent, "cpu", torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight: holds values outside the range of torch\.float16"):
        load_weights(config, path.parent, "cpu", torch.float16)


def test_a_tied_head_may_stand_in_the_embeddings_place(linear):
    config, tensors, path = linear
    embedding = tensors.pop("model.embed_tokens.weight")
    save_file(tensors | {"lm_head.weight": embedding}, path)
    assert torch.equal(load_weights(config, path.parent, "cpu").weights()["model.embed_tokens.weight"], embedding)
    save_file(tensors, path)
    assert_refused(config, path, r"model\.embed_tokens\.weight: missing")


def test_an_untied_head_has_its_own_weight(linear):
    config, tensors, path = linear
    config, head = replace(config, tied=False), torch.randn(512, 128)
    assert_refused(config, path, r"lm_head\.weight: missing, expected \[512, 128\]")
    save_file(tensors | {"lm_head.weight": head}, path)
    model = load_weights(config, path.parent, "cpu")
    assert torch.equal(model.weights()["lm_head.weight"], head)
    hidden = torch.randn(2, 3, 128)
    assert torch.equal(model._logits(hidden), model.model.norm(hidden) @ head.T)


def test_a_stored_head_must_be_the_embedding(linear):
    config, tensors, path = linear
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, path)
    for dtype in (torch.float32, torch.bfloat16):
        load_weights(config, path.parent, "cpu", dtype)
    tensors["lm_head.weight"] += 1
    save_file(tensors, path)
    assert_refused(config, path, r"(lm_head|embed_tokens)\.weight: differs from (model\.embed_tokens|lm_head)\.weight")


@pytest.mark.parametrize("length", [0, 1000, -1])
def test_a_truncated_file(linear, length):
    config, _, path = linear
    path.write_bytes(path.read_bytes()[:length])
    assert_refused(config, path, r"model\.safetensors: not a complete safetensors file")
    path.unlink()
    path.symlink_to(path.with_name("gone"))
    why = r": model\.safetensors: not a complete safetensors file \(No such file or directory\)$"
    assert_refused(config, path, why)


def test_a_folder_without_weights(linear):
    config, _, path = linear
    path.rename(path.with_name("pytorch_model.bin"))
    assert_refused(config, path, r"holds no \.safetensors file; other formats are not read")
