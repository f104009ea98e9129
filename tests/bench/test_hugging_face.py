"""A folder in Hugging Face's layout loads as its config.json describes, or is refused."""

import json
import os
from dataclasses import replace

import pytest

from bench.models.checkpoint import CheckpointError, load, save
from bench.models.config import TTTConfig
from bench.models.factory import from_seed
from bench.models.hugging_face import read_config

# config.json as the authors' TTTConfig saves it, head_dim 32
PUBLISHED = {
    "architectures": ["TTTForCausalLM"],
    "bos_token_id": 1,
    "conv_kernel": 4,
    "dtype": "float32",
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "max_position_embeddings": 2048,
    "mini_batch_size": 16,
    "model_type": "ttt",
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "pad_token_id": None,
    "pre_conv": True,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "scan_checkpoint_group_size": 0,
    "share_qk": True,
    "tie_word_embeddings": True,
    "transformers_version": "5.23.0",
    "ttt_base_lr": 1.0,
    "ttt_layer_type": "linear",
    "use_cache": False,
    "use_gate": True,
    "vocab_size": 32,
}
CONFIG = TTTConfig("linear", 64, 96, 1, 2, 32, base_lr=1.0)
TRANSFORMER = {"pre_conv": False, "share_qk": False, "use_gate": False}


def write(folder, values):
    (folder / "config.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(
    ("values", "change"),
    [
        ({}, {}),
        ({"rope_scaling": None, "quantization_config": None}, {}),  # unknown settings that are null
        ({"ttt_layer_type": "mlp", "ttt_base_lr": 0.1}, {"learner": "mlp", "base_lr": 0.1}),
        (TRANSFORMER, {"backbone": "transformer"}),
        (TRANSFORMER | {"conv_kernel": 7}, {"backbone": "transformer"}),  # the Transformer backbone has no convolution
        ({"rope_theta": 500}, {"rope_theta": 500.0}),
        ({"rms_norm_eps": 1e-5}, {"norm_eps": 1e-5}),
        ({"tie_word_embeddings": False}, {"tied": False}),
        (
            {"hidden_size": 128, "num_attention_heads": 4, "mini_batch_size": 8},
            {"width": 128, "heads": 4, "mini_batch": 8},
        ),
        (
            {"intermediate_size": 80, "num_hidden_layers": 3, "vocab_size": 50},
            {"ffn_width": 80, "layers": 3, "vocabulary": 50},
        ),
    ],
)
def test_every_supported_setting_counts(values, change, tmp_path):
    assert read_config(write(tmp_path, PUBLISHED | values)) == replace(CONFIG, **change)


def test_absent_settings_have_the_authors_defaults(tmp_path):
    expected = TTTConfig("mlp", 2048, 5504, 24, 32, 32000, "transformer", 16, base_lr=1.0)
    assert read_config(write(tmp_path, {"model_type": "ttt", "ttt_layer_type": "mlp"})) == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ttt_layer_type", "attention"),
        ("architectures", ["TTTModel"]),
        ("conv_kernel", 3),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("ttt_base_lr", 0),
        ("ttt_base_lr", "0.1"),
        ("ttt_base_lr", float("nan")),
        ("rope_theta", None),
        ("tie_word_embeddings", 1),
        ("mini_batch_size", 0),
        ("intermediate_size", (1 << 20) + 1),
    ],
)
def test_unsupported_settings_are_refused_by_name_and_value(key, value, tmp_path):
    folder = write(tmp_path, PUBLISHED | {key: value})
    with pytest.raises(CheckpointError) as refused:
        read_config(folder)
    assert f"config.json: {key} = {json.dumps(value)}: " in str(refused.value)


@pytest.mark.parametrize("odd", ["pre_conv", "share_qk", "use_gate"])
@pytest.mark.parametrize("rest", [True, False])
def test_mixed_backbone_settings_are_refused(odd, rest, tmp_path):
    values = {"pre_conv": rest, "share_qk": rest, "use_gate": rest} | {odd: not rest}
    with pytest.raises(CheckpointError, match=rf"{odd} = {json.dumps(not rest)}.*: must be all true .* or all false"):
        read_config(write(tmp_path, PUBLISHED | values))


@pytest.mark.parametrize("text", ["", "{", "[]", '"ttt"', "\xff"])
def test_a_config_that_is_no_json_object(text, tmp_path):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config\.json: (not a readable JSON|holds \w+, must be a JSON object)"):
        read_config(tmp_path)


def test_a_very_long_number_is_refused_in_a_short_sentence(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json: rope_theta = 1000.*…: must") as refused:
        read_config(write(tmp_path, PUBLISHED | {"rope_theta": 10**4000}))
    assert len(str(refused.value)) < 300 + len(str(tmp_path))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_is_no_checkpoint_file(name, tmp_path):
    save(from_seed(CONFIG, 0, "cpu"), tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match="Not a regular file"):
        load(tmp_path, "cpu")


@pytest.mark.parametrize("path", ["none", ".", "model.safetensors"])
def test_a_path_that_is_no_checkpoint_folder(tmp_path, path):
    save(from_seed(CONFIG, 0, "cpu"), tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"holds no config\.json; name a folder"):
        load(tmp_path / path, "cpu")
