"""The plan holds the figures' cases, each once, in jobs in their order, and every axis can be narrowed."""

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest

from bench import estimate, plan
from bench.catalogue.metrics import AXES
from bench.catalogue.suites import (
    GROUPS,
    LANGUAGE_MODELS,
    SUITES,
    TTT,
    Panel,
    Suite,
    default_suite,
    find_group,
    find_suite,
)
from bench.catalogue.systems import ADAPTERS, HEADLINES
from bench.errors import UserError
from bench.memory import beyond_memory_of, least_bytes, refuse_beyond_memory
from bench.plan import beyond_memory, jobs_of, skip_reason, suite_cases, timing_of
from bench.request import RunRequest
from bench.selection import Selection, select
from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.record import Record
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned, RunFile

EVERYTHING = Selection(ADAPTERS)
GPU_80GB = {"gpu": {"memory_bytes": 80e9}}


def cases(suite, selection, device):
    return [planned.case for planned in suite_cases(suite, selection, device)]


def planned(suite, systems=None):
    selection = select(RunRequest(systems=systems), "cuda") if systems else EVERYTHING
    return suite_cases(find_suite(suite), selection, "cuda")


def adapter(label):
    return next(each for each in ADAPTERS if each.label == label)


def test_quick_has_five_contexts_and_several_batches_of_each_language_model():
    every = cases(find_suite("quick"), select(RunRequest(), "cpu"), "cpu")
    found = [case for case in every if case.system in LANGUAGE_MODELS]
    assert len(found) == 40
    for system in LANGUAGE_MODELS:
        forward = {case.context for case in found if case.system == system and case.phase == "forward"}
        batches = {case.batch for case in found if case.system == system and case.phase == "generate"}
        assert len(forward) >= 5
        assert len(batches) >= 3


