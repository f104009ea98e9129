"""Suites become figures with the right points, lines, names, remarks and axes."""

from dataclasses import replace

import pytest
import synthetic_records as synthetic

from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from reports.page.figures import figures
from reports.page.lines import system_looks
from reports.stats import frame

PAPER = synthetic.paper()
TABLE = PAPER.table
FIGURES = {figure.id: figure for figure in synthetic.paper_figures()}


def case(**fields):
    values = {
        "system": "ttt-linear",
        "backend": "torch",
        "size": "d64",
        "phase": "forward",
        "batch": 4,
        "context": 1024,
    } | fields
    return Case(**values)


def details(figure):
    return "; ".join([figure.caption, *(f"{each[0].lower()}{each[1:].rstrip('.')}" for each in figure.remarks)])


def drawn(*records, suite="some-layers"):
    made = synthetic.of_suite(suite, *records)
    return made.table, figures(made.table, made.catalogue)


def test_remarks_mention_only_intervals_that_exist():
    times, between, whole = (details(FIGURES[f"prompt-then-128-request-16{part}"]) for part in ("", "-2", "-3"))
    assert "samples, with 95% intervals within one process" in times
    assert "samples, with 95% intervals within one process" in whole
    assert "samples" in between
    assert "interval" not in between
    steps = case(phase="generate", options={"positions": "staggered"})
    _, [p99] = drawn(synthetic.ok(steps, 1.0, metrics={"itl_p99_ms": 2.0}), suite="staggered")
    assert "sample" not in details(p99)  # a percentile of single steps


def test_every_row_is_in_a_line_in_order_of_x():
    seen = [
        (figure.suite, row)
        for figure in FIGURES.values()
        if not figure.id.endswith("ratio")
        for line in figure.lines
        if not line.y
        for row in line.rows
    ]
    expected = [(suite, row) for row, suites in TABLE["suites"].items() for suite in suites]
    assert sorted(set(seen)) == sorted(pair for pair in expected if pair[0] != "generate-fidelity")
    for figure in FIGURES.values():
        for line in figure.lines:
            assert TABLE.loc[line.rows, figure.x].is_monotonic_increasing


def test_a_system_has_one_look_in_all_figures():
    several = [figure for figure in FIGURES.values() if not figure.suite.startswith("kernel")]
    looks = {(line.system, line.tone, line.marker) for figure in several for line in figure.lines}
    assert len(looks) == len({system for system, _, _ in looks}) == 4
    assert len({tone for _, tone, _ in looks}) == len({marker for _, _, marker in looks}) == 4


def test_lines_of_one_system_differ_in_dash_or_fill():
    for figure in FIGURES.values():
        looks = [(line.system, line.tone, line.dash, line.hollow) for line in figure.lines if not line.y]
        assert len(set(looks)) == len(looks)


@pytest.mark.parametrize(
    ("system", "backends"),
    [("mamba", ["mamba-ssm", "vllm"]), ("transformer", ["vllm", "flash-attn", "torch", "sdpa-cudnn", "sdpa-flash"])],
)
def test_backends_with_one_dash_differ_in_fill(system, backends):
    cases = [case(system=system, backend=backend, context=at) for backend in backends for at in (2048, 8192)]
    _, (figure,) = drawn(*(synthetic.ok(each, 1.0) for each in cases), suite="fig15-forward")
    assert len({(line.dash, line.hollow) for line in figure.lines}) == len(figure.lines) == len(backends)
    assert (figure.lines[0].dash, figure.lines[0].hollow) == ("solid", False)
    assert backends[0] in figure.lines[0].name.lower()


def test_backbones_have_the_papers_names():
    cases = [case(context=at, options=options) for at in (64, 128) for options in ((), (("backbone", "transformer"),))]
    _, (figure,) = drawn(*(synthetic.ok(each, 1.0) for each in cases), suite="fig15-forward")
    assert sorted(line.name for line in figure.lines) == [
        "TTT-Linear · PyTorch · backbone (M)",
        "TTT-Linear · PyTorch · backbone (T)",
    ]


