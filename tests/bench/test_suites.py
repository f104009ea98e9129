"""Do the suites hold the figures' cases, and can every axis be narrowed?"""

from dataclasses import replace

import pytest

from bench.errors import UserError
from bench.memory import layer_beyond_memory, least_bytes, refuse_beyond_memory
from bench.selection import select
from bench.suites import SUITES, Selection, beyond_memory, cases, default_suites, find_suite
from bench.systems import SYSTEMS
from harness.record import Record

EVERYTHING = Selection(SYSTEMS)
GPU_80GB = {"gpu": {"memory_bytes": 80e9}}


def test_quick_has_four_systems_five_contexts_and_several_batches():
    found = cases(find_suite("quick"), select(None, None, None, None, "cpu"), "cpu")
    assert len(found) == 40
    for system in ("ttt-linear", "ttt-mlp", "transformer", "mamba"):
        forward = {case.context for case in found if case.system == system and case.phase == "forward"}
        batches = {case.batch for case in found if case.system == system and case.phase == "generate"}
        assert len(forward) >= 5
        assert len(batches) >= 3


@pytest.mark.parametrize(
    ("name", "phase", "batches", "contexts"),
    [
        ("fig15-forward", "forward", {16}, {2048, 4096, 8192, 16384, 32768}),
        ("fig15-generate", "generate", {512}, {512, 1024, 2048, 4096, 8192, 16384, 32768}),
        ("prompt-then-128", "request", {16}, {2048, 4096, 8192, 16384, 32768}),
    ],
)
def test_figures_have_the_papers_axes(name, phase, batches, contexts):
    found = cases(find_suite(name), EVERYTHING, "cuda")
    assert {case.phase for case in found} == {phase}
    assert {case.batch for case in found} == batches
    assert {case.context for case in found} == contexts
    assert {case.size for case in found} == {"1.3b"}


def test_minibatch_figure_splits_w_from_z_for_every_power_of_two():
    found = cases(find_suite("fig8-minibatch"), EVERYTHING, "cuda")
    pairs = {(case.option("mini_batch"), case.option("part")) for case in found}
    assert pairs == {(2**i, part) for i in range(12) for part in ("w", "z")}
    assert {case.system for case in found} == {"ttt-linear"}


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_every_case_is_there_once(suite):
    found = cases(suite, EVERYTHING, "cuda")
    assert found
    assert len({case.key for case in found}) == len(found)


def test_any_axis_can_be_narrowed():
    narrow = Selection(SYSTEMS[:1], sizes=("125m",), batches=(3,), contexts=(100, 50))
    found = cases(find_suite("fig15-forward"), narrow, "cuda")
    assert [(c.system, c.size, c.batch, c.context) for c in found] == [
        ("ttt-linear", "125m", 3, 50),
        ("ttt-linear", "125m", 3, 100),
    ]


def test_a_kernel_is_measured_in_its_own_phase():
    for suite, phase in (("fig15-forward", "thunderkittens"), ("fig15-generate", "triton-dual")):
        found = {case.backend for case in cases(find_suite(suite), EVERYTHING, "cuda") if case.system == "ttt-mlp"}
        assert found & {"thunderkittens", "triton-dual"} == {phase}


def test_on_a_cpu_systems_of_a_gpu_are_left_out_unless_named():
    assert {spec.backend for spec in select(None, None, None, None, "cpu").systems} == {"torch"}
    assert [spec.label for spec in select("mamba/vllm", None, None, None, "cpu").systems] == ["mamba/vllm"]
    assert "mamba/torch" not in {spec.label for spec in select(None, None, None, None, "cuda").systems}


def test_a_gpu_generates_in_a_graph_in_bfloat16_and_a_cpu_in_float32():
    on_gpu = cases(find_suite("quick"), EVERYTHING, "cuda")
    on_cpu = cases(find_suite("quick"), EVERYTHING, "cpu")
    assert {(c.timing, c.dtype) for c in on_gpu if c.phase == "generate"} == {("graph", "bfloat16")}
    assert {(c.timing, c.dtype) for c in on_cpu} == {("eager", "float32")}


def test_the_state_of_ttt_stays_float32():
    found = cases(find_suite("fig15-generate"), EVERYTHING, "cuda")
    assert {c.state_dtype for c in found if c.system.startswith("ttt")} == {"float32", "float32-planes"}
    assert {c.state_dtype for c in found if c.system == "transformer"} == {"bfloat16"}


def test_without_a_gpu_only_quick_is_run():
    assert default_suites("cpu") == ("quick",)
    assert set(default_suites("cuda")) == {suite.name for suite in SUITES} - {"quick", "vllm-settings"}


def test_after_a_batch_that_did_not_fit_larger_ones_are_skipped():
    transformer = select("transformer/torch", None, None, None, "cuda")
    throughput = cases(find_suite("fig20-throughput"), transformer, "cuda")
    generate = [case for case in throughput if case.phase == "generate"]
    failed = Record(generate[3], "oom", "out of memory")
    assert beyond_memory(generate[4], [failed]) == "batch 8 did not fit"
    assert beyond_memory(generate[2], [failed]) == ""
    assert beyond_memory(throughput[-1], [replace(failed, status="ok")]) == ""
    forward = [case for case in throughput if case.phase == "forward"]
    assert beyond_memory(forward[4], [failed]) == ""


