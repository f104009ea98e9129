"""`ttt-bench generate`: continue a text with a checkpoint that has a tokenizer."""

from pathlib import Path

from bench.errors import UserError

TOKENIZER = "tokenizer.json"


def generate(folder: Path, prompt: str, tokens: int) -> None:
    """Print the model's greedy continuation of `prompt`, at most `tokens` tokens.

    folder: a checkpoint with tokenizer.json. Raises UserError if the checkpoint, tokenizer or prompt is unusable.
    """
    from transformers import PreTrainedTokenizerFast, TextStreamer

    from bench.models.hugging_face import read_config
    from bench.serving.causal_lm import HuggingFaceTTT

    vocabulary = read_config(folder).vocabulary
    if not (folder / TOKENIZER).is_file():
        raise UserError(f"{folder}: {TOKENIZER} is missing; copy it from the original model")
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    except Exception as error:  # the tokenizer's reader raises exceptions of many types
        raise UserError(f"{folder}: cannot read {TOKENIZER} ({type(error).__name__}: {error})") from None
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    if not ids.numel():
        raise UserError("--prompt: the tokenizer finds no token in this text")
    if int(ids.max()) >= vocabulary:
        raise UserError(f"{folder}: {TOKENIZER} gives token {int(ids.max())}; the model's vocabulary has {vocabulary}")
    model = HuggingFaceTTT.from_pretrained(folder)
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    greedy = {"do_sample": False, "num_beams": 1, "num_return_sequences": 1}  # whatever generation_config.json has
    model.generate(ids.to(model.device), max_new_tokens=tokens, streamer=streamer, pad_token_id=0, **greedy)