def test_the_caption_has_the_shared_settings():
    figure = FIGURES["fig15-generate"]
    assert figure.caption == "batch 512, 1.3b, bfloat16"
    assert figure.remarks[0] == "Timed in CUDA graphs."
    assert all(remark[0].isupper() and remark.endswith(".") for remark in figure.remarks)


def test_remarks_name_the_state_precision_of_systems():
    planes, narrow = (
        replace(Case(system, backend, "1.3b", "generate", 512, 2048), state_dtype=state)
        for system, backend, state in (
            ("ttt-linear", "triton-dual", "float32-planes"),
            ("mamba", "mamba-ssm", "bfloat16"),
        )
    )
    made = synthetic.of_suite("fig15-generate", synthetic.ok(planes, 4.0), synthetic.ok(narrow, 8.0))
    (figure,) = figures(made.table, made.catalogue)
    assert "state precision: float32-planes (TTT-Linear), bfloat16 (Mamba)" in details(figure)
    whole = synthetic.ok(replace(planes, backend="torch", state_dtype="float32"), 9.0)
    of_both = synthetic.of_suite("fig15-generate", synthetic.ok(planes, 4.0), whole, synthetic.ok(narrow, 8.0))
    (figure,) = figures(of_both.table, of_both.catalogue)
    assert "state precision: bfloat16 (Mamba)" in details(figure)  # the lines' names have the other systems' precision
    alike = synthetic.of_suite("fig15-generate", synthetic.ok(planes, 4.0))
    assert "state precision" not in details(figures(alike.table, alike.catalogue)[0])


def test_remarks_describe_the_lines_shown_first():
    first = synthetic.ok(case(system="transformer", backend="vllm"), 1.0)
    others = [
        synthetic.ok(case(system="transformer", context=context), 2.0, throttled=[True] * 30)
        for context in (1024, 2048)
    ]
    _, [figure] = drawn(first, *others, suite="fig15-forward")
    assert [(line.primary, len(line.rows)) for line in figure.lines] == [(True, 1), (False, 2)]
    assert "throttled" not in details(figure)


def test_a_system_without_its_headline_backend_is_shown_first_by_another():
    own = synthetic.ok(case(system="transformer", backend="vllm"), 1.0)
    served = synthetic.ok(case(system="ttt-linear", backend="vllm"), 2.0)
    other = synthetic.ok(case(system="mamba2", backend="mamba-ssm"), 3.0)
    _, [figure] = drawn(own, served, other, suite="fig15-forward")
    assert {line.system: line.primary for line in figure.lines} == {
        "transformer": True,
        "ttt-linear": True,
        "mamba2": False,
    }
    headline = synthetic.ok(case(system="ttt-linear", backend="thunderkittens"), 1.5)
    _, [figure] = drawn(own, served, headline, suite="fig15-forward")
    assert [line.primary for line in figure.lines if line.system == "ttt-linear"] == [True, False]


@pytest.mark.parametrize(("throttled", "expected"), [(1, "1 of the 2 points"), (2, "all 2 points")])
def test_remarks_count_throttled_points(throttled, expected):
    records = [synthetic.ok(case(context=1024 << at), 1.0, throttled=[at < throttled] * 30) for at in range(2)]
    _, [figure] = drawn(*records)
    assert f"throttled at {expected}" in details(figure)
    _, [figure] = drawn(records[0])
    assert "throttled at the only point" in details(figure)


@pytest.mark.parametrize(("count", "bars"), [(5, "ranges"), (6, "95% intervals")])
def test_remarks_say_whether_bars_are_ranges(count, bars):
    _, [figure] = drawn(synthetic.ok(case(), 1.0, count=count), synthetic.ok(case(context=2048), 1.0, count=5))
    assert f"with {bars} within one process" in details(figure)


