"""The models compute one function, however a sequence is split into chunks and steps."""

from dataclasses import replace

import pytest
import torch
from plans import run

from bench.errors import UserError
from bench.models.config import MODELS, SIZES, ConfigError, TTTConfig, cut, model_config, parameter_count, split_size
from bench.models.factory import default_dtype, from_seed, model_class
from bench.models.layers import enable_layer_ranges
from bench.models.operator import TorchOperator
from tests.tk_kernels.tensors import assert_close

# Relative error of logits between two orders of the same sums. float64 and float32: some hundreds of roundings, two
# layers deep. bfloat16: one rounding is 4e-3, and the residual stream is rounded six times.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 5e-2}
TOKENS = 41
pytestmark = pytest.mark.usefixtures("one_thread")

VARIANTS = ("ttt-linear", "ttt-mlp", "ttt-linear (T)", "ttt-mlp (T)", "transformer", "transformer-gqa", "mamba")


def config_of(name, **options):
    system, _, backbone = name.partition(" ")
    return model_config(system, "tiny", backbone="transformer" if backbone == "(T)" else "mamba", **options)


def dtype_of(name):
    return torch.float32 if name == "mamba" else torch.float64  # transformers' Mamba rounds its norms to float32


@pytest.fixture(scope="module")
def models():
    return {name: from_seed(config_of(name), 0, "cpu", dtype_of(name)) for name in VARIANTS}


def random_ids(batch, tokens):
    return torch.randint(512, (batch, tokens), generator=torch.Generator().manual_seed(0))


def tensors_of(state):
    if isinstance(state, torch.Tensor):
        return [state]
    if isinstance(state, dict):
        return tensors_of(list(state.values()))
    if isinstance(state, list | tuple):
        return [tensor for part in state for tensor in tensors_of(part)]
    if hasattr(state, "__dict__") and not isinstance(state, torch.device | torch.dtype):
        return tensors_of(list(vars(state).values()))
    return []


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(
    "plan",
    [(1, 40), (15, 26), (16, 25), (17, -24), (-41,), (20, -3, 18), (-5, 30, -6), (33, -8), (5, -6, 9, 21)],
    ids=lambda plan: ",".join(map(str, plan)),
)
def test_a_sequence_may_be_split_anywhere(models, name, plan):
    ids = random_ids(2, TOKENS)
    assert_close(run(models[name], ids, plan), run(models[name], ids, (TOKENS,)), TOLERANCE[dtype_of(name)])


@pytest.mark.parametrize("name", ["ttt-linear", "ttt-mlp", "transformer", "transformer-gqa"])
def test_a_long_prompt_runs_in_chunks_with_the_same_result(models, name, monkeypatch):
    model, ids = models[name], random_ids(2, TOKENS)
    whole = run(model, ids, (TOKENS,))
    lengths = []
    hidden = type(model)._hidden
    monkeypatch.setattr(type(model), "chunk_tokens", 40)
    monkeypatch.setattr(type(model), "_hidden", lambda self, x, s: (lengths.append(x.shape[1]), hidden(self, x, s))[1])
    assert_close(run(model, ids, (TOKENS,)), whole, TOLERANCE[torch.float64])
    assert lengths == ([40, 1, 40, 1] if name.startswith("transformer") else [16, 16, 9])


@pytest.mark.parametrize("name", ["ttt-linear", "ttt-mlp", "ttt-linear (T)", "ttt-mlp (T)", "transformer"])
@pytest.mark.parametrize(("chunk_tokens", "least"), [(2 * TOKENS, 1), (32, 2)], ids=["whole prompts", "chunks"])
@pytest.mark.parametrize("plan", [(19, 22), (7, -4, 30)], ids=str)
def test_groups_of_sequences_give_the_logits_of_the_whole_batch(models, name, plan, chunk_tokens, least, monkeypatch):
    model, ids = models[name], random_ids(5, TOKENS)
    states = [model.init_state(5, TOKENS + 24) for _ in range(2)]
    together = run(model, ids, plan, states[0])
    sizes, hidden = [], type(model)._hidden
    monkeypatch.setattr(type(model), "_hidden", lambda self, x, s: (sizes.append(len(x)), hidden(self, x, s))[1])
    monkeypatch.setattr(type(model), "chunk_tokens", chunk_tokens)
    monkeypatch.setattr(type(model), "least_group_capacity", least)
    assert_close(run(model, ids, plan, states[1]), together, TOLERANCE[torch.float64])
    assert min(sizes) < 5
    assert states[0].length == states[1].length
    monkeypatch.undo()
    assert_close(*(run(model, ids[:, :24], (-3, 21), state) for state in states), TOLERANCE[torch.float64])


