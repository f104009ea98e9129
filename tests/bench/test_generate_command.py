"""`ttt-bench generate` continues a text as a loop of `generate_step` does."""

import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from bench.commands.generate import generate
from bench.errors import UserError
from bench.models import checkpoint
from bench.models.config import model_config
from bench.models.factory import from_seed

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPT = " ".join(f"w{number}" for number in range(5, 25))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = from_seed(model_config("ttt-linear", "tiny"), 0, "cpu")
    checkpoint.save(model, tmp_path)
    write_tokenizer(tmp_path, 512)
    return tmp_path


def write_tokenizer(folder, words):
    tokenizer = Tokenizer(WordLevel({f"w{number}": number for number in range(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))


def own_words(folder, count):
    model = checkpoint.load(folder, "cpu")
    logits, state = model.prefill(torch.arange(5, 25)[None], model.init_state(1))
    words = []
    for _ in range(count):
        words.append(int(logits.argmax()))
        logits, state = model.generate_step(logits.argmax(-1), state)
    return words


def test_the_text_has_the_tokens_of_the_projects_loop(folder, capsys):
    (folder / "generation_config.json").write_text('{"num_beams": 4, "num_return_sequences": 2}')
    generate(folder, PROMPT, 20)
    assert capsys.readouterr().out.split() == [f"w{number}" for number in own_words(folder, 20)]


def test_the_checkpoints_end_token_ends_the_text(folder, capsys):
    made = own_words(folder, 20)
    values = json.loads((folder / "config.json").read_text()) | {"eos_token_id": made[7]}
    (folder / "config.json").write_text(json.dumps(values))
    generate(folder, PROMPT, 20)
    assert len(capsys.readouterr().out.split()) == made.index(made[7]) + 1


def test_mistakes_are_one_sentence(folder):
    with pytest.raises(UserError, match=r"^--prompt: the tokenizer finds no token in this text$"):
        generate(folder, " ", 4)
    write_tokenizer(folder, 600)
    with pytest.raises(UserError, match=r"tokenizer.json gives token 599; the model's vocabulary has 512$"):
        generate(folder, "w599", 4)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"cannot read tokenizer\.json"):
        generate(folder, PROMPT, 1)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r": tokenizer.json is missing"):
        generate(folder, "w1", 4)