def test_timing_does_not_split_a_line():
    cases = [case(context=2048, timing="graph"), case(context=8192), case(context=32768)]
    _, [figure] = drawn(*(synthetic.ok(each, 1.0) for each in cases), suite="fig15-forward")
    assert [(line.name, line.rows) for line in figure.lines] == [("TTT-Linear · PyTorch", [0, 1, 2])]
    assert "timed in CUDA graphs or timed eagerly" in details(figure)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"dtype": "float32"}, {}, "float32"),
        ({"timing": "graph"}, {}, "timed in CUDA graphs"),
        ({"l2": "cold"}, {}, "L2 cold"),
        ({"size": "d128"}, {}, "d128"),
        ({"batch": 8}, {}, "batch 8"),
        ({"state_dtype": "float64"}, {"state_dtype": "float32"}, "state float64"),
        ({"options": (("mini_batch", 32),)}, {"options": (("mini_batch", 16),)}, "mini-batch 32"),
        ({"options": (("form", "primal"),)}, {"options": (("form", "dual"),)}, "primal form"),
    ],
)
def test_a_different_setting_is_another_line_and_in_its_name(one, other, expected):
    records = [synthetic.ok(case(context=context, **fields), 1.0) for fields in (one, other) for context in (512, 1024)]
    _, [figure, *_] = drawn(*records)
    assert sorted(line.rows for line in figure.lines) == [[0, 1], [2, 3]]
    assert expected in next(line.name for line in figure.lines if line.rows == [0, 1])
    assert expected not in next(line.name for line in figure.lines if line.rows == [2, 3])


def test_names_omit_options_that_only_one_system_has():
    _, [figure] = drawn(
        synthetic.ok(case(dtype="float32", options=(("mini_batch", 32),)), 1.0),
        synthetic.ok(case(system="mamba", backend="mamba-ssm"), 1.0),
    )
    names = [line.name for line in figure.lines]
    assert names == ["TTT-Linear · PyTorch · float32", "Mamba · mamba-ssm · bfloat16"]


def test_names_omit_defaults_and_states_of_systems_with_one_state():
    planes = case(backend="triton-dual", phase="generate", state_dtype="float32-planes")
    elsewhere = replace(planes, options=(("mini_batch", 32),))  # so that the backend's other cases get the default 16
    made = synthetic.made(
        [
            ("quick", synthetic.ok(planes, 1.0)),
            ("quick", synthetic.ok(case(backend="triton-primal", phase="generate", state_dtype="float32"), 1.0)),
            (
                "quick",
                synthetic.ok(case(system="mamba", backend="mamba-ssm", phase="generate", state_dtype="bfloat16"), 1.0),
            ),
            ("mini-batch", synthetic.ok(elsewhere, 1.0)),
        ]
    )
    figure = next(each for each in figures(made.table, made.catalogue) if each.suite == "quick")
    assert [line.name for line in figure.lines] == [
        "TTT-Linear · Triton dual · state float32-planes",
        "TTT-Linear · Triton primal · state float32",
        "Mamba · mamba-ssm",
    ]


def test_no_line_joins_points_of_two_devices():
    records = [
        synthetic.ok(case(context=context), 1.0, environment=synthetic.environment(device=device))
        for device, contexts in (("H100", (512, 1024)), ("H200", (2048, 4096)))
        for context in contexts
    ]
    _, [figure] = drawn(*records)
    assert [line.name for line in figure.lines] == [f"TTT-Linear · PyTorch · {each}" for each in ("H100", "H200")]
    assert [line.rows for line in figure.lines] == [[0, 1], [2, 3]]
    assert len({(line.dash, line.hollow) for line in figure.lines}) == 2


def test_a_line_joins_points_of_a_run_resumed_at_another_commit():
    first, second = (synthetic.environment(commit=letter * 40) for letter in "ab")
    records = [synthetic.ok(case(context=at), 1.0, environment=of) for at, of in ((512, first), (2048, second))]
    _, [figure] = drawn(*records)
    assert [(line.name, line.rows) for line in figure.lines] == [("TTT-Linear · PyTorch", [0, 1])]
    assert "Measured at 2 commits." in figure.remarks
    _, [figure] = drawn(records[0])
    assert not any("commit" in remark for remark in figure.remarks)