@pytest.mark.parametrize("name", VARIANTS)
def test_one_forward_gives_the_logits_after_each_of_the_last_tokens(models, name):
    model, ids = models[name], random_ids(2, TOKENS)
    prefixes = [run(model, ids[:, :end], (end,)) for end in (TOKENS - 2, TOKENS - 1, TOKENS)]
    assert_close(model.logits(ids, 3), torch.stack(prefixes, 1), TOLERANCE[dtype_of(name)])


@pytest.mark.parametrize("name", VARIANTS)
def test_the_state_stays_at_its_addresses_and_can_be_reset(models, name):
    model, ids = models[name], random_ids(2, 20)
    state = model.init_state(2, 20)
    addresses = [tensor.data_ptr() for tensor in tensors_of(state)]
    first = run(model, ids, (17, -3), state)
    assert [tensor.data_ptr() for tensor in tensors_of(state)] == addresses
    model.reset_state(state)
    assert torch.equal(run(model, ids, (17, -3), state), first)


@pytest.mark.parametrize("name", VARIANTS)
def test_bfloat16_is_near_float32_with_the_same_weights(models, name):
    ids = random_ids(2, 20)
    logits = {d: run(from_seed(config_of(name), 0, "cpu", d), ids, (18, -2)) for d in (torch.float32, torch.bfloat16)}
    assert logits[torch.bfloat16].dtype == torch.bfloat16
    assert_close(logits[torch.bfloat16], logits[torch.float32], TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("name", VARIANTS)
def test_the_head_is_the_embedding(models, name):
    model = models[name]
    [embedding] = [key for key in model.weights() if "embed" in key]
    assert model.tied == {"lm_head.weight": embedding}
    assert not any("lm_head" in key for key in model.weights())
    weight, ids = model.weights()[embedding], random_ids(1, 5)
    unused = next(token for token in range(512) if token not in ids)
    before = run(model, ids, (5,))
    weight[unused] *= 2  # the prompt lacks this token, so only its own logit doubles
    after = run(model, ids, (5,))
    weight[unused] /= 2
    before[:, unused] *= 2
    assert torch.allclose(after, before, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_seed_determines_the_weights_and_leaves_the_global_generator_alone(name):
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first, again, other = (from_seed(config_of(name), seed, "cpu").weights() for seed in (3, 3, 4))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_initial_weights_are_the_authors():
    weights = from_seed(config_of("ttt-mlp"), 0, "cpu").weights()
    block = "model.layers.1.seq_modeling_block."
    for key in ("W1", "W2", "learnable_ttt_lr_weight", "q_proj.weight"):
        assert weights[block + key].std() == pytest.approx(0.02, rel=0.1)
    for key in ("b1", "b2", "learnable_token_idx", "learnable_ttt_lr_bias", "ttt_norm_bias", "post_norm.bias"):
        assert not weights[block + key].any()
    for key in (block + "ttt_norm_weight", block + "post_norm.weight", "model.layers.0.conv.norm.weight"):
        assert (weights[key] == 1).all()
    convolution = weights["model.layers.0.conv.conv.weight"]
    assert 0.45 < convolution.abs().max() <= 0.5
    assert convolution.std() == pytest.approx(3**-0.5 / 2, rel=0.1)


TTT_FLOAT32 = {"W1", "b1", "ttt_norm_weight", "ttt_norm_bias"} | {
    f"learnable_{name}" for name in ("token_idx", "ttt_lr_weight", "ttt_lr_bias")
}


@pytest.mark.parametrize(
    ("system", "block", "names"),
    [("ttt-linear", "seq_modeling_block.", TTT_FLOAT32), ("mamba", "mixer.", {"A_log", "D", "dt_proj.bias"})],
)
def test_learners_and_decays_have_float32_in_a_bfloat16_model(system, block, names):
    weights = from_seed(config_of(system), 0, "cpu", torch.bfloat16).weights()
    assert {key.split(block)[-1] for key, weight in weights.items() if weight.dtype == torch.float32} == names


@pytest.mark.parametrize("learner", ["linear", "mlp"])
@pytest.mark.parametrize(("mini_batch", "plan"), [(1, (9, -4)), (4, (6, -7)), (32, (30, -11)), (32, (20, 13, -4))])
def test_other_mini_batches(learner, mini_batch, plan):
    model = from_seed(config_of(f"ttt-{learner}", mini_batch=mini_batch), 0, "cpu", torch.float64)
    assert model.weights()["model.layers.0.seq_modeling_block.learnable_token_idx"].shape == (mini_batch,)
    ids = random_ids(2, sum(map(abs, plan)))
    assert_close(run(model, ids, plan), run(model, ids, (ids.shape[1],)), TOLERANCE[torch.float64])


@pytest.mark.parametrize("learner", ["linear", "mlp"])
def test_the_primal_form_agrees_and_keeps_one_graph_state(models, learner):
    dual = models[f"ttt-{learner}"]
    primal = from_seed(dual.config, 0, "cpu", torch.float64, operator=TorchOperator(learner, "primal"))
    ids = random_ids(2, 21)
    state = primal.init_state(2, 21)
    graph_state = primal.generate_state(state)
    addresses = [tensor.data_ptr() for tensor in tensors_of(graph_state)]
    for _ in range(2):
        primal.reset_state(state)
        primal.prefill(ids[:, :10], state)
        assert primal.generate_state(state, into=graph_state) is graph_state
        for t in range(10, 21):
            logits, _ = primal.generate_step(ids[:, t], graph_state)
        assert_close(logits, run(dual, ids, (21,)), TOLERANCE[torch.float64])
    assert [tensor.data_ptr() for tensor in tensors_of(graph_state)] == addresses
    primal.reset_state(graph_state)
    assert_close(run(primal, ids, (-21,), graph_state), run(dual, ids, (21,)), TOLERANCE[torch.float64])


def test_a_state_of_the_wrong_form_is_refused(models):
    primal = from_seed(config_of("ttt-linear"), 0, "cpu", operator=TorchOperator("linear", "primal"))
    state = primal.init_state(1, 8)
    with pytest.raises(ValueError, match="make one with generate_state"):
        primal.generate_step(random_ids(1, 1)[:, 0], state)
    with pytest.raises(ValueError, match="prefill: needs a state"):
        primal.prefill(random_ids(1, 4), primal.generate_state(state))
    with pytest.raises(ConfigError, match="form fast: unknown; there are dual, primal"):
        TorchOperator("linear", "fast")


@pytest.mark.parametrize("name", VARIANTS)
def test_wrong_ids_are_refused(models, name):
    model, state = models[name], models[name].init_state(2, 8)
    with pytest.raises(ValueError, match=r"ids of shape \[2, 0\]"):
        model.prefill(random_ids(2, 0), state)
    with pytest.raises(ValueError, match="ids of 3 sequences: the state has 2"):
        model.prefill(random_ids(3, 4), state)
    with pytest.raises(ValueError, match=r"ids of shape \[2, 1\]: expected \[batch\]"):
        model.generate_step(random_ids(2, 1), state)


def test_a_prompt_longer_than_the_cache_is_refused(models):
    state = models["transformer"].init_state(1, 60)
    assert state.capacity == 64
    models["transformer"].prefill(random_ids(1, 64), state)
    with pytest.raises(ValueError, match="65 tokens: the state holds 64"):
        models["transformer"].prefill(random_ids(1, 1), state)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (2, 1), (8, 2)])
