"""transformers' generate() returns the same tokens as the project's own loop."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from bench.models import checkpoint
from bench.models.config import model_config
from bench.models.factory import from_seed
from bench.serving.causal_lm import register

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path):
    checkpoint.save(from_seed(model_config("ttt-linear", "tiny"), 0, "cpu"), tmp_path)
    register()
    return tmp_path


def test_generate_gives_the_tokens_of_the_projects_loop(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.randint(512, (2, 21), generator=torch.Generator().manual_seed(0))
    model.save_pretrained(folder / "saved")
    again = AutoModelForCausalLM.from_pretrained(folder / "saved")
    own = checkpoint.load(folder, "cpu")
    logits, state = own.prefill(ids, own.init_state(2))
    expected = [ids]
    for _ in range(24):
        expected.append(logits.argmax(-1)[:, None])
        logits, state = own.generate_step(expected[-1][:, 0], state)
    for each in (model, again):
        made = each.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0)
        assert made.tolist() == torch.cat(expected, 1).tolist()


def test_the_folders_generation_settings_hold_and_are_saved(folder):
    (folder / "generation_config.json").write_text('{"max_new_tokens": 3, "pad_token_id": 0}')
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder / "saved")
    assert AutoModelForCausalLM.from_pretrained(folder / "saved").generate(torch.ones(1, 2).long()).shape == (1, 5)


def test_guidance_without_a_cache_subtracts_the_logits_of_the_negative_prompt(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids, other = torch.randint(512, (2, 2, 21), generator=torch.Generator().manual_seed(0))
    options = {"guidance_scale": 3.0, "negative_prompt_ids": other, "pad_token_id": 0, "use_cache": False}
    made = model.generate(ids, max_new_tokens=4, do_sample=False, **options)
    for at in range(4):
        so_far = (torch.cat([each, made[:, 21 : 21 + at]], 1) for each in (ids, other))
        logits, negative = (model(each).logits[:, 0].log_softmax(-1) for each in so_far)
        assert made[:, 21 + at].tolist() == (3 * logits - 2 * negative).argmax(-1).tolist()


def test_padding_beams_other_settings_and_several_devices_are_refused(folder):
    model, ids = AutoModelForCausalLM.from_pretrained(folder), torch.ones(2, 3, dtype=torch.long)
    padded = torch.tensor([[0, 1, 1], [1, 1, 1]])
    guided = {"guidance_scale": 2.0, "negative_prompt_ids": ids, "negative_prompt_attention_mask": padded}
    for options in ({"attention_mask": padded}, guided):
        with pytest.raises(ValueError, match=r"^attention_mask with zeros: prompts must have one length"):
            model.generate(ids, max_new_tokens=1, **options)
    with pytest.raises(ValueError, match=r"^3 tokens with a cache: pass one token of each sequence at a time"):
        model(ids, cache=model(ids).cache)
    with pytest.raises(ValueError, match=r"^ttt_base_lr = 0.1: the checkpoint has 1.0; edit its config.json$"):
        AutoModelForCausalLM.from_pretrained(folder, ttt_base_lr=0.1)
    with pytest.raises(ValueError, match="cannot use beam search with a cache"):
        model.generate(ids, num_beams=2, max_new_tokens=1)
    for device_map in ("balanced", {"": 0}):
        with pytest.raises(ValueError, match=r"^device_map .*: name one device"):
            AutoModelForCausalLM.from_pretrained(folder, device_map=device_map)
