"""Checkpoints keep weights exactly; a wrong file is refused with the name of its key."""

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
    save(from_seed(config, 0, "cpu"), path)
    return config, {key: value.clone() for key, value in load_file(path).items()}, path  # clones: the file is mapped


def assert_refused(config, path, message):
    with pytest.raises(CheckpointError, match=message):
        load_weights(config, path, "cpu")


@pytest.mark.parametrize("system", MODELS)
def test_a_model_comes_back_as_it_was(system, tmp_path):
    config = model_config(system, "tiny")
    model = from_seed(config, 0, "cpu")
    save(model, tmp_path / "model.safetensors")
    again = load_weights(config, tmp_path / "model.safetensors", "cpu")
    before, after = model.weights(), again.weights()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    logits = [each.prefill(IDS, each.init_state(2, 20))[0] for each in (model, again)]
    assert torch.equal(*logits)


@pytest.mark.parametrize("backbone", ["mamba", "transformer"])
@pytest.mark.parametrize("learner", ["linear", "mlp"])
def test_the_names_and_shapes_are_the_authors(learner, backbone, tmp_path):
    config = model_config(f"ttt-{learner}", "tiny", backbone=backbone)
    save(from_seed(config, 0, "cpu"), tmp_path / "model.safetensors")
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
    weights = load_weights(config, path, "cpu", torch.bfloat16).weights()
    assert torch.equal(weights[BLOCK + "q_proj.weight"], tensors[BLOCK + "q_proj.weight"].bfloat16())
    assert torch.equal(weights[BLOCK + "W1"], tensors[BLOCK + "W1"])


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def shards(linear):
    config, tensors, path = linear
    path.unlink()
    keys = sorted(tensors)
    shard_of = {key: SHARDS[index >= 9] for index, key in enumerate(keys)}
    for name in SHARDS:
        save_file({key: tensors[key] for key in keys if shard_of[key] == name}, path.with_name(name))
    write_index(path.parent, shard_of)
    return config, tensors, path.parent, shard_of


def write_index(folder, shard_of):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))


def test_a_folder_has_the_shards_of_its_index(shards):
    config, tensors, folder, _ = shards
    save_file({key: tensor + 1 for key, tensor in tensors.items()}, folder / "model-00003-of-00003.safetensors")
    weights = load_weights(config, folder, "cpu").weights()
    assert all(torch.equal(weights[key], tensors[key]) for key in tensors)


def test_a_hidden_file_is_no_shard(linear):
    config, tensors, path = linear
    path.with_name("._model.safetensors").write_bytes(b"\x00\x05\x16\x07")
    assert load_weights(config, path.parent, "cpu").weights().keys() == tensors.keys()


def test_shards_without_an_index_and_an_index_next_to_a_single_file_are_refused(shards):
    config, tensors, folder, _ = shards
    save_file(tensors, folder / "model.safetensors")
    assert_refused(config, folder, r"holds both model\.safetensors and model\.safetensors\.index\.json")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").unlink()
    assert_refused(config, folder, r"holds 2 \.safetensors files .* no model\.safetensors\.index\.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": SHARDS[0]}, rf"model\.norm\.weight: not in {SHARDS[0]}"),
        ({"model.norm.weight": None}, r"model\.norm\.weight: None must be the name of a file"),
        ({"model.norm.weight": "../x.safetensors"}, r"'\.\./x\.safetensors' must be the name of a file in the same"),
        ({"model.norm.weight": "x.safetensors"}, r"x\.safetensors: not a whole safetensors file"),
        ({"model.norm.weight": "x.bin"}, r"x\.bin: expected a \.safetensors file"),
        ({"extra": SHARDS[1]}, rf"extra: not in {SHARDS[1]}"),
    ],
)
def test_an_index_that_does_not_fit_its_shards(shards, change, message):
    config, _, folder, shard_of = shards
    write_index(folder, shard_of | change)
    assert_refused(config, folder, message)


def test_a_shard_with_a_key_that_the_index_lacks(shards):
    config, _, folder, shard_of = shards
    del shard_of["model.norm.weight"]
    write_index(folder, shard_of)
    assert_refused(config, folder, rf"{SHARDS[1]}: model\.norm\.weight: not listed")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {}}'])
