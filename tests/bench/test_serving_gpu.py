"""vLLM serves TTT checkpoint folders, and generates the greedy tokens of the float32 model."""

import gc
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from itertools import groupby

import pytest
import torch

from bench.models import checkpoint
from bench.models.config import model_config
from bench.models.factory import from_seed
from bench.systems.logits import choice_check

pytestmark = pytest.mark.gpu
LEARNERS = ("ttt-linear", "ttt-mlp")
CACHE_BYTES = 8 << 30  # the states of 64 sequences of TTT-MLP at 1.3b


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    pytest.importorskip("vllm")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    yield
    gc.collect()
    torch.cuda.empty_cache()


def made(folder, learner, size="tiny", **options):
    config = model_config(learner, size, **options)
    checkpoint.save(from_seed(config, 0, "cuda", torch.bfloat16), folder)
    return folder


def engine(folder, **settings):
    from vllm import LLM

    from bench.serving import register

    register()
    settings = {"max_model_len": 2048, "max_num_seqs": 64, "kv_cache_memory_bytes": CACHE_BYTES} | settings
    return LLM(str(folder), skip_tokenizer_init=True, gpu_memory_utilization=0.2, **settings)


def greedy(new_tokens):
    from vllm import SamplingParams

    return SamplingParams(temperature=0, ignore_eos=True, max_tokens=new_tokens, detokenize=False)


def served(llm, prompts, new_tokens, arriving=0, aborted=(), aborted_at=None, preempting=0):
    """Run the prompts in vLLM; return each request's new tokens, [] if it made none.

    arriving: steps between the arrivals of successive requests; 0: all arrive at once.
    aborted: indices of the prompts whose requests are aborted at their first output.
    aborted_at: (index of the prompt whose request is aborted, number of steps before that).
    preempting: steps from one preemption of all running requests to the next; 0: none.
    """
    core, waiting = llm.llm_engine, list(enumerate(prompts))
    found, steps = {}, 0
    while waiting or core.has_unfinished_requests():
        while waiting and steps >= arriving * waiting[0][0]:
            number, ids = waiting.pop(0)
            core.add_request(str(number), {"prompt_token_ids": ids}, greedy(new_tokens))
        if preempting and steps % preempting == preempting - 1:
            core.reset_prefix_cache(reset_running_requests=True)
        if aborted_at and steps == aborted_at[1]:
            core.abort_request([str(aborted_at[0])])
        for output in core.step():
            number = int(output.request_id.partition("-")[0])
            if number in aborted and number not in found:
                core.abort_request([output.request_id])
            found[number] = list(output.outputs[0].token_ids)
        steps += 1
    return [found.get(number, []) for number in range(len(prompts))]


def random_prompts(lengths, vocabulary):
    draws = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (length,), generator=draws).tolist() for length in lengths]


def assert_greedy(folder, prompts, tokens):
    """Check that each token is, up to rounding, the choice of `folder`'s float32 PyTorch model."""
    own = checkpoint.load(folder, "cuda", torch.float32)
    by_length = sorted(zip(prompts, tokens, strict=True), key=lambda pair: len(pair[0]))
    with torch.inference_mode():
        for _, group in groupby(by_length, key=lambda pair: len(pair[0])):
            ids, chosen = (torch.tensor(each, device="cuda") for each in zip(*group, strict=True))
            logits = own.logits(torch.cat((ids, chosen[:, :-1]), 1), chosen.shape[1])
            check = choice_check("", logits, chosen, "bfloat16")
            assert check.passed, check


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("size", ["tiny", "1.3b"])
def test_requests_that_arrive_over_time(tmp_path, learner, size):
    folder = made(tmp_path, learner, size)
    llm = engine(folder, max_num_batched_tokens=256)  # longer prompts come in chunks
    prompts = random_prompts([1, 15, 16, 17, 100, 333, 512, 1000] * 8, model_config(learner, size).vocabulary)
    tokens = served(llm, prompts, 256, arriving=2)
    del llm
    assert_greedy(folder, prompts, tokens)