@pytest.mark.parametrize(
    ("name", "phase", "batches", "contexts"),
    [
        ("fig15-forward", "forward", {16}, {2048, 4096, 8192, 16384, 32768}),
        ("fig15-generate", "generate", {512}, {512, 1024, 2048, 4096, 8192, 16384, 32768}),
        ("prompt-then-128", "request", {1, 16}, {2048, 4096, 8192, 16384, 32768}),
        ("long-context", "forward", {1}, {8192 << doubled for doubled in range(8)}),
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
    pairs = {(case.option("mini_batch", 16), case.option("part")) for case in found}
    assert pairs == {(2**i, part) for i in range(12) for part in ("w", "z")}
    assert {case.system for case in found} == {"ttt-linear"}


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_every_case_is_there_once(suite):
    found = cases(suite, EVERYTHING, "cuda")
    assert found
    assert len({case.key for case in found}) == len(found)


def test_any_axis_can_be_narrowed():
    narrow = Selection((adapter("ttt-linear/torch"),), batches=(3,), contexts=(100, 50))
    found = cases(find_suite("fig15-forward"), narrow, "cuda")
    assert [(c.system, c.size, c.batch, c.context) for c in found] == [
        ("ttt-linear", "1.3b", 3, 50),
        ("ttt-linear", "1.3b", 3, 100),
    ]


def test_one_phase_of_a_suite_can_be_asked_for():
    every = cases(find_suite("fig20-throughput"), select(RunRequest(), "cuda"), "cuda")
    for phases in ("forward", "generate", "generate,forward"):
        found = cases(find_suite("fig20-throughput"), select(RunRequest(phase=phases), "cuda"), "cuda")
        assert found == [case for case in every if case.phase in phases.split(",")]


def test_a_kernel_is_measured_in_its_own_phase():
    for suite, phase in (("fig15-forward", "thunderkittens"), ("fig15-generate", "triton-dual")):
        found = {case.backend for case in cases(find_suite(suite), EVERYTHING, "cuda") if case.system == "ttt-mlp"}
        assert found & {"thunderkittens", "triton-dual"} == {phase}


def test_on_a_cpu_systems_of_a_gpu_are_left_out_unless_named():
    assert {each.backend for each in select(RunRequest(), "cpu").adapters} == {"torch"}
    assert [each.label for each in select(RunRequest(systems="mamba/vllm"), "cpu").adapters] == ["mamba/vllm"]
    assert "mamba/torch" not in {each.label for each in select(RunRequest(), "cuda").adapters}


def test_a_gpu_generates_in_a_graph_in_bfloat16_and_a_cpu_in_float32():
    on_gpu = cases(find_suite("quick"), EVERYTHING, "cuda")
    on_cpu = cases(find_suite("quick"), select(RunRequest(), "cpu"), "cpu")
    generate = {(c.timing, c.dtype) for c in on_gpu if c.phase == "generate" and c.backend != "vllm"}
    assert generate == {("graph", "bfloat16")}
    assert {(c.timing, c.dtype) for c in on_cpu} == {("eager", "float32")}


def test_the_state_of_ttt_stays_float32():
    found = cases(find_suite("fig15-generate"), EVERYTHING, "cuda")
    assert {c.state_dtype for c in found if c.system.startswith("ttt")} == {"float32", "float32-planes"}
    assert {c.state_dtype for c in found if c.system == "transformer"} == {"bfloat16"}


def test_without_a_name_a_gpu_runs_the_paper_and_a_cpu_quick():
    assert default_suite("cpu") == "quick"
    assert default_suite("cuda") == "paper"
    assert find_group("paper").suites == ("fig15-forward", "fig15-generate", "fig20-throughput")
    assert set(find_group("all").suites) == {suite.name for suite in SUITES} - {"quick", "peers", "vllm-settings"}


def test_what_is_published_has_six_samples_at_least():
    assert {find_suite(name).min_samples for name in find_group("all").suites} == {6}
    assert {each.min_samples for each in planned("fig15-forward")} == {6}


def test_groups_name_suites_and_systems_that_exist():
    for group in GROUPS:
        assert all(find_suite(name) for name in group.suites)
        assert set(group.systems) <= {each.label for each in ADAPTERS}


def test_the_headlines_are_the_papers_four_and_a_transformer_with_gqa_on_their_best_backends():
    assert set(HEADLINES) == {
        "ttt-linear/thunderkittens",
        "ttt-linear/triton-dual",
        "ttt-mlp/thunderkittens",
        "ttt-mlp/triton-dual",
        "transformer/vllm",
        "transformer-gqa/vllm",
        "mamba/mamba-ssm",
    }


@pytest.mark.parametrize(
    ("gpu", "arch", "backend"),
    [
        (None, "", "thunderkittens"),  # a plan for another machine
        ({"compute_capability": "9.0"}, "", "thunderkittens"),
        ({"compute_capability": "9.0"}, "portable", "triton"),
        ({"compute_capability": "8.0"}, "", "triton"),
        ({"compute_capability": "10.0"}, "", "triton"),
    ],
)
def test_a_gpu_other_than_hopper_runs_the_forward_kernels_in_triton(monkeypatch, gpu, arch, backend):
    monkeypatch.setenv("TTT_BENCH_ARCH", arch)
    monkeypatch.setattr(plan, "snapshot", lambda *_: {"device_kind": "cuda", "gpu": gpu, "device": "a GPU"})
    work = plan.plan(RunRequest(suites=("fig15",), device="cuda"))
    forward = {job.name for job in work.jobs if job.cases[0].case.phase == "forward" and job.system.startswith("ttt")}
    assert forward == {f"ttt-linear-{backend}", f"ttt-mlp-{backend}"}
    assert f"ttt-linear/{backend}" in work.catalogue.suites[0].figures[0].primary


def test_jobs_run_headlines_first_and_slow_references_last():
    selection = select(RunRequest(), "cuda")
    names = [job.name for job in jobs_of(suite_cases(find_suite("fig15-forward"), selection, "cuda"))]
    assert names[:2] == ["ttt-linear-thunderkittens", "ttt-mlp-thunderkittens"]
    assert set(names[-4:]) == {f"{each}-torch" for each in (*TTT, "transformer", "transformer-gqa")}


def test_a_case_of_two_suites_is_planned_once_with_the_stricter_of_their_wishes():
    shared = Case("ttt-linear", "torch", "125m", "forward", 16, 2048)
    (job,) = jobs_of([Planned(shared, 1, grows=True), Planned(shared, 6, grows=False)])
    assert job.cases == (Planned(shared, 6, grows=False),)


def test_figures_15_and_20_share_their_common_case():
    figures = [*planned("fig15-forward"), *planned("fig20-throughput")]
    keys = [each.case.key for each in figures]
    jobs = jobs_of(figures)
    assert len(set(keys)) < len(keys)
    assert sum(len(job.cases) for job in jobs) == len(set(keys))


def test_an_engine_runs_one_phase_after_the_other():
    (job,) = jobs_of([*planned("fig15-forward", "transformer/vllm"), *planned("fig20-throughput", "transformer/vllm")])
    phases = [each.case.phase for each in job.cases]
    assert sum(now != before for now, before in pairwise(phases)) == 1


def test_cases_of_one_model_stay_together():
    (job,) = jobs_of(planned("generate-fidelity", "ttt-mlp/triton-dual"))
    models = [(each.case.dtype, each.case.state_dtype) for each in job.cases]
    assert len([m for m, before in zip(models, [None, *models], strict=False) if m != before]) == len(set(models))


@pytest.mark.parametrize(
    ("label", "phase", "batch", "device", "timing"),
    [
        ("transformer/vllm", "forward", 1, "cuda", "engine"),
        ("transformer/torch", "forward", 4, "cuda", "graph"),  # 8,192 tokens
        ("transformer/torch", "forward", 8, "cuda", "eager"),
        ("rwkv7/fla", "forward", 4, "cuda", "graph"),
        ("ttt-linear/torch", "forward", 1, "cuda", "eager"),  # thousands of launches: nothing a graph should hold
        ("ttt-linear/torch", "generate", 1, "cuda", "graph"),
        ("transformer/torch", "generate", 1, "cpu", "eager"),
        ("transformer/torch", "request", 1, "cuda", "eager"),
    ],
)
def test_a_prefill_that_is_shorter_than_its_launches_is_replayed(label, phase, batch, device, timing):
    panel = Panel(phase, ("transformer",), ("1.3b",), (batch,), (2048,))
    assert timing_of(adapter(label), panel, batch, 2048, device) == timing


def test_options_at_their_default_are_not_in_a_case():
    suite = Suite("s", "", (Panel("request", ("transformer",), ("tiny",), (1,), (64,), {"steps": (128, 64)}),))
    found = cases(suite, Selection((adapter("transformer/torch"),)), "cpu")
    assert [case.options for case in found] == [(), (("steps", 64),)]
    defaults = {axis.name: axis.default for axis in AXES if axis.default is not None}
    for each in SUITES:
        for case in cases(each, EVERYTHING, "cuda"):
            assert not [name for name, value in case.options if defaults.get(name) == value]


def test_after_a_batch_that_did_not_fit_larger_ones_are_skipped():
    throughput = planned("fig20-throughput", "transformer/torch")
    generate = [each for each in throughput if each.case.phase == "generate"]
    failed = Record(generate[3].case, "oom", "out of memory")
    assert beyond_memory(generate[4], [failed]) == "batch 8 did not fit"
    assert beyond_memory(generate[2], [failed]) == ""
    other = Record(generate[3].case, "failed", "a bug")
    assert beyond_memory(generate[4], [other]) == ""
    forward = [each for each in throughput if each.case.phase == "forward"]
    assert beyond_memory(forward[4], [failed]) == ""


def test_after_a_batch_of_which_only_some_fitted_larger_ones_are_skipped_and_longer_contexts_are_not():
    """A larger batch would be the same sequences again; of a longer context, fewer are another measurement."""
    throughput = planned("fig20-throughput", "transformer/vllm")
    of_64, of_128 = (
        next(each for each in throughput if (each.case.phase, each.case.batch) == ("generate", batch))
        for batch in (64, 128)
    )
    some = Record(of_64.case, "ok", samples_ms=[1.0], throttled=[False], metrics={"sequences_at_once": 40})
    every = replace(some, metrics={"sequences_at_once": 64})
    assert beyond_memory(of_128, [some]) == "of batch 64 only 40 sequences fitted at once, and were measured"
    assert beyond_memory(of_128, [every]) == ""
    longer = replace(of_64, case=replace(of_64.case, context=2 * of_64.case.context))
    assert beyond_memory(longer, [some]) == ""
    assert beyond_memory(longer, [replace(some, status="oom", samples_ms=[], throttled=[], reason="no")]) == (
        f"context {of_64.case.context} did not fit"
    )


def test_after_a_context_that_did_not_fit_or_took_too_long_longer_ones_are_skipped():
    found = planned("long-context", "transformer/flash-attn")
    assert [each.case.context for each in found] == [8192 << doubled for doubled in range(8)]
    assert beyond_memory(found[6], [Record(found[5].case, "oom", "out of memory")]) == "context 262144 did not fit"
    slow = Record(found[5].case, "timeout", "600 s")
    assert beyond_memory(found[7], [slow]) == "context 262144 took longer than a case may"
    assert beyond_memory(found[4], [slow]) == ""
    other = replace(found[5].case, batch=2)
    assert beyond_memory(found[6], [Record(other, "oom", "out of memory")]) == ""


def test_a_request_runs_on_each_systems_best_backend_and_ours_on_two_planes():
    found = cases(find_suite("prompt-then-128"), EVERYTHING, "cuda")
    best = {label for label in HEADLINES if "triton" not in label}
    assert {case.system_backend for case in found} == best | {"mamba/vllm"}
    assert {case.state_dtype for case in found if case.system.startswith("ttt")} == {"float32-planes"}


@pytest.mark.parametrize(
    ("suite", "option", "values"),
    [("mini-batch", "mini_batch", {16, 32}), ("backbone", "backbone", {"mamba", "transformer"})],
)
def test_an_option_of_the_layer_has_a_suite(suite, option, values):
    default = {axis.name: axis.default for axis in AXES}[option]
    own = cases(find_suite(suite), EVERYTHING, "cuda")
    assert {(case.phase, case.option(option, default)) for case in own} == set(product(("forward", "generate"), values))


def test_a_smaller_batch_that_was_replayed_is_the_same_work():
    forward = [each for each in planned("fig20-throughput", "transformer/torch") if each.case.phase == "forward"]
    assert {each.case.timing for each in forward} == {"graph", "eager"}
    failed = Record(forward[0].case, "oom", "out of memory")
    assert beyond_memory(forward[-1], [failed]) == "batch 1 did not fit"


def test_after_a_batch_that_an_engine_could_not_hold_at_once_larger_ones_are_skipped():
    generate = [each for each in planned("fig20-throughput", "transformer/vllm") if each.case.phase == "generate"]
    part = Record(
        generate[3].case, "ok", samples_ms=[1.0], throttled=[False], stop="count", metrics={"sequences_at_once": 5}
    )
    assert beyond_memory(generate[4], [part]) == "of batch 8 only 5 sequences fitted at once, and were measured"
    assert beyond_memory(generate[4], [replace(part, metrics={"sequences_at_once": 8})]) == ""
    assert beyond_memory(generate[2], [part]) == ""


def test_a_trial_of_settings_is_run_when_it_is_named_and_starts_each_engine_once():
    jobs = {job.name: [each.case for each in job.cases] for job in jobs_of(planned("vllm-settings"))}
    starts = {}
    for name, found in jobs.items():
        engines = [case.options for case in found]
        started = [now for now, before in zip(engines, [None, *engines], strict=False) if now != before]
        assert len(started) == len(set(started))
        starts[name] = len(started)
    assert starts == {"transformer-vllm": 14, "transformer-gqa-vllm": 3, "mamba-vllm": 2}
    generate = [case for case in jobs["transformer-vllm"] if case.phase == "generate"]
    assert {case.option("graphs") for case in generate} == {"engine", "doubling"}
    assert {case.option("attention") for case in generate} == {None, "FLASH_ATTN-2", "TRITON_ATTN", "FLASHINFER"}
    assert all("vllm-settings" not in group.suites for group in GROUPS)


def test_a_figure_that_does_not_grow_tries_every_case():
    first, *_, last = planned("fig15-forward", "transformer/torch")
    assert beyond_memory(last, [Record(first.case, "oom", "out of memory")]) == ""


def test_a_sequence_of_32k_needs_a_cache_of_6_gb():
    case = next(
        c
        for c in cases(find_suite("fig15-forward"), EVERYTHING, "cuda")
        if c.system == "transformer" and c.context == 32768
    )
    cache = least_bytes(case) - least_bytes(replace(case, context=1))
    assert cache == pytest.approx(32767 * (196_608 + 16 * 8))


def test_what_no_system_can_hold_is_refused_with_its_size():
    asked = cases(find_suite("quick"), Selection(ADAPTERS, contexts=(10**13,)), "cpu")
    with pytest.raises(
        UserError,
        match=r"forward with --batch 2 --context 10000000000000: needs at least [0-9,]+ TB and this machine has 80 GB",
    ):
        refuse_beyond_memory(asked, GPU_80GB)


@pytest.mark.parametrize(("device", "dtypes"), [("cuda", {"bfloat16", "float32"}), ("cpu", {"float32"})])
def test_drift_is_shown_in_float32_whatever_the_device(device, dtypes):
    found = [case for case in cases(find_suite("generate-fidelity"), EVERYTHING, device) if "triton" in case.backend]
    assert {case.dtype for case in found} == dtypes


def test_a_step_reads_one_token_id_of_each_sequence():
    generate = next(c for c in cases(find_suite("fig20-throughput"), EVERYTHING, "cuda") if c.phase == "generate")
    assert least_bytes(replace(generate, batch=9)) - least_bytes(replace(generate, batch=1)) == 8 * 8


def test_what_some_chosen_systems_cannot_hold_is_tried_for_the_others():
    """A cache of 131,072 tokens is 26 GB, and a state of TTT is as large as ever."""
    selection = select(RunRequest(systems="transformer/torch,ttt-linear/torch", batch="1", context="131072"), "cuda")
    asked = [case for case in cases(find_suite("fig15-forward"), selection, "cuda") if case.context == 131072]
    assert {case.system for case in asked} == {"transformer", "ttt-linear"}
    assert {case.system for case in asked if least_bytes(case) > 20e9} == {"transformer"}
    refuse_beyond_memory(asked, {"gpu": {"memory_bytes": 20e9}})
    refuse_beyond_memory(asked, {"gpu": {"memory_bytes": None}})  # which some GPUs do not tell


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
    reason = beyond_memory_of(largest, int(80e9))
    assert reason == "needs at least 139 GB and this machine has 80 GB"
    tokens = 64 * 131072 * 2048
    assert least_bytes(largest) == 4 * tokens * 2 + 4 * tokens // 64 + 2 * 4 * 64 * 32 * 65 * 64
    assert beyond_memory_of(replace(largest, context=32768), int(80e9)) == ""


def test_a_step_of_a_layer_holds_the_state_of_every_sequence():
    found = cases(find_suite("kernel-generate"), EVERYTHING, "cuda")
    sizes = {c.state_dtype: least_bytes(c) for c in found if (c.system, c.batch) == ("ttt-linear", 512)}
    assert sizes["float32-planes"] == sizes["float32"] == 2 * sizes["bfloat16"] == 4 * 512 * 32 * 65 * 64


def test_a_model_that_grows_until_memory_ends_is_tried_once_beyond_it():
    plan = planned("fig20-throughput", "ttt-mlp/triton-dual")
    [first, second] = [each for each in plan if each.case.phase == "generate" and each.case.batch in (1024, 2048)]
    assert first.grows
    assert skip_reason(first, [], int(85.5e9)) == ""
    assert skip_reason(second, [Record(first.case, "oom", "out of memory")], int(85.5e9)) == "batch 1024 did not fit"
    assert skip_reason(replace(first, grows=False), [], int(85.5e9)).startswith("needs at least 123 GB")


def test_a_model_that_grows_is_not_tried_beyond_one_that_was_known_not_to_fit():
    """A smaller one of another suite too, which is skipped by its size and not tried."""
    plan = planned("fig20-throughput", "transformer/torch")
    [smaller, larger] = [each for each in plan if each.case.phase == "generate" and each.case.batch in (512, 1024)]
    known = Record(smaller.case, "skipped", skip_reason(replace(smaller, grows=False), [], int(150e9)))
    assert known.reason.startswith("needs at least 209 GB")
    assert skip_reason(larger, [known], int(150e9)).startswith("needs at least 415 GB")
    assert skip_reason(larger, [Record(smaller.case, "skipped", "no GPU")], int(600e9)) == ""


@pytest.mark.parametrize(
    ("suite", "label", "batch", "context", "gigabytes"),
    [
        ("fig15-generate", "transformer/torch", 512, 1024, 106),
        ("fig15-forward", "transformer/flash-attn", 16, 32768, 106),
        ("fig20-throughput", "ttt-mlp/triton-primal", 512, 2048, 107),
        ("fig20-throughput", "ttt-mlp/triton-dual", 512, 2048, 0),
        ("fig15-generate", "transformer/vllm", 512, 32768, 0),  # as many sequences at once as fit
    ],
)
def test_a_model_whose_sequences_cannot_fit_is_skipped_but_of_an_engine(suite, label, batch, context, gigabytes):
    found = cases(find_suite(suite), EVERYTHING, "cuda")
    [case] = [
        c
        for c in found
        if (f"{c.system}/{c.backend}", c.batch, c.context) == (label, batch, context)
        and (c.phase == "generate" or suite == "fig15-forward")
    ]
    said = f"needs at least {gigabytes} GB and this machine has 85.5 GB" if gigabytes else ""
    assert beyond_memory_of(case, int(85.5e9)) == said


def test_the_time_of_a_job_follows_from_the_cases_that_earlier_runs_timed():
    first, second, other = (
        Planned(Case("a", "b", "tiny", phase, batch, 8))
        for phase, batch in (("forward", 1), ("forward", 2), ("generate", 1))
    )
    job = Job("a", "b", (first, second, other))
    assert estimate.job_time(job, {}) == estimate.JobTime(0, guessed=0, untimed=3)
    assert estimate.job_time(job, {first.case.key: 10.0}) == estimate.JobTime(20.0, guessed=1, untimed=1)
    whole = estimate.job_time(job, {first.case.key: 10.0, other.case.key: 1.0})
    assert whole == estimate.JobTime(21.0, guessed=1)  # another phase's case says nothing of this one
    assert estimate.in_words(None) == "not known"
    assert [estimate.in_words(seconds) for seconds in (40, 600, 7200)] == ["40 s", "10 min", "2.0 h"]


def test_a_case_takes_what_it_took_on_this_gpu_or_else_on_another(tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "RESULTS", tmp_path / "none")
    both, elsewhere = (Planned(Case("a", "b", "tiny", "forward", batch, 8)) for batch in (1, 2))
    for name, kind, seconds in (("H100", "cuda", 3.0), ("H200", "cuda", 2.0), ("some CPU", "cpu", 90.0)):
        cases = (both,) if name == "H200" else (both, elsewhere)
        file = RunFile("measure", "cpu", (Job("a", "b", cases),), Catalogue())
        run = Run.create(tmp_path / "runs" / name, file)
        environment = {"device": name, "device_kind": kind}
        with run.held():
            records = run.record_file(run.jobs[0])
            for each in cases:
                records.append(Record(each.case, "timeout", "no answer", environment=environment, wall_s=seconds))
    profiled = Run.create(tmp_path / "runs/p", RunFile("profile", "cpu", (Job("a", "b", (both,)),), Catalogue()))
    with profiled.held():
        records = profiled.record_file(profiled.jobs[0])
        environment = {"device": "H200", "device_kind": "cuda"}
        records.append(Record(both.case, "timeout", "no answer", environment=environment, wall_s=500.0))
    out = tmp_path / "runs" / "next"
    here = {"device": "H200", "device_kind": "cuda"}
    assert estimate.past_durations(here, out) == {both.case.key: 2.0, elsewhere.case.key: 3.0}
    assert estimate.past_durations(here, tmp_path / "runs") == estimate.past_durations(here, out)  # --out as it is
    assert estimate.past_durations(None, out) == {both.case.key: 2.5, elsewhere.case.key: 3.0}
    assert estimate.past_durations(here, tmp_path / "mine" / "next") == {}


def test_published_runs_are_read_once_and_those_beside_a_run_at_each_plan(tmp_path, monkeypatch):
    case, read = Case("a", "b", "tiny", "forward", 1, 8), []
    runs = {}
    for place in ("published", "mine"):
        file = RunFile("measure", "cuda", (Job("a", "b", (Planned(case),)),), Catalogue())
        runs[place] = Run.create(tmp_path / place / "run", file)
    monkeypatch.setattr(estimate, "RESULTS", (tmp_path / "published").resolve())
    opened = Run.open
    monkeypatch.setattr(Run, "open", lambda folder: read.append(folder.parent.name) or opened(folder))
    monkeypatch.chdir(tmp_path)
    here = {"device": "H200", "device_kind": "cuda"}
    for seconds in (2.0, 4.0):
        with runs["mine"].held():
            records = runs["mine"].record_file(runs["mine"].jobs[0])
            records.append(Record(case, "timeout", "no answer", environment=here, wall_s=seconds, repeat=0))
        assert estimate.past_durations(here, Path("mine/next")) == {case.key: seconds}
    assert read == ["mine", "published", "mine"]
    read.clear()
    estimate.past_durations(here, Path("published/run"))  # which is one of its own now
    assert read == ["published"]


def test_what_was_skipped_or_failed_says_nothing_of_how_long_a_case_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "RESULTS", tmp_path / "none")
    case = Case("a", "b", "tiny", "forward", 1, 8)
    for name, status, seconds in (
        ("1", "oom", 30.0),
        ("2", "skipped", 0.1),
        ("3", "failed", 0.2),
        ("4", "incorrect", 50.0),
    ):
        file = RunFile("measure", "cpu", (Job("a", "b", (Planned(case),)),), Catalogue())
        run = Run.create(tmp_path / "runs" / name, file)
        environment = {"device": "H100", "device_kind": "cuda"}
        with run.held():
            records = run.record_file(run.jobs[0])
            records.append(Record(case, status, "why", environment=environment, wall_s=seconds))
    here = {"device": "H100", "device_kind": "cuda"}
    assert estimate.past_durations(here, tmp_path / "runs" / "next") == {case.key: 40.0}
    (tmp_path / "runs" / "2" / "run.json").write_text("{")  # another program's
    assert estimate.past_durations(here, tmp_path / "runs" / "next") == {case.key: 40.0}
