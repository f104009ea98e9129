"""Are the figures those of the suites, with lines that never mix what differs?"""

import pytest
import synthetic_records as synthetic

from harness.case import Case
from reports.figures import figures
from reports.stats import frame

TABLE = frame(synthetic.paper())
FIGURES = {figure.id: figure for figure in figures(TABLE)}


def case(**fields):
    values = {"suite": "some-layers", "system": "ttt-linear", "backend": "torch", "size": "d64",
              "phase": "forward", "batch": 4, "context": 1024} | fields
    return Case(**values)


def drawn(*records):
    table = frame(records)
    return table, figures(table)


@pytest.mark.parametrize(
    ("name", "x", "y", "lines"),
    [
        ("fig15-forward-forward", "context", "us_per_token", 4),
        ("fig15-generate-generate", "context", "us_per_token", 4),
        ("fig20-throughput-forward", "batch", "tokens_per_s", 4),
        ("fig20-throughput-generate", "batch", "tokens_per_s", 4),
        ("fig8-minibatch-forward", "mini_batch", "latency_ms", 2),
        ("dual-vs-primal-forward", "context", "latency_ms", 4),
        ("dual-vs-primal-forward-ratio", "context", "latency_ms", 2),
        ("prompt-then-128-request", "context", "latency_ms", 4),
        ("quick-forward", "context", "us_per_token", 5),
        ("quick-generate", "batch", "us_per_token", 5),
        ("kernel-forward-forward-16-ttt-linear", "context", "latency_ms", 3),
        ("kernel-forward-forward-16-ttt-mlp", "context", "latency_ms", 3),
        ("kernel-generate-generate-ttt-linear", "batch", "latency_ms", 6),
        ("kernel-generate-generate-ttt-linear-ratio", "batch", "latency_ms", 2),
    ],
)
def test_each_suite_has_its_figure(name, x, y, lines):
    figure = FIGURES[name]
    assert (figure.x, figure.y, len(figure.lines)) == (x, y, lines)


def test_only_suites_that_are_there_are_drawn():
    _, found = drawn(synthetic.ok(case(suite="quick"), 1.0))
    assert [figure.id for figure in found] == ["quick-forward"]


def test_every_row_is_in_a_line_of_its_figure_in_order_of_x():
    seen = [row for figure in FIGURES.values() if not figure.id.endswith("ratio") for line in figure.lines
            if not line.y for row in line.rows]
    assert sorted(seen) == list(TABLE.index[TABLE["suite"] != "generate-fidelity"])
    for figure in FIGURES.values():
        for line in figure.lines:
            assert TABLE.loc[line.rows, figure.x].is_monotonic_increasing


def test_a_system_looks_the_same_in_every_figure_and_like_no_other():
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
def test_backends_that_share_a_dash_are_told_apart(system, backends):
    cases = [case(suite="fig15-forward", system=system, backend=backend, context=at)
             for backend in backends for at in (2048, 8192)]
    _, (figure,) = drawn(*(synthetic.ok(each, 1.0) for each in cases))
    assert len({(line.dash, line.hollow) for line in figure.lines}) == len(figure.lines) == len(backends)
    assert (figure.lines[0].dash, figure.lines[0].hollow) == ("solid", False)
    assert backends[0] in figure.lines[0].name.lower()


def test_caption_is_one_sentence_of_what_was_held_fixed():
    assert FIGURES["fig15-generate-generate"].caption == (
        "Batch 512, 1.3b, bfloat16, timed in CUDA graphs, on NVIDIA H100 80GB HBM3; medians of 30 samples with their "
        "95% intervals; crosses below mark cases without a result."
    )
    assert "rings mark the best batch" in FIGURES["fig20-throughput-forward"].caption
    assert "steps 128" in FIGURES["prompt-then-128-request"].caption
    assert "crosses" not in FIGURES["prompt-then-128-request"].caption


@pytest.mark.parametrize(("count", "said"), [(5, True), (6, False)])
def test_caption_says_where_a_bar_is_a_range_and_no_interval(count, said):
    _, [figure] = drawn(synthetic.ok(case(), 1.0), synthetic.ok(case(context=2048), 1.0, count=count))
    assert ("95% intervals (below 6 samples their range)" in figure.caption) is said


def test_caption_says_how_many_points_have_notes():
    replayed = {"launch": "the prefill is replayed from a CUDA graph"}
    _, [figure] = drawn(
        synthetic.ok(case(suite="quick"), 1.0, settings=replayed),
        synthetic.ok(case(suite="quick", context=2048), 1.0),
    )
    assert "medians of 30 samples with their 95% intervals; the table has notes on 1 of the points" in figure.caption
    assert not any("notes" in figure.caption for figure in FIGURES.values())


