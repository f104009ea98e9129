"""Suites expand into the cases of their figures, each case once, and a user's options narrow every axis."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from bench import plan
from bench.cases import adapters_of, ordered_jobs, suite_cases, timing_of, with_keys
from bench.catalogue import OPTION_DEFAULTS
from bench.catalogue.suites import SUITES, Panel, find_suite, section
from bench.catalogue.systems import ADAPTERS
from bench.errors import UserError
from bench.memory import larger_than_memory, skip_reason, smaller_too_large
from bench.request import RunRequest
from harness.schema.case import Case
from harness.schema.record import Record
from harness.schema.run_file import Planned


def planned(suite, systems=None, device="cuda", **axes):
    return suite_cases(find_suite(suite), RunRequest(systems=systems, **axes), device)


def cases(suite, systems=None, device="cuda", **axes):
    return [each.case for each in planned(suite, systems, device, **axes)]


def adapter(label):
    return next(each for each in ADAPTERS if each.label == label)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"systems": ["ttt-linaer"]}, r"systems.0: .*ttt-linear.*not 'ttt-linaer'"),
        ({"sizes": ["2b"]}, r"sizes.0: .*1\.3b.*not '2b'"),
        ({"options": {"mini_bach": [1]}}, "options.mini_bach"),
        ({"batch": [1]}, "batch: Unexpected keyword argument"),
        ({"dtype": "float64"}, r"dtype: .*bfloat16.*not 'float64'"),
        ({"state_dtypes": ["planes"]}, r"state_dtypes.0: .*float32-planes.*not 'planes'"),
        ({"timing": "graf"}, r"timing: .*graph.*not 'graf'"),
    ],
)
def test_a_mistake_in_a_suite_is_one_sentence(changes, words):
    panel = {"phase": "forward", "systems": ["ttt-linear"], "batches": [1], "contexts": [64]}
    with pytest.raises(UserError, match=rf"^suites.toml: \[s\]: panels.0.{words}"):
        section({"name": "s", "question": "?", "panels": [panel | changes]})
    figure = {"phase": "forward", "title": "F"}
    for fields, other_words in (
        ({"figures": [figure | {"primary": ["ttt-linear"]}]}, "primary ttt-linear: unknown; did you mean ttt-linear/"),
        ({"figures": [figure | {"y": "speed"}]}, "catalogue: suite 's', figure 'F': unknown metric 'speed'"),
        ({"min_samples": 0, "budget_s": -1}, "min_samples: Input should be greater than 0, not 0"),
    ):
        with pytest.raises(UserError, match=rf"^suites.toml: \[s\]: {other_words}"):
            section({"name": "s", "question": "?", "panels": [panel], **fields})


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_each_case_is_unique_and_has_no_default_options(suite):
    narrowed, found = cases(suite.name, batch="1", context="64"), cases(suite.name)
    assert len({case.key for case in found}) == len(found) > 0
    assert len({case.key for case in narrowed}) == len(narrowed)
    assert not [name for case in found for name, value in case.options if OPTION_DEFAULTS.get(name) == value]


def test_every_axis_can_be_narrowed():
    found = cases("fig15-forward", "ttt-linear/torch", batch="3,1", context="100,50")
    axes = [(case.system, case.backend, case.batch, case.context) for case in found]
    assert axes == [("ttt-linear", "torch", batch, context) for context in (50, 100) for batch in (1, 3)]
    every = cases("fig20-throughput")
    for phases in ("forward", "generate", "generate,forward"):
        expected = [case for case in every if case.phase in phases.split(",")]
        assert cases("fig20-throughput", phase=phases) == expected


def test_systems_for_a_gpu_run_on_a_cpu_only_by_name():
    assert {each.label for each in adapters_of((), "cpu")} >= {"ttt-linear/torch", "mamba/torch"}
    assert "ttt-linear/triton-dual" not in {each.label for each in adapters_of((), "cpu")}
    assert [each.label for each in adapters_of(("mamba/vllm",), "cpu")] == ["mamba/vllm"]
    assert [each.label for each in adapters_of(("rwkv7",), "cpu")] == ["rwkv7/fla"]
    assert "mamba/torch" not in {each.label for each in adapters_of((), "cuda")}


def test_a_gpu_runs_bfloat16_and_a_cpu_float32_but_ttt_states_are_float32():
    assert {case.dtype for case in cases("fig15-generate")} == {"bfloat16"}
    assert {case.dtype for case in cases("quick", device="cpu")} == {"float32"}
    got = {(case.system[:3], case.state_dtype) for case in cases("fig15-generate", "ttt-mlp/torch,ttt-mlp,transformer")}
    assert got == {("ttt", "float32"), ("ttt", "float32-planes"), ("tra", "bfloat16")}
    assert {case.state_dtype for case in cases("prompt-then-128", "ttt-linear,ttt-mlp")} == {"float32-planes"}
    assert {case.dtype for case in cases("generate-fidelity") if "triton" in case.backend} == {"bfloat16", "float32"}


@pytest.mark.parametrize(
    ("label", "phase", "batch", "device", "timing"),
    [
        ("transformer/vllm", "forward", 1, "cuda", "engine"),
        ("transformer/torch", "forward", 4, "cuda", "graph"),  # 8,192 tokens
        ("transformer/torch", "forward", 8, "cuda", "eager"),
        ("rwkv7/fla", "forward", 4, "cuda", "graph"),
        ("ttt-linear/torch", "forward", 1, "cuda", "eager"),  # a graph would hold thousands of launches
        ("ttt-linear/torch", "generate", 1, "cuda", "graph"),
        ("transformer/torch", "generate", 1, "cpu", "eager"),
        ("transformer/torch", "request", 1, "cuda", "eager"),
    ],
)
def test_a_launch_bound_case_is_replayed_in_a_graph(label, phase, batch, device, timing):
    panel = Panel(phase, ("transformer",), (batch,), (2048,))
    assert timing_of(adapter(label), panel, batch, 2048, device) == timing
    for own in ("eager", "graph"):
        expected = own if device == "cuda" and timing != "engine" else timing
        assert timing_of(adapter(label), replace(panel, timing=own), batch, 2048, device) == expected


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
    monkeypatch.setattr(plan, "snapshot", lambda **_: {"device_kind": "cuda", "gpu": gpu, "device": "a GPU"})
    work = plan.plan(RunRequest(suites=("fig15",), device="cuda"))
    forward = {job.name for job in work.jobs if job.cases[0].case.phase == "forward" and job.system.startswith("ttt")}
    assert forward == {f"ttt-linear-{backend}", f"ttt-mlp-{backend}"}
    assert f"ttt-linear/{backend}" in work.catalogue.suites[0].figures[0].primary
    from bench.commands.tune import tune  # imports torch, which no other test here needs

    monkeypatch.setenv("TTT_BENCH_ARCH", "sm_90")
    for command in (tune, lambda: plan.plan(RunRequest(suites=("fig15",), device="cuda"))):
        with pytest.raises(UserError, match="TTT_BENCH_ARCH=sm_90 is unknown"):
            command()


def test_a_panel_sets_the_l2_cache_and_the_samples_and_excludes_adapters_of_another_scope():
    found = planned("kernel-forward", "ttt-linear")
    fewest = find_suite("kernel-forward").min_samples
    assert {(each.case.l2, each.min_samples) for each in found} == {("cold", fewest), ("warm", fewest)}
    assert "fla" not in {case.backend for case in cases("fig15-forward", "ttt-linear")}
    assert with_keys(ordered_jobs(found), ()) == []


def test_jobs_run_headlines_first_and_slow_references_last_on_a_gpu_only_where_named():
    names = [job.name for job in ordered_jobs(planned("fig15-forward", ",".join(each.label for each in ADAPTERS)))]
    assert names[:2] == ["ttt-linear-thunderkittens", "ttt-mlp-thunderkittens"]
    slow = ("ttt-linear", "ttt-mlp", "transformer", "transformer-gqa", "mamba")
    assert set(names[-5:]) == {f"{each}-torch" for each in slow}
    assert "torch" not in {case.backend for case in cases("fig15-forward") + cases("fig15-forward", "ttt-linear")}
    assert {case.backend for case in cases("fig15-forward", "ttt-linear/torch")} == {"torch"}


@pytest.mark.parametrize(
    ("suites", "systems", "backends"),
    [
        ("fig15", "ttt-linear", "thunderkittens triton-dual"),
        ("fig15", "ttt-linear,ttt-linear/vllm", "thunderkittens triton-dual vllm"),
        ("fig15", "transformer", "vllm"),  # not of transformer-gqa
        ("fig15", "mamba2", "mamba-ssm"),  # the group has no backend of it
        ("fig15-generate,fig15", "ttt-linear", "thunderkittens triton-dual triton-primal vllm"),
    ],
)
def test_in_a_group_a_system_without_a_backend_means_its_headline_backends(suites, systems, backends):
    work = plan.plan(RunRequest(suites=suites, systems=systems, device="cuda"))
    assert {job.backend for job in work.jobs} == set(backends.split())
    assert {job.system for job in work.jobs} == {each.partition("/")[0] for each in systems.split(",")}


def test_a_budget_is_the_largest_of_the_suites_and_rounds_share_it():
    quick = plan.plan(RunRequest(suites=("quick",), device="cuda", rounds=3))
    assert quick.policy.budget_s == pytest.approx(find_suite("quick").budget_s / 3)
    assert len(quick.keys) * 3 * 5 * quick.policy.budget_s <= 120  # two minutes, even if no case settles
    both = RunRequest(suites=("fig15-forward", "quick"), device="cuda", systems=("transformer/torch",))
    assert plan.plan(both).policy.budget_s == 1.0
    assert plan.plan(RunRequest(suites=("quick",), budget_s=700, rounds=2)).policy.budget_s == 350


def test_a_case_of_two_suites_is_planned_once_with_the_stricter_settings():
    shared = Case("ttt-linear", "torch", "125m", "forward", 16, 2048)
    (job,) = ordered_jobs([Planned(shared, 1, skip_after_oom=True), Planned(shared, 6, skip_after_oom=False)])
    assert job.cases == (Planned(shared, 6, skip_after_oom=False),)
    figures = [*planned("fig15-forward"), *planned("fig20-throughput")]
    keys = {each.case.key for each in figures}
    assert len(figures) > len(keys) == sum(len(job.cases) for job in ordered_jobs(figures))


def test_cases_of_one_model_stay_together():
    found = [each for batch in "13" for each in planned("generate-fidelity", "ttt-mlp/triton-dual", batch=batch)]
    (job,) = ordered_jobs(found)
    models = [(each.case.dtype, each.case.state_dtype) for each in job.cases]
    assert 1 + sum(now != before for before, now in pairwise(models)) == len(set(models))


def of_batch(systems, batch, phase="generate"):
    (found,) = [
        each for each in planned("fig20-throughput", systems) if (each.case.phase, each.case.batch) == (phase, batch)
    ]
    return found


def oom(each, status="oom"):
    return Record(each.case, status, "a reason")


@pytest.mark.parametrize(
    ("batch", "status", "earlier", "why"),
    [
        (16, "oom", 8, "batch 8 did not fit"),
        (4, "oom", 8, ""),
        (16, "failed", 8, ""),
        (16, "timeout", 8, "batch 8 exceeded the time limit"),
    ],
)
def test_larger_batches_are_skipped_after_one_that_did_not_fit(batch, status, earlier, why):
    system = "transformer/torch"
    assert smaller_too_large(of_batch(system, batch), [oom(of_batch(system, earlier), status)]) == why
    assert smaller_too_large(of_batch(system, batch, "forward"), [oom(of_batch(system, earlier), status)]) == ""
    unskipped = replace(of_batch(system, batch), skip_after_oom=False)
    assert smaller_too_large(unskipped, [oom(of_batch(system, earlier))]) == ""


def test_a_smaller_batch_with_another_timing_is_the_same_work():
    small, large = (of_batch("transformer/torch", batch, "forward") for batch in (1, 256))
    assert (small.case.timing, large.case.timing) == ("graph", "eager")
    assert smaller_too_large(large, [oom(small)]) == "batch 1 did not fit"
    assert smaller_too_large(small, [oom(small)]) == ""


def test_longer_contexts_are_skipped_after_one_that_did_not_fit():
    found = planned("long-context", "transformer/vllm")
    assert smaller_too_large(found[6], [oom(found[7]), oom(found[5])]) == "context 262144 did not fit"
    assert smaller_too_large(found[4], [oom(found[5])]) == ""
    other = replace(found[5].case, batch=2)
    assert smaller_too_large(found[6], [Record(other, "oom", "out of memory")]) == ""


def test_larger_batches_are_skipped_after_one_that_an_engine_could_not_hold_at_once():
    of_64, of_128 = (of_batch("transformer/vllm", batch) for batch in (64, 128))
    some = Record(of_64.case, "ok", samples_ms=[1.0], throttled=[False], metrics={"sequences_at_once": 40})
    assert smaller_too_large(of_128, [some]) == "only 40 sequences of batch 64 fit in the KV cache at once"
    assert smaller_too_large(of_128, [replace(some, metrics={"sequences_at_once": 64})]) == ""
    longer = replace(of_64, case=replace(of_64.case, context=4096))
    assert smaller_too_large(longer, [some]) == ""


@pytest.mark.parametrize(
    ("label", "changes", "runs"),
    [
        ("ttt-linear/triton-dual", {}, True),
        ("ttt-mlp/torch", {}, True),
        ("transformer/torch", {}, False),
        ("mamba/torch", {}, False),
        ("rwkv7/fla", {}, False),
        ("ttt-linear/vllm", {"timing": "engine"}, False),
        ("ttt-linear/triton", {"phase": "request"}, False),
        ("ttt-linear/triton-dual", {"options": (("positions", "staggered"), ("scope", "layer"))}, False),
        ("transformer/torch", {"options": (("positions", "common"),)}, True),
    ],
)
def test_a_case_that_would_ignore_staggered_positions_is_skipped(label, changes, runs):
    system, _, backend = label.partition("/")
    case = replace(Case(system, backend, "1.3b", "generate", 8, 64, options=(("positions", "staggered"),)), **changes)
    why = f"{label} ignores positions=staggered; generate steps of whole TTT models outside vLLM do not"
    assert skip_reason(Planned(case), [], None) == ("" if runs else why)


def test_the_smallest_case_beyond_memory_is_tried_once():
    smaller, first, second = (of_batch("ttt-mlp/triton-dual", batch) for batch in (512, 1024, 2048))
    assert skip_reason(first, [oom(smaller, "failed"), oom(second, "skipped")], int(85.5e9)) == ""
    assert skip_reason(second, [oom(first)], int(85.5e9)) == "batch 1024 did not fit"
    assert skip_reason(replace(first, skip_after_oom=False), [], int(85.5e9)).startswith("needs at least 123 GB")


def test_no_case_is_tried_beyond_one_that_was_skipped_for_its_size():
    smaller, larger = (of_batch("transformer/torch", batch) for batch in (512, 1024))
    known = Record(smaller.case, "skipped", "needs at least 209 GB")
    assert skip_reason(larger, [known, oom(larger, "failed")], int(150e9)).startswith("needs at least 415 GB")
    assert skip_reason(larger, [known], int(600e9)) == ""


def test_the_least_memory_is_known_of_whole_models_alone():
    case = of_batch("transformer/vllm", 512).case
    assert larger_than_memory(case, 1).startswith("needs at least 2.96 GB")  # the weights and one sequence
    assert larger_than_memory(replace(case, options=(("scope", "layer"),)), 1) == ""
    assert larger_than_memory(replace(case, system="rwkv7"), 1) == ""


@pytest.mark.parametrize(
    ("suite", "label", "batch", "context", "gigabytes"),
    [
        ("fig15-generate", "transformer/torch", 512, 1024, 106),
        ("fig15-forward", "transformer/torch", 16, 32768, 106),
        ("fig15-generate", "ttt-mlp/triton-primal", 512, 2048, 107),
        ("fig15-generate", "ttt-mlp/triton-dual", 512, 2048, 0),
        ("fig15-generate", "transformer/vllm", 512, 32768, 0),  # as many sequences at once as fit
    ],
)
def test_a_model_whose_sequences_cannot_fit_is_skipped_except_in_an_engine(suite, label, batch, context, gigabytes):
    (case,) = cases(suite, label, batch=str(batch), context=str(context))
    why = f"needs at least {gigabytes} GB and this machine has 85.5 GB" if gigabytes else ""
    assert larger_than_memory(case, int(85.5e9)) == why


@pytest.mark.parametrize(("given", "published"), [("/else/out/a", "a"), ("out/a", "out/a")])
def test_a_published_request_has_no_absolute_path(given, published):
    assert RunRequest(out=Path(given)).published().out == Path(published)
