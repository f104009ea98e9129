"""Are weights kept exactly, and is every wrong file told by its key?"""

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.models import MODELS, model_config
from bench.models.checkpoint import CheckpointError, load, save
from bench.models.factory import from_seed

BLOCK = "model.layers.0.seq_modeling_block."
IDS = torch.arange(40).reshape(2, 20)


@pytest.fixture
def linear(tmp_path):
    """A saved tiny TTT-Linear: its configuration, its tensors, and where to write changed ones."""
    config = model_config("ttt-linear", "tiny")
    path = tmp_path / "model.safetensors"
    save(from_seed(config, 0, "cpu"), path)
    return config, {key: value.clone() for key, value in load_file(path).items()}, path  # clones: the file is mapped


def refused(linear, change, message):
    config, tensors, path = linear
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=message):
        load(config, path, "cpu")


@pytest.mark.parametrize("system", MODELS)
def test_a_model_comes_back_as_it_was(system, tmp_path):
    config = model_config(system, "tiny")
    model = from_seed(config, 0, "cpu")
    save(model, tmp_path / "model.safetensors")
    again = load(config, tmp_path / "model.safetensors", "cpu")
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
    weights = load(config, path, "cpu", torch.bfloat16).weights()
    assert torch.equal(weights[BLOCK + "q_proj.weight"], tensors[BLOCK + "q_proj.weight"].bfloat16())
    assert torch.equal(weights[BLOCK + "W1"], tensors[BLOCK + "W1"])


def test_a_folder_of_shards_is_one_checkpoint(linear):
    config, tensors, path = linear
    path.unlink()
    keys = sorted(tensors)
    save_file({key: tensors[key] for key in keys[:9]}, path.with_name("model-00001-of-00002.safetensors"))
    save_file({key: tensors[key] for key in keys[9:]}, path.with_name("model-00002-of-00002.safetensors"))
    weights = load(config, path.parent, "cpu").weights()
    assert all(torch.equal(weights[key], tensors[key]) for key in keys)
    save_file({keys[9]: tensors[keys[9]]}, path.with_name("model-00003-of-00002.safetensors"))
    with pytest.raises(CheckpointError, match=f"{keys[9]}: both in model-00002-of-00002.safetensors and in"):
        load(config, path.parent, "cpu")


def test_a_missing_key(linear):
    refused(linear, lambda t: t.pop(BLOCK + "W1"), rf"model\.safetensors: {BLOCK}W1: missing, expected \[2, 64, 64\]")


def test_an_unknown_key(linear):
    refused(linear, lambda t: t.update(extra=torch.zeros(1)), r"extra: not a weight of this model")


def test_a_wrong_shape(linear):
    change = {BLOCK + "b1": torch.zeros(2, 64)}
    refused(linear, lambda t: t.update(change), rf"{BLOCK}b1: has shape \[2, 64\], expected \[2, 1, 64\]")


def test_a_wrong_dtype(linear):
    change = {"model.norm.weight": torch.ones(128, dtype=torch.int32)}
    refused(linear, lambda t: t.update(change), r"model\.norm\.weight: has dtype I32, expected one of F64, F32, F16")


def test_a_model_of_another_kind_names_a_few_keys_and_counts_the_rest(linear):
    _, _, path = linear
    with pytest.raises(CheckpointError, match=r"missing, expected .*; and \d+ more$"):
        load(model_config("transformer", "tiny"), path, "cpu")


def test_a_stored_head_must_be_the_embedding(linear):
    config, tensors, path = linear
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, path)
    load(config, path, "cpu")
    refused(linear, lambda t: t["lm_head.weight"].add_(1), "lm_head.weight: differs from model.embed_tokens.weight")


@pytest.mark.parametrize("kept", [0, 4, 1000, -1])
def test_a_truncated_file(linear, kept):
    config, _, path = linear
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a whole safetensors file"):
        load(config, path, "cpu")


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "weights.pth", "weights"])
def test_a_pickle_is_refused_by_name_unread(linear, name, monkeypatch):
    config, tensors, path = linear
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("unpickled"))
    torch.save(tensors, path.with_name(name))
    with pytest.raises(CheckpointError, match=r"expected a \.safetensors file"):
        load(config, path.with_name(name), "cpu")
    with pytest.raises(CheckpointError, match=r"expected a \.safetensors file"):
        save(from_seed(config, 0, "cpu"), path.with_name(name))


def test_a_pickle_is_refused_by_content(linear):
    config, tensors, path = linear
    torch.save(tensors, path)
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        load(config, path, "cpu")


def test_no_file_at_all(linear):
    config, _, path = linear
    with pytest.raises(CheckpointError, match=r"none\.safetensors: no such file or folder"):
        load(config, path.with_name("none.safetensors"), "cpu")
    path.unlink()
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors file"):
        load(config, path.parent, "cpu")