@pytest.mark.parametrize(
    ("learner", "backbone"), [("ttt-linear", "mamba"), ("ttt-linear", "transformer"), ("ttt-mlp", "mamba")]
)
def test_one_launch_reads_prompts_of_different_lengths_and_positions(tmp_path, monkeypatch, learner, backbone):
    from bench.serving import metadata

    read, packed = [], metadata.Packed

    def recorded(cu_seqlens, start, *rest):
        read.append((cu_seqlens.diff().tolist(), start.tolist()))
        return packed(cu_seqlens, start, *rest)

    folder = made(tmp_path, learner, backbone=backbone)
    llm = engine(folder, max_num_batched_tokens=100, max_num_seqs=16)
    monkeypatch.setattr(metadata, "Packed", recorded)
    prompts = random_prompts([1, 40, 57, 3, 100, 31, 16, 250, 1, 5], 512)
    tokens = served(llm, prompts, 24)
    assert any(len(set(lengths)) > 1 and any(at % 16 for at in start) for lengths, start in read)
    assert_greedy(folder, prompts, tokens)
    pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    prompts = [random_prompts([1000], 512)[0], *prompts]
    unread, *others = served(llm, prompts, 24, aborted_at=(0, 3))
    assert not unread
    assert pool.get_num_free_blocks() == free
    assert_greedy(folder, prompts[1:], others)


@pytest.mark.parametrize(
    ("learner", "backbone"), [("ttt-linear", "mamba"), ("ttt-linear", "transformer"), ("ttt-mlp", "mamba")]
)
def test_no_request_waits_for_a_kernel_to_compile(tmp_path, monkeypatch, learner, backbone):
    """Starting vLLM compiles all TTT kernels. No other test here compiles them earlier for this model size."""
    from triton import knobs

    llm = engine(made(tmp_path, learner, "125m", backbone=backbone), max_num_batched_tokens=1000)
    compiled = []

    def compiles(*, src, **rest):
        if src.fn.__module__.startswith("tk_kernels"):  # vLLM's own kernels may compile
            compiled.append(src.name)

    monkeypatch.setattr(knobs.compilation, "listener", compiles)
    lengths = torch.randint(1, 300, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    prompts = random_prompts([*lengths, 16, 16, 1, 1], 512)
    for arriving in (0, 1):
        served(llm, prompts, 60, arriving)
    assert compiled == []


@pytest.mark.parametrize("learner", LEARNERS)
def test_requests_that_wait_for_a_slot_and_are_preempted(tmp_path, learner):
    folder = made(tmp_path, learner)
    llm = engine(folder, num_gpu_blocks_override=6, max_num_seqs=4)
    prompts = random_prompts([40, 41, 57, 64] * 8, 512)
    tokens = served(llm, prompts, 64, preempting=25)
    assert_greedy(folder, prompts, tokens)


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_cached_prefix(tmp_path, learner):
    folder = made(tmp_path, learner)
    llm = engine(folder, enable_prefix_caching=True)
    shared, *ends = random_prompts([1024, 7, 16, 30, 100], 512)
    prompts = [shared + end for end in ends]
    first = served(llm, prompts, 32, arriving=40)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], greedy(32), use_tqdm=False)
    assert min(output.num_cached_tokens for output in outputs) > 0
    again = [list(output.outputs[0].token_ids) for output in outputs]
    assert_greedy(folder, prompts, first)
    assert_greedy(folder, prompts, again)


def test_ten_thousand_requests_leave_no_slot_taken(tmp_path):
    folder = made(tmp_path, "ttt-linear")
    llm = engine(folder, max_num_seqs=256)
    pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    prompts = random_prompts([3, 17, 33, 8] * 2500, 512)
    served(llm, prompts, 4, aborted=range(0, 10_000, 7))
    assert pool.get_num_free_blocks() == free
    last = served(llm, prompts[:8], 64)
    assert_greedy(folder, prompts[:8], last)


@pytest.mark.parametrize("learner", LEARNERS)
def test_vllm_serve_streams_over_http(tmp_path, learner):
    folder = made(tmp_path, learner)
    (prompt,) = random_prompts([37], 512)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder), "--skip-tokenizer-init"]
    command += ["--port", str(port), "--max-model-len", "2048", "--max-num-seqs", "16"]
    command += ["--gpu-memory-utilization", "0.2", "--kv-cache-memory-bytes", str(CACHE_BYTES)]
    variables = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    log = (tmp_path / "serve.log").open("w")
    server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=variables, start_new_session=True)
    try:
        _wait_for(f"{address}/health", server, tmp_path / "serve.log")
        body = {"model": str(folder), "prompt": prompt, "max_tokens": 48, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "return_token_ids": True}
        request = urllib.request.Request(
            f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            events = [json.loads(line[6:]) for line in answer if line.startswith(b"data: {")]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, 15)
        server.wait(60)
    tokens = [token for event in events for token in event["choices"][0]["token_ids"] or []]
    assert len(events) > 1
    assert len(tokens) == 48
    assert_greedy(folder, [prompt], [tokens])


def _wait_for(address, server, log, limit_s=240):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5)
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
    pytest.fail(f"vllm serve did not answer: {log.read_text()[-3000:]}")
