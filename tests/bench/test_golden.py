"""The models give the logits of the authors' PyTorch code, which are stored in golden_logits.npz.

For each case, the file has logits [2 prompts, length, vocabulary] after the first n tokens of `ids()`, n in LENGTHS.
TTTForCausalLM (github.com/test-time-training/ttt-lm-pytorch, commit cd831db) computed them with `weights()` in float64,
even where it casts to float32. Its gelu' has constants of 8 to 10 digits, so TTT-MLP here differs by their rounding.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plans import run
from safetensors.torch import save_file

from bench.models.checkpoint import load
from bench.models.factory import model_class
from bench.models.fused import FusedBlock
from bench.models.hugging_face import read_config
from tests.interpreter import DEVICE

GOLDEN = Path(__file__).with_name("golden_logits.npz")
LENGTHS = (1, 4, 16, 17, 21, 32, 37)
# The pieces of each prompt, as in `plans.run`.
PLANS = ((-1,), (3, -1), (-16,), (16, -1), (5, 16), (21, -11), (5, -3, 13, -1, 15))

LEARNERS = {"linear": {"ttt_layer_type": "linear"}, "mlp": {"ttt_layer_type": "mlp", "ttt_base_lr": 0.1}}
BACKBONES = {
    "mamba": {"pre_conv": True, "share_qk": True, "use_gate": True},
    "transformer": {"pre_conv": False, "share_qk": False, "use_gate": False},
}
SETTINGS = {
    "default": {},
    "other": {"ttt_base_lr": 0.6, "rope_theta": 50.0, "rms_norm_eps": 0.1, "tie_word_embeddings": False},
}
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 32}
CASES = {
    f"{learner}-{backbone}-{setting}": {"model_type": "ttt"}
    | SIZES
    | LEARNERS[learner]
    | BACKBONES[backbone]
    | SETTINGS[setting]
    for learner in LEARNERS
    for backbone in BACKBONES
    for setting in SETTINGS
}

# Limits on the relative error. float64: the digits of the constants in gelu'; float32: some hundreds of roundings.
LIMIT = {torch.float64: 2e-11, torch.float32: 2e-5}

pytestmark = pytest.mark.usefixtures("one_thread", "triton_kernels")


def ids() -> np.ndarray:
    """Return two prompts of 37 tokens. NumPy has frozen RandomState's streams, so the tokens never change."""
    return np.random.RandomState(1).randint(32, size=(2, max(LENGTHS)))


def weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return random weights by name, drawn in the order of names; none is 0 or 1, which could hide a mistake."""
    stream = np.random.RandomState(2)
    drawn = {name: stream.standard_normal(shapes[name]) for name in sorted(shapes)}
    return {name: 1 + 0.2 * x if name.endswith("norm.weight") else 0.2 * x for name, x in drawn.items()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, values in CASES.items():
        made[name] = folder = tmp_path_factory.mktemp(name)
        (folder / "config.json").write_text(json.dumps(values))
        config = read_config(folder)
        shapes = {
            key: tuple(x.shape) for key, x in model_class(config)(config, "meta", torch.float64).weights().items()
        }
        save_file({key: torch.from_numpy(x) for key, x in weights(shapes).items()}, folder / "model.safetensors")
    return made


def check(model: Any, name: str, dtype: torch.dtype, plans: Iterable[tuple[int, ...]]) -> None:
    with np.load(GOLDEN) as golden:
        expected = torch.from_numpy(golden[name])
    prompts = torch.from_numpy(ids()).to(DEVICE)
    for plan in plans:
        length = sum(map(abs, plan))
        got = run(model, prompts[:, :length], plan).cpu().double()
        exact = expected[:, LENGTHS.index(length)]
        error = float((got - exact).norm() / exact.norm())
        assert error <= LIMIT[dtype], f"{length} tokens as {plan}: relative error {error:.1e}"  # NaN fails too


@pytest.mark.parametrize("name", CASES)
def test_plain_blocks(name: str, folders: dict[str, Path]) -> None:
    model = load(folders[name], DEVICE, torch.float64)
    check(model, name, torch.float64, [*((length,) for length in LENGTHS), *PLANS])


@pytest.mark.parametrize("name", CASES)
def test_fused_blocks(name: str, folders: dict[str, Path]) -> None:
    check(load(folders[name], DEVICE, torch.float32, block=FusedBlock), name, torch.float32, [(5, -2, 10)])