def test_the_transformer_is_llama(heads, kv_heads):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = replace(config_of("transformer"), heads=heads, kv_heads=kv_heads)
    model = from_seed(config, 0, "cpu", torch.float32)
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocabulary,
            hidden_size=config.width,
            intermediate_size=config.ffn_width,
            num_hidden_layers=config.layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
        )
    ).eval()
    missing, unexpected = llama.load_state_dict(model.weights(), strict=False)
    assert (set(missing), unexpected) == ({"lm_head.weight"}, [])
    ids = random_ids(2, TOKENS)
    with torch.no_grad():
        expected = llama(ids).logits[:, -1]
    assert_close(run(model, ids, (20, 15, -6)), expected, TOLERANCE[torch.float32])


def test_mamba_is_transformers_whole_forward(models):
    ids = random_ids(2, 20)
    with torch.no_grad():
        expected = models["mamba"].inner(ids, use_cache=False).logits[:, -1]
    assert_close(run(models["mamba"], ids, (4, 12, -4)), expected, TOLERANCE[torch.float32])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("system", MODELS)
def test_parameter_counts_are_exact(system, size):
    configs = [model_config(system, size)]
    if system.startswith("ttt"):
        configs += [model_config(system, size, backbone="transformer"), replace(configs[0], tied=False)]
    for config in configs:
        weights = model_class(config)(config, "meta", torch.bfloat16).weights()
        assert parameter_count(config) == sum(weight.numel() for weight in weights.values())