def test_a_line_joins_gpus_of_one_model():
    records = [
        synthetic.ok(case(context=context, timing=timing), 1.0, environment=synthetic.environment(device_id=unit))
        for context, timing, unit in ((512, "graph", "01234567"), (2048, "graph", "89abcdef"), (2048, "eager", ""))
    ]
    _, [figure] = drawn(*records[:2])
    assert [(line.name, line.rows) for line in figure.lines] == [("TTT-Linear · PyTorch", [0, 1])]
    _, [figure] = drawn(*records)  # two points at one x: timing splits the line, the GPU does not
    assert [line.rows for line in figure.lines] == [[2], [0, 1]]


def test_a_record_without_a_machine_joins_the_only_machine():
    broken = synthetic.lost(case(context=2048), "killed", "signal 9")
    broken.environment = {}
    h100 = synthetic.ok(case(), 1.0)
    _, [alone] = drawn(h100, broken)
    assert [line.rows for line in alone.lines] == [[0, 1]]
    h200 = synthetic.ok(case(context=4096), 1.0, environment=synthetic.environment("H200"))
    _, [several] = drawn(h100, h200, broken)
    assert [line.name for line in several.lines if 2 in line.rows] == ["TTT-Linear · PyTorch · device not recorded"]


def test_primal_over_dual_pairs_equal_cases():
    figure = FIGURES["dual-vs-primal-forward-ratio"]
    for line in figure.lines:
        over, under = TABLE.loc[line.rows], TABLE.loc[line.base_rows]
        assert set(over["form"]) == {"primal"}
        assert set(under["form"]) == {"dual"}
        assert list(over["context"]) == list(under["context"])
        assert (over["latency_ms"].to_numpy() / under["latency_ms"].to_numpy()).mean() == pytest.approx(4.1, rel=0.02)


def test_a_backends_name_gives_its_form():
    records = [synthetic.ok(case(backend=f"triton-{form}"), latency) for form, latency in [("dual", 1), ("primal", 3)]]
    _, found = drawn(*records)
    [line] = found[-1].lines
    assert (found[-1].id, line.rows, line.base_rows) == ("some-layers-forward-ratio", [1], [0])


def test_a_ratio_of_forms_is_of_one_timing():
    records = [
        synthetic.ok(replace(case(backend=f"triton-{form}"), timing=timing), latency)
        for form, timing, latency in (
            ("dual", "graph", 1),
            ("dual", "eager", 10),
            ("primal", "graph", 2),
            ("primal", "eager", 30),
        )
    ]
    table, found = drawn(*records)
    pairs = [(table.loc[line.rows[0]], table.loc[line.base_rows[0]]) for line in found[-1].lines]
    ratios = {over["timing"]: over["latency_ms"] / under["latency_ms"] for over, under in pairs}
    assert ratios == {"graph": pytest.approx(2, rel=0.05), "eager": pytest.approx(3, rel=0.05)}
    assert "two GPUs" not in details(found[-1])
    elsewhere = replace(records[2], environment=synthetic.environment(device_id="0ddba11d"))
    assert "the only ratio divides times of two GPUs" in details(drawn(records[0], elsewhere)[1][-1])
    _, alone = drawn(records[0], records[3])
    assert not alone[-1].id.endswith("-ratio")


def test_an_unknown_suite_is_drawn_against_its_widest_axis():
    _, [figure] = drawn(*[synthetic.ok(case(batch=batch), 1.0) for batch in (1, 2, 4)], suite="new")
    assert (figure.x, figure.y, figure.y_log) == ("batch", "latency_ms", True)
    _, [figure] = drawn(*[synthetic.ok(case(system="zebra", context=context), 1.0) for context in (1, 2)], suite="new")
    assert (figure.x, figure.lines[0].name) == ("context", "zebra · PyTorch")


def test_names_without_a_catalogue_entry_are_drawn_as_they_are():
    record = synthetic.ok(case(system="zebra", backend="zoo", phase="request", options=(("depth", 3),)), 1.0)
    table = frame([record], Catalogue())
    [figure] = figures(table, Catalogue())
    assert (figure.id, figure.title, figure.lines[0].name) == ("other-request", "request", "zebra · zoo")
    assert figure.y_title == "latency_ms"
    assert "depth 3" in details(figure)


