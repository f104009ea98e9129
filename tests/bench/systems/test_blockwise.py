"""A model run block by block gives the logits of the whole model and leaves its weights in CPU memory."""

from dataclasses import replace

import pytest
import torch

from bench.models.config import model_config
from bench.models.factory import from_seed
from bench.systems.blockwise import last_logits, visiting
from bench.systems.mamba.scan import ScannedMamba

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "config",
    [
        model_config("transformer-gqa", "tiny"),
        model_config("ttt-mlp", "tiny"),
        replace(model_config("ttt-linear", "tiny", backbone="transformer"), tied=False),
    ],
)
def test_block_by_block_gives_the_logits_of_one_forward(config):
    model = from_seed(config, 0, "cpu", torch.float32)
    ids = torch.randint(0, config.vocabulary, (2, 21))
    torch.testing.assert_close(last_logits(model, ids, 3, CPU), model.logits(ids, 3), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_a_block_is_on_the_gpu_only_in_the_context():
    block = torch.nn.Linear(2, 2)
    before = block.weight.data_ptr()
    with torch.no_grad(), visiting(block, torch.device("cuda")):
        assert block.weight.device.type == block.bias.device.type == "cuda"
    assert block.weight.data_ptr() == before


@pytest.mark.gpu
@pytest.mark.parametrize("system", ["transformer", "mamba", "ttt-linear"])
def test_weights_on_the_host_give_the_logits_of_weights_on_the_gpu(system):
    config = model_config(system, "tiny")
    model = from_seed(config, 0, "cpu", torch.float32)
    ids, gpu = torch.randint(0, config.vocabulary, (1, 70)), torch.device("cuda")

    def logits(device):
        if system == "mamba":
            return ScannedMamba(model.inner, device).logits(ids, 2).cpu()
        return last_logits(model, ids, 2, device).cpu()

    expected = logits(CPU)
    torch.testing.assert_close(logits(gpu), expected, rtol=1e-3, atol=1e-4)
