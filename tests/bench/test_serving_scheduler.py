"""The plug-in's scheduler returns what vLLM's scheduler returns. Needs vLLM, but no GPU."""

import json
from collections import deque
from random import Random
from types import SimpleNamespace

import pytest

MODEL_LENGTH, SLOTS = 64, 12
EOS, STOP = 0, 1
# A model with states that vLLM knows, because only the scheduler runs
MODEL = {
    "architectures": ["MambaForCausalLM"],
    "model_type": "mamba",
    "vocab_size": 64,
    "hidden_size": 64,
    "state_size": 16,
    "num_hidden_layers": 1,
    "intermediate_size": 128,
    "conv_kernel": 4,
    "time_step_rank": 4,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(params=[(SLOTS, False), (SLOTS + 3, True)])
def schedulers(monkeypatch, tmp_path, request):
    pytest.importorskip("vllm")
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MambaSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from bench.serving.scheduler import TTTScheduler

    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    config = VllmConfig(
        model_config=ModelConfig(
            model=str(tmp_path), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=MODEL_LENGTH
        ),
        cache_config=CacheConfig(enable_prefix_caching=False),
        scheduler_config=SchedulerConfig(
            max_num_seqs=SLOTS,
            max_num_batched_tokens=MODEL_LENGTH,
            max_model_len=MODEL_LENGTH,
            is_encoder_decoder=False,
            async_scheduling=True,
        ),
        device_config=DeviceConfig("cpu"),
        parallel_config=ParallelConfig(distributed_executor_backend="uni"),
    )
    ttt = SimpleNamespace(mini_batch=16, heads=128)  # one prompt at a time suffices
    monkeypatch.setattr("bench.serving.scheduler.read_config", lambda folder: ttt)
    for module in ("vllm.v1.engine", "vllm.v1.core.sched.scheduler"):  # equal times of events
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: 1.0))
    blocks, stats = request.param
    config.cache_config.num_gpu_blocks = blocks
    spec = MambaSpec(block_size=MODEL_LENGTH, shapes=((64,),), dtypes=(torch.int8,))
    # vLLM keeps one block for itself: with SLOTS blocks, requests wait for a block, otherwise for a slot.
    cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    options = {"include_finished_set": stats, "log_stats": stats}

    return [
        made(config, cache, StructuredOutputManager(config), MODEL_LENGTH, **options)
        for made in (AsyncScheduler, TTTScheduler)
    ]


def test_scheduler_returns_the_same_as_that_of_vllm(schedulers):
    """Requests arrive, end, are aborted and preempted; a step is scheduled before the previous step's tokens arrive."""
    from vllm.v1.request import RequestStatus

    ours, rng, flying, found, fast = schedulers[1], Random(0), deque(), [], []
    generating = ours._generating
    ours._generating = lambda: found.append(generating()) or found[-1]
    for number in range(2500):
        while rng.random() < (0.4 if number % 400 < 40 else 0.03):
            request = random_request(rng, number)
            for scheduler in schedulers:
                scheduler.add_request(request())
            number += 10**6
        found.clear()
        steps = [scheduler.schedule() for scheduler in schedulers]
        assert steps[0] == steps[1]
        fast += [bool(ours.waiting)] if any(found) else []
        flying.append([(step, tokens) for step, tokens in zip(steps, sampled(rng, schedulers, steps), strict=True)])
        if rng.random() < 0.02 and ours.requests:
            aborted = rng.choice(list(ours.requests))
            for scheduler in schedulers:
                scheduler.finish_requests(aborted, RequestStatus.FINISHED_ABORTED)
        if rng.random() < 0.005:
            for scheduler in schedulers:
                scheduler.reset_prefix_cache(reset_running_requests=True)
        if len(flying) == 2:
            pairs = zip(schedulers, flying.popleft(), strict=True)
            theirs, made = [by_request(scheduler.update_from_output(*each)) for scheduler, each in pairs]
            assert theirs == made
        assert state(schedulers[0]) == state(ours)
    assert len(fast) > 500
    assert any(fast) == (ours.kv_cache_config.num_blocks > SLOTS)