@pytest.mark.parametrize(
    ("one", "other", "said"),
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
def test_what_differs_is_another_line_and_in_its_name(one, other, said):
    records = [synthetic.ok(case(context=context, **fields), 1.0) for fields in (one, other) for context in (512, 1024)]
    _, [figure, *_] = drawn(*records)
    assert sorted(line.rows for line in figure.lines) == [[0, 1], [2, 3]]
    assert said in next(line.name for line in figure.lines if line.rows == [0, 1])
    assert said not in next(line.name for line in figure.lines if line.rows == [2, 3])


def test_names_say_settings_that_differ_between_systems_but_not_options_that_only_one_has():
    _, [figure] = drawn(
        synthetic.ok(case(timing="graph", options=(("mini_batch", 16),)), 1.0),
        synthetic.ok(case(system="mamba", backend="mamba-ssm"), 1.0),
    )
    names = [line.name for line in figure.lines]
    assert names == ["TTT-Linear · PyTorch · timed in CUDA graphs", "Mamba · mamba-ssm · timed eagerly"]


def test_devices_are_never_mixed():
    records = [
        synthetic.ok(case(context=context), 1.0, environment=synthetic.environment(device))
        for device in ("H100", "H200")
        for context in (512, 1024)
    ]
    _, [figure] = drawn(*records)
    assert [line.name for line in figure.lines] == ["TTT-Linear · PyTorch · H100", "TTT-Linear · PyTorch · H200"]
    assert figure.caption.endswith("on H100 and H200; medians of 30 samples with their 95% intervals.")


def test_a_record_without_a_machine_joins_the_only_one_but_no_one_of_two():
    broken = synthetic.lost(case(context=2048), "killed", "signal 9")
    broken.environment = {}
    h100 = synthetic.ok(case(), 1.0)
    _, [alone] = drawn(h100, broken)
    assert [line.rows for line in alone.lines] == [[0, 1]]
    h200 = synthetic.ok(case(), 1.0, environment=synthetic.environment("H200"))
    _, [several] = drawn(h100, h200, broken)
    assert [line.name for line in several.lines if 2 in line.rows] == ["TTT-Linear · PyTorch · device not recorded"]


def test_a_case_measured_twice_is_two_lines():
    _, [figure] = drawn(*[synthetic.ok(case(context=context), 1.0) for context in (512, 1024, 512)])
    assert [(line.name, len(line.rows)) for line in figure.lines] == [
        ("TTT-Linear · PyTorch", 2),
        ("TTT-Linear · PyTorch · run 2", 1),
    ]


def test_primal_over_dual_pairs_rows_that_are_alike_in_all_else():
    figure = FIGURES["dual-vs-primal-forward-ratio"]
    for line in figure.lines:
        over, under = TABLE.loc[line.rows], TABLE.loc[line.base_rows]
        assert set(over["form"]) == {"primal"}
        assert set(under["form"]) == {"dual"}
        assert list(over["context"]) == list(under["context"])
        assert (over["latency_ms"].to_numpy() / under["latency_ms"].to_numpy()).mean() == pytest.approx(4.1, rel=0.02)


def test_forms_are_also_known_by_the_backend():
    records = [synthetic.ok(case(backend=f"triton-{form}"), latency) for form, latency in [("dual", 1), ("primal", 3)]]
    _, found = drawn(*records)
    [line] = found[-1].lines
    assert (found[-1].id, line.rows, line.base_rows) == ("some-layers-forward-ratio", [1], [0])


def test_an_unknown_suite_is_drawn_against_its_widest_axis():
    _, [figure] = drawn(*[synthetic.ok(case(suite="new", batch=batch), 1.0) for batch in (1, 2, 4)])
    assert (figure.x, figure.y, figure.y_log) == ("batch", "latency_ms", True)
    _, [figure] = drawn(*[synthetic.ok(case(suite="new", system="zebra", context=context), 1.0) for context in (1, 2)])
    assert (figure.x, figure.lines[0].name) == ("context", "zebra · PyTorch")


def test_kernels_of_one_batch_stand_side_by_side():
    titles = [figure.title for figure in FIGURES.values() if figure.suite == "kernel-forward"]
    assert titles == ["One layer's forward: TTT-Linear, batch 16", "One layer's forward: TTT-MLP, batch 16"]


def test_the_floor_is_a_line_of_each_form_in_the_precision_with_most_points():
    forward = FIGURES["kernel-forward-forward-16-ttt-linear"]
    assert [line.name for line in forward.lines if line.y] == ["Floor"]
    floors = [line for line in FIGURES["kernel-generate-generate-ttt-linear"].lines if line.y]
    assert [line.name for line in floors] == [
        "Floor · state float32-planes · dual form",
        "Floor · state float32-planes · primal form",
    ]
    assert all(line.y == "floor_ms" for line in floors)
    assert list(TABLE.loc[floors[1].rows, "floor_ms"]) == pytest.approx([0.0192, 0.0384, 0.1536])
    assert len({line.dash for line in floors}) == 2
    assert "the floor is the longer" in forward.caption
    assert "floor" not in FIGURES["kernel-generate-generate-ttt-linear-ratio"].caption


def test_kernels_without_ceilings_have_no_floor():
    _, [figure] = drawn(synthetic.ok(case(suite="kernel-forward"), 1.0))
    assert [line.y for line in figure.lines] == [""]


def test_in_a_figure_of_one_system_the_colour_says_the_precision_or_the_backend():
    lines = [line for line in FIGURES["kernel-generate-generate-ttt-linear"].lines if not line.y]
    by_state = {(line.name.rsplit(" ", 1)[1], line.tone, line.marker) for line in lines}
    assert len(by_state) == len({tone for _, tone, _ in by_state}) == 2
    lines = [line for line in FIGURES["kernel-forward-forward-16-ttt-mlp"].lines if not line.y]
    assert len({line.tone for line in lines}) == len({line.marker for line in lines}) == 2


def test_what_a_table_answers_has_no_figure():
    assert not [name for name in FIGURES if name.startswith("generate-fidelity")]


@pytest.mark.parametrize(("slowest", "logarithmic"), [(20.0, False), (100.0, True)])
def test_latencies_far_apart_begin_on_a_logarithmic_axis(slowest, logarithmic):
    cases = [case(suite="fig15-generate", phase="generate", context=context) for context in (1, 2)]
    _, [figure] = drawn(*(synthetic.ok(c, latency) for c, latency in zip(cases, (1.0, slowest), strict=True)))
    assert figure.y_log is logarithmic