@pytest.mark.parametrize("size", SIZES)
def test_models_of_one_size_have_nearly_equal_parameter_counts(size):
    counts = [parameter_count(model_config(model, size)) for model in MODELS]
    assert max(counts) <= 1.08 * min(counts)
    heads, groups = (parameter_count(model_config(model, size)) for model in ("transformer", "transformer-gqa"))
    assert groups == pytest.approx(heads, rel=0.02)


@pytest.mark.parametrize("model", MODELS)
def test_a_size_cut_to_fewer_layers_has_the_same_layers(model):
    config, whole = model_config(model, cut("1.3b", 2)), model_config(model, "1.3b")
    assert config.layers == whole.layers * 2 // 24
    assert replace(config, layers=whole.layers) == whole
    assert split_size(cut("1.3b", 2)) == ("1.3b", 2)
    assert split_size("1.3b") == ("1.3b", 0)
    for wrong in ("1.3b/", "1.3b/0", "1.3b/two", "1.3b/2/3", "/2"):
        with pytest.raises(ConfigError):
            model_config(model, wrong)


def test_wrong_names_are_refused():
    with pytest.raises(UserError, match=r"size 2b: unknown; there are tiny, 125m, 350m, 760m, 1\.3b"):
        model_config("ttt-linear", "2b")
    with pytest.raises(ConfigError, match="mini_batch 0: must be at least 1"):
        model_config("ttt-mlp", "tiny", mini_batch=0)
    with pytest.raises(ConfigError, match="base_lr nan: must be a positive number"):
        replace(model_config("ttt-mlp", "tiny"), base_lr=float("nan"))
    with pytest.raises(ConfigError, match="width 100 with 3 heads"):
        TTTConfig("linear", 100, 64, 1, 3, base_lr=1.0)


def test_the_default_dtype_follows_the_device():
    assert (default_dtype("cpu"), default_dtype("cuda:0")) == (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("name", ["ttt-linear", "ttt-mlp"])
def test_init_state_equals_the_states_of_single_layers(models, name):
    model = models[name]
    state = model.init_state(3)
    for block, layer in zip(model.model.layers, state.layers, strict=True):
        caches = 2 * [torch.zeros(3, 3, model.config.width, dtype=model.dtype)]
        found, expected = tensors_of(layer), [*caches, *tensors_of(model._inner_state(block, 3))]
        assert all(map(torch.equal, found, expected))
        assert [(x.shape, x.dtype, x.is_contiguous()) for x in found] == [(x.shape, x.dtype, True) for x in expected]
    first, last = (tensors_of(state.layers[index]) for index in (0, -1))
    assert len({x.untyped_storage().data_ptr() for x in (*first, *last)}) == len(first) - 1  # both caches lie in one


@pytest.mark.parametrize("name", ["ttt-linear", "transformer", "mamba"])
def test_layers_have_ranges_only_if_they_are_on(models, name, monkeypatch):
    pushed = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", pushed.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: None)
    run(models[name], random_ids(1, 2), (2,))
    assert pushed == []
    enable_layer_ranges(True)
    try:
        run(models[name], random_ids(1, 3), (2, -1))
    finally:
        enable_layer_ranges(False)
    layers = [each for each in pushed if each != "operator"]
    assert layers == 2 * [f"layer {index}" for index in range(models[name].config.layers)]
    assert len(pushed) - len(layers) == (len(layers) if name == "ttt-linear" else 0)