def test_an_unknown_system_has_its_own_look():
    systems = ("ttt-linear", "ttt-mlp", "transformer", "mamba", "zebra")
    _, [figure] = drawn(*[synthetic.ok(case(system=system), 1.0) for system in systems])
    assert len({(line.tone, line.marker) for line in figure.lines}) == len(systems)


def test_remarks_count_processes_per_point():
    records = [synthetic.ok(case(), 1.0 + 0.1 * repeat, repeat=repeat) for repeat in range(3)]
    _, [figure] = drawn(*records)
    assert "medians of 90 samples, with 95% intervals within one process, from 3 processes per point" in details(figure)
    assert [line.rows for line in figure.lines] == [[0]]


def test_lower_bounds_have_a_line_per_form():
    forward = FIGURES["kernel-forward-16-ttt-linear"]
    assert [line.name for line in forward.lines if line.y] == ["Lower bound"]
    bounds = [line for line in FIGURES["kernel-generate-ttt-linear"].lines if line.y]
    assert [line.name for line in bounds] == [
        "Lower bound · state float32-planes · dual form",
        "Lower bound · state float32-planes · primal form",
    ]
    assert all(line.y == "lower_bound_ms" for line in bounds)
    assert list(TABLE.loc[bounds[1].rows, "lower_bound_ms"]) == pytest.approx([0.0192, 0.0384, 0.1536])
    assert len({line.dash for line in bounds}) == 2


def test_kernels_without_measured_peaks_have_no_lower_bound():
    _, [figure] = drawn(synthetic.ok(case(options=(("scope", "layer"),)), 1.0), suite="kernel-forward")
    assert [line.y for line in figure.lines] == [""]


def test_colors_in_a_figure_of_one_system_show_precision_or_backend():
    lines = [line for line in FIGURES["kernel-generate-ttt-linear"].lines if not line.y]
    by_state = {(line.name.rsplit(" ", 1)[1], line.tone, line.marker) for line in lines}
    assert len(by_state) == len({tone for _, tone, _ in by_state}) == 2
    lines = [line for line in FIGURES["kernel-forward-16-ttt-mlp"].lines if not line.y]
    assert len({line.tone for line in lines}) == len({line.marker for line in lines}) == 2


@pytest.mark.parametrize("system", ["ttt-linear", "transformer"])
def test_lines_in_a_figure_of_one_system_have_no_other_systems_color(system):
    names = ["ttt-linear", "ttt-mlp", "transformer", "mamba", "mamba2", "gated-deltanet", "rwkv7"]
    for others in (names[:4], names[:6], names):
        records = [synthetic.ok(case(system=name), 1.0) for name in others]
        layers = [
            synthetic.ok(case(system=system, backend=backend, options=(("scope", "layer"),)), 1.0)
            for backend in ("torch", "thunderkittens", "triton-dual", "fla")
        ]
        made = synthetic.of_suite("kernel-forward", *layers)
        table = frame([*records, *layers], made.catalogue)
        figure = next(each for each in figures(table, made.catalogue) if each.id.endswith(f"-{system}"))
        looks = system_looks(table, made.catalogue)
        taken = [looks[name] for name in others if name != system]
        assert not {line.tone for line in figure.lines} & {look.tone for look in taken}
        found = {(line.tone, line.marker, line.dash, line.hollow) for line in figure.lines}
        assert len(found) == len(figure.lines) == 4


@pytest.mark.parametrize(("slowest", "logarithmic"), [(20.0, False), (100.0, True)])
def test_latencies_far_apart_begin_on_a_logarithmic_axis(slowest, logarithmic):
    cases = [case(phase="generate", context=context) for context in (1, 2)]
    records = (synthetic.ok(c, latency) for c, latency in zip(cases, (1.0, slowest), strict=True))
    _, [figure] = drawn(*records, suite="fig15-generate")
    assert figure.y_log is logarithmic


def test_a_line_runs_along_the_batch_where_x_is_computed_from_it():
    figure = FIGURES["fig20-throughput-generate-2"]
    (line,) = [each for each in figure.lines if each.system == "ttt-linear" and each.rows]
    assert TABLE.loc[line.rows, "batch"].tolist() == [512, 256, 128, 64, 32, 16, 8, 4, 2, 1]
    assert "batch" not in figure.caption