def test_after_a_batch_that_an_engine_could_not_hold_at_once_larger_ones_are_skipped():
    found = cases(find_suite("fig20-throughput"), EVERYTHING, "cuda")
    generate = [case for case in found if (case.backend, case.phase) == ("vllm", "generate")]
    part = Record(generate[3], "ok", samples_ms=[1.0], throttled=[False], metrics={"sequences_at_once": 5})
    assert beyond_memory(generate[4], [part]) == "of batch 8 only 5 sequences fitted at once, and were measured"
    assert beyond_memory(generate[4], [replace(part, metrics={"sequences_at_once": 8})]) == ""
    assert beyond_memory(generate[2], [part]) == ""


def test_a_trial_of_settings_is_run_when_it_is_named_and_starts_each_engine_once():
    found = cases(find_suite("vllm-settings"), EVERYTHING, "cuda")
    assert {case.backend for case in found} == {"vllm"}
    engines = [case.options for case in found]
    started = [now for now, before in zip(engines, [None, *engines], strict=False) if now != before]
    assert len(started) == len(set(started)) == 5
    assert {case.option("graphs") for case in found if case.phase == "generate"} == {"engine", "doubling"}
    assert "vllm-settings" not in default_suites("cuda")


def test_a_figure_that_does_not_grow_tries_every_case():
    first, *_, last = cases(find_suite("fig15-forward"), EVERYTHING, "cuda")
    assert beyond_memory(last, [Record(first, "oom", "out of memory")]) == ""


def test_a_sequence_of_32k_needs_a_cache_of_6_gb():
    case = next(
        c
        for c in cases(find_suite("fig15-forward"), EVERYTHING, "cuda")
        if c.system == "transformer" and c.context == 32768
    )
    cache = least_bytes(case) - least_bytes(replace(case, context=1))
    assert cache == pytest.approx(32767 * (196_608 + 16 * 8))


def test_what_no_system_can_hold_is_refused_with_its_size():
    asked = cases(find_suite("quick"), Selection(SYSTEMS, contexts=(10**13,)), "cpu")
    with pytest.raises(
        UserError,
        match=r"forward with --batch 2 --context 10000000000000: needs at least .* GB and this machine has 80 GB",
    ):
        refuse_beyond_memory(asked, GPU_80GB)


def test_what_one_system_can_hold_is_tried():
    refuse_beyond_memory(cases(find_suite("fig15-forward"), EVERYTHING, "cuda"), GPU_80GB)


def kernel_forward(backend, **axes):
    found = cases(find_suite("kernel-forward"), EVERYTHING, "cuda")
    return [c for c in found if c.backend == backend and all(getattr(c, name) == axes[name] for name in axes)]


@pytest.mark.parametrize("l2", ["cold", "warm"])
def test_the_forward_kernels_are_measured_over_every_batch_and_length(l2):
    found = kernel_forward("thunderkittens", l2=l2, system="ttt-mlp")
    assert {(c.batch, c.context) for c in found} == {(b, 2048 << i) for b in (1, 4, 16, 64) for i in range(7)}
    assert {c.timing for c in found} == {"graph"}


def test_the_forward_kernels_are_held_against_pytorch_compiled_or_not_and_fla():
    assert {c.system for c in kernel_forward("torch-compile")} == {"ttt-linear", "ttt-mlp"}
    assert {c.system for c in kernel_forward("fla")} == {"ttt-linear"}
    shapes = {(c.batch, c.context) for c in kernel_forward("torch")}
    assert shapes == {(c.batch, c.context) for c in kernel_forward("torch-compile")}
    assert {2048, 8192, 32768} == {context for _, context in shapes}


def test_a_layer_that_cannot_fit_is_skipped_with_its_size():
    [largest] = kernel_forward("thunderkittens", batch=64, context=131072, l2="cold", system="ttt-linear")
    reason = layer_beyond_memory(largest, int(80e9))
    assert reason == "needs at least 139 GB and this machine has 80 GB"
    tokens = 64 * 131072 * 2048
    assert least_bytes(largest) == 4 * tokens * 2 + 4 * tokens // 64 + 2 * 4 * 64 * 32 * 65 * 64
    assert layer_beyond_memory(replace(largest, context=32768), int(80e9)) == ""


def test_a_step_of_a_layer_holds_the_state_of_every_sequence():
    found = cases(find_suite("kernel-generate"), EVERYTHING, "cuda")
    sizes = {c.state_dtype: least_bytes(c) for c in found if (c.system, c.batch) == ("ttt-linear", 512)}
    assert sizes["float32-planes"] == sizes["float32"] == 2 * sizes["bfloat16"] == 4 * 512 * 32 * 65 * 64


def test_a_model_is_tried_whatever_it_needs():
    case = cases(find_suite("fig15-forward"), EVERYTHING, "cuda")[0]
    assert layer_beyond_memory(replace(case, batch=10**6), int(80e9)) == ""