def test_an_index_without_a_map(shards, text):
    config, _, folder, _ = shards
    (folder / "model.safetensors.index.json").write_text(text)
    assert_refused(config, folder, r"index\.json: (not a readable JSON|holds list|has no weight_map)")


def test_the_path_of_an_index(shards):
    config, _, folder, _ = shards
    index = folder / "model.safetensors.index.json"
    assert_refused(config, index, rf"index\.json: is an index without weights; give its folder, {folder}$")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (BLOCK + "W1", None, rf"model\.safetensors: {BLOCK}W1: missing, expected \[2, 64, 64\]"),
        ("extra", torch.zeros(1), r"extra: not a weight of this model"),
        (BLOCK + "b1", torch.zeros(2, 64), r"b1: has shape \[2, 64\], expected \[2, 1, 64\]"),
        (BLOCK + "b1", torch.zeros(1, 1, 64), r"b1: has shape \[1, 1, 64\], expected \[2, 1, 64\]"),  # broadcasts
        (BLOCK + "learnable_token_idx", torch.zeros(1), r"has shape \[1\], expected \[16\]"),
        ("model.norm.weight", torch.zeros(256), r"has shape \[256\], expected \[128\]"),
        ("model.norm.weight", torch.ones(128, dtype=torch.int32), r"has dtype I32, expected one of F64, F32, F16"),
        ("model.norm.weight", torch.full((128,), torch.nan), r"model\.norm\.weight: holds NaN or infinite values"),
        (BLOCK + "W1", torch.full((2, 64, 64), -torch.inf), rf"{BLOCK}W1: holds NaN or infinite values"),
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
    load_weights(config, path, "cpu", torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight: exceeds the range of torch\.float16"):
        load_weights(config, path, "cpu", torch.float16)


def test_a_model_of_another_kind_names_a_few_keys_and_counts_the_rest(linear):
    _, _, path = linear
    with pytest.raises(CheckpointError, match=r"missing, expected .*; and \d+ more$"):
        load_weights(model_config("transformer", "tiny"), path, "cpu")


def test_a_tied_head_may_stand_in_the_embeddings_place(linear):
    config, tensors, path = linear
    embedding = tensors.pop("model.embed_tokens.weight")
    save_file(tensors | {"lm_head.weight": embedding}, path)
    assert torch.equal(load_weights(config, path, "cpu").weights()["model.embed_tokens.weight"], embedding)
    save_file(tensors, path)
    assert_refused(config, path, r"model\.embed_tokens\.weight: missing")


def test_an_untied_head_is_its_own(linear):
    config, tensors, path = linear
    config, head = replace(config, tied=False), torch.randn(512, 128)
    assert_refused(config, path, r"lm_head\.weight: missing, expected \[512, 128\]")
    save_file(tensors | {"lm_head.weight": head}, path)
    model = load_weights(config, path, "cpu")
    assert torch.equal(model.weights()["lm_head.weight"], head)
    hidden = torch.randn(2, 3, 128)
    assert torch.equal(model._logits(hidden), model.model.norm(hidden) @ head.T)


def test_a_stored_head_must_be_the_embedding(linear):
    config, tensors, path = linear
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, path)
    load_weights(config, path, "cpu")
    tensors["lm_head.weight"] += 1
    save_file(tensors, path)
    assert_refused(config, path, r"lm_head\.weight: differs from model\.embed_tokens\.weight")


@pytest.mark.parametrize("kept", [0, 4, 1000, -1])
def test_a_truncated_file(linear, kept):
    config, _, path = linear
    path.write_bytes(path.read_bytes()[:kept])
    assert_refused(config, path, r"model\.safetensors: not a whole safetensors file")


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "weights.pth", "weights"])
def test_a_pickle_is_refused_by_name_unread(linear, name, monkeypatch):
    config, tensors, path = linear
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("unpickled"))
    torch.save(tensors, path.with_name(name))
    assert_refused(config, path.with_name(name), r"expected a \.safetensors file")
    with pytest.raises(CheckpointError, match=r"expected a \.safetensors file"):
        save(from_seed(config, 0, "cpu"), path.with_name(name))


def test_no_file_at_all(linear):
    config, _, path = linear
    assert_refused(config, path.with_name("none.safetensors"), r"none\.safetensors: no such file or folder")
    path.unlink()
    assert_refused(config, path.parent, r"holds no \.safetensors file")