@pytest.mark.parametrize(
    ("lengths", "shape", "room", "steps"),
    [
        ([60] * 5, (50, 4), 11, [[16] * 4, [16] * 4]),
        ([60] * 5, (2, 16), 11, [[16] * 4, [16] * 4]),
        ([60, 60, 60], (64, 16), 11, [[32, 32], [28, 28, 8]]),
        ([60], (32, 16), 11, [[60], [1]]),
        ([20, 60], (32, 16), 11, [[20, 32], [1, 28]]),
        ([16, 60, 60], (32, 16), 11, [[16] * 3, [1, 32, 31]]),
        ([50, 60, 60], (32, 16), 1, [[50], [1]]),  # the others must wait
    ],
)
def test_prompts_share_a_step(schedulers, monkeypatch, lengths, shape, room, steps):
    ours = again(schedulers[1], monkeypatch, *shape)
    pool = ours.kv_cache_manager.block_pool
    if ours.kv_cache_config.num_blocks > SLOTS:
        ours.max_num_active_reqs = room
    else:
        pool.get_new_blocks(pool.get_num_free_blocks() - room)
    for number, length in enumerate(lengths):
        ours.add_request(random_request(Random(0), number, length)())
    assert [list(ours.schedule().num_scheduled_tokens.values()) for _ in steps] == steps


@pytest.mark.parametrize(
    ("setting", "first"),
    [({"long_prefill_token_threshold": 40}, [40, 24]), ({"enable_chunked_prefill": False}, [60])],
)
def test_settings_that_limit_prompts_are_kept(schedulers, monkeypatch, setting, first):
    vars(schedulers[1].scheduler_config).update(setting)
    ours = again(schedulers[1], monkeypatch, 32, 16)
    for number in range(2):
        ours.add_request(random_request(Random(0), number, 60)())
    assert list(ours.schedule().num_scheduled_tokens.values()) == first


def again(scheduler, monkeypatch, heads, mini_batch):
    model = SimpleNamespace(mini_batch=mini_batch, heads=heads)
    monkeypatch.setattr("bench.serving.scheduler.read_config", lambda folder: model)
    settings = scheduler.vllm_config, scheduler.kv_cache_config, scheduler.structured_output_manager
    return type(scheduler)(*settings, MODEL_LENGTH)


def test_scheduler_keeps_its_requests_after_an_exception(schedulers, monkeypatch):
    ours = schedulers[1]
    ours.running = [SimpleNamespace(request_id="0")]
    monkeypatch.setattr(ours, "_generating", lambda: ours.running)
    monkeypatch.setattr(ours.kv_cache_manager, "new_step_starts", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ours.schedule()
    assert (len(ours.running), ours.max_num_active_reqs) == (1, SLOTS)


def random_request(rng, number, length=0):
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    prompt, ends = [2] * (length or rng.randint(1, 60)), rng.random() < 0.3
    params = SamplingParams(max_tokens=rng.randint(1, 60), stop_token_ids=[STOP] if ends else [], detokenize=False)
    params._eos_token_id = EOS if ends else None
    client = rng.randint(0, 1)

    def made():
        return Request(f"{number}-x", list(prompt), params, None, client_index=client, arrival_time=float(number))

    return made


def sampled(rng, schedulers, steps):
    """Yield a ModelRunnerOutput per scheduler, all with the same random tokens; an unfinished prompt gets no token."""
    from vllm.v1.outputs import ModelRunnerOutput

    ids = list(steps[0].num_scheduled_tokens)
    rng.shuffle(ids)
    tokens = [rng.randint(0, 40) for _ in ids]
    for scheduler in schedulers:
        reads = [scheduler.requests[each].is_prefill_chunk for each in ids]
        made = [[] if chunk else [token] for chunk, token in zip(reads, tokens, strict=True)]
        scores = {each: 0.5 for each, token in zip(ids, made, strict=True) if token == [7]}
        indices = {each: index for index, each in enumerate(ids)}
        yield ModelRunnerOutput(ids, indices, made, prompt_token_id_logprobs_dict=scores)


def by_request(outputs):
    return {
        client: ({each.request_id: each for each in some.outputs}, some.scheduler_stats, some.finished_requests)
        for client, some in outputs.items()
    }


def state(scheduler):
    names = ("status", "num_computed_tokens", "num_in_flight_tokens", "num_output_placeholders", "is_prefill_chunk")
    requests = [
        (key, *(getattr(request, name) for name in names), *request.all_token_ids)
        for key, request in scheduler.requests.items()
    ]
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    return requests, [each.request_id for each in scheduler.running], len(scheduler.waiting), free
