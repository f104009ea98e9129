"""The suites: the cases that each figure of the paper, and each of ours, needs.

To add a suite with its figure, add one entry to SUITES.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.catalogue.metrics import AXES, METRICS
from bench.catalogue.panel import Panel, Suite
from bench.catalogue.systems import ADAPTERS, HEADLINES, SYSTEMS
from bench.errors import UserError, unknown
from bench.models.config import SIZES
from harness.schema.catalogue import FigureEntry as Figure
from harness.schema.catalogue import PaperClaim as Claim

LANGUAGE_MODELS = ("ttt-linear", "ttt-mlp", "transformer", "mamba")
# Systems of today next to the paper's four in its figures.
GROUPED = ("transformer-gqa",)
RECURRENT = ("mamba2", "gated-deltanet", "rwkv7")
COMPARED = (*LANGUAGE_MODELS, *GROUPED, *RECURRENT)
TTT = ("ttt-linear", "ttt-mlp")
REGRESSORS = ("gated-deltanet", "kda", "deltaproduct")
COMPARED_EXACTLY: dict[str, tuple[str | int, ...]] = {"compare": ("float64",)}
# How the generate kernels can keep the weights; "float32-planes" is float32 in two 16-bit planes.
STATE_DTYPES = ("float32-planes", "float32", "bfloat16", "float16")


def doubling(first: int, last: int) -> tuple[int, ...]:
    """first, 2 * first, ... up to last."""
    return (first, *doubling(2 * first, last)) if first <= last else ()


def _setting(phase: str, batch: int | None = None, system: str = "transformer", **options: str | int) -> Panel:
    """Figure 15's case, at few contexts, of vLLM's Transformer (or another system in vLLM) under some settings.

    Of 1,024 tokens 335 sequences fit at once, between two powers of two: there the sizes of the graphs can matter.
    """
    usual_batch, contexts = {"forward": (16, (2048, 8192)), "generate": (512, (512, 1024, 2048))}[phase]
    chosen: dict[str, tuple[str | int, ...]] = {
        name: (value,) for name, value in ({"graphs": "engine"} | options).items()
    }
    return Panel(phase, (system,), ("1.3b",), (batch or usual_batch,), contexts, chosen, backends=("vllm",))


def _request(systems: tuple[str, ...], *backends: str, state_dtypes: tuple[str, ...] = ()) -> Panel:
    """Prompts of 2k to 32k tokens and 128 after each, of one sequence and of 16."""
    contexts = doubling(2048, 32768)
    options: dict[str, tuple[str | int, ...]] = {"steps": (128,)}
    return Panel(
        "request", systems, ("1.3b",), (1, 16), contexts, options, backends=backends, state_dtypes=state_dtypes
    )


def _layers(systems: tuple[str, ...], *backends: str) -> Panel:
    """One layer's forward at batch 16, launched as a graph on a cold L2."""
    how = {"scope": "layer", "l2": "cold", "timing": "graph"}
    return Panel("forward", systems, ("1.3b",), (16,), CONTEXTS, backends=backends, **how)  # type: ignore[arg-type]


# What the kernels have of an option of the layer, at the figures' shapes.
MINI_BATCHES: dict[str, tuple[str | int, ...]] = {"mini_batch": (16, 32)}
BOTH_BACKBONES: dict[str, tuple[str | int, ...]] = {"backbone": ("mamba", "transformer")}
CONTEXTS, BATCHES = doubling(2048, 32768), (1, 16, 64, 512)


def _axis(
    phase: str,
    batches: tuple[int, ...],
    contexts: tuple[int, ...],
    backend: str,
    options: dict[str, tuple[str | int, ...]],
    **how: str,
) -> Panel:
    """Both TTT layers on one kernel over an option; how: scope, l2 and timing."""
    return Panel(phase, TTT, ("1.3b",), batches, contexts, options, backends=(backend,), **how)  # type: ignore[arg-type]


# Of its abstract, measured there on an A100.
_OF_THE_PAPER = (
    Claim("TTT-Linear is faster than the Transformer from 8k tokens on", "ttt-linear", "transformer", 8192),
    Claim("TTT-Linear matches Mamba", "ttt-linear", "mamba", margin=0.1),
)

SUITES: tuple[Suite, ...] = (
    Suite(
        "quick",
        "Small models on any machine: forward over context lengths, generate over batch sizes",
        (
            Panel("forward", LANGUAGE_MODELS, ("tiny",), (2,), doubling(64, 1024)),
            Panel("generate", LANGUAGE_MODELS, ("tiny",), doubling(1, 16), (128,)),
        ),
        figures=(
            Figure("forward", "Forward latency per token"),
            Figure("generate", "Generate latency per token", x="batch"),
        ),
        min_samples=1,
        budget_s=0.2,  # 100 cases of at most five times that: a first run samples for two minutes at most
    ),
    Suite(
        "fig15-forward",
        "Figure 15, left: forward latency a token over the context length, batch 16",
        (Panel("forward", COMPARED, ("1.3b",), (16,), doubling(2048, 32768)),),
        figures=(
            Figure(
                "forward",
                "Forward latency per token",
                source="Figure 15, left",
                primary=HEADLINES,
                claims=_OF_THE_PAPER,
            ),
        ),
        device="cuda",
    ),
    Suite(
        "fig15-generate",
        "Figure 15, right: generate latency a token over the context length, batch 512",
        (Panel("generate", COMPARED, ("1.3b",), (512,), doubling(512, 32768)),),
        figures=(Figure("generate", "Generate latency per token", source="Figure 15, right", primary=HEADLINES),),
        device="cuda",
    ),
    Suite(
        "fig20-throughput",
        "Figure 20: tokens a second over the batch size, until memory ends",
        (
            Panel("forward", COMPARED, ("1.3b",), doubling(1, 256), (2048,), grows=True),
            Panel("generate", COMPARED, ("1.3b",), doubling(1, 4096), (2048,), grows=True),
        ),
        figures=(
            Figure("forward", "Forward throughput", "batch", "tokens_per_s", "Figure 20", best=True, primary=HEADLINES),
            Figure(
                "generate", "Generate throughput", "batch", "tokens_per_s", "Figure 20", best=True, primary=HEADLINES
            ),
        ),
        device="cuda",
    ),
    Suite(
        "fig8-minibatch",
        "Figure 8, right: one TTT-Linear layer, time to compute W and to compute z over the mini-batch size",
        (
            Panel(
                "forward",
                ("ttt-linear",),
                ("1.3b",),
                (1,),
                (2048,),
                {"mini_batch": doubling(1, 2048), "part": ("w", "z")},
                scope="layer",
                backends=("torch",),
            ),
        ),
        figures=(Figure("forward", "Time of computing W and z", "mini_batch", "latency_ms", "Figure 8, right"),),
        device="cuda",
    ),
    Suite(
        "dual-vs-primal",
        "Section 2.5: one layer in the dual and in the primal form",
        (
            Panel(
                "forward",
                TTT,
                ("1.3b",),
                (1,),
                (512, 2048),
                {"form": ("dual", "primal")},
                scope="layer",
                backends=("torch",),
            ),
        ),
        figures=(Figure("forward", "One layer's forward", y="latency_ms", y_log=True, forms=True),),
        device="cuda",
    ),
    Suite(
        "long-context",
        "One sequence of 8k to a million tokens: time per token, and what the model keeps of it, until memory ends",
        (
            Panel(
                "forward",
                (*LANGUAGE_MODELS, *GROUPED),
                ("1.3b",),
                (1,),
                doubling(8192, 1 << 20),
                grows=True,
                backends=("thunderkittens", "triton", "mamba-ssm", "vllm", "flash-attn"),
            ),
        ),
        figures=(
            Figure("forward", "Forward latency per token of one long sequence"),
            Figure("forward", "What is kept of one long sequence", y="state_bytes", y_log=True),
        ),
        device="cuda",
    ),
    Suite(
        "prompt-then-128",
        "A request, as its user feels it: time to the first token, and the mean between the 128 after it; of 16 at "
        "once the median. vLLM answers some of them while it still reads the others, the other systems all together",
        (
            _request(TTT, "thunderkittens", state_dtypes=("float32-planes",)),
            _request(("transformer", *GROUPED, "mamba"), "vllm", "mamba-ssm"),
        ),
        figures=(
            Figure("request", "Time to a request's first token", y="time_to_first_token_ms", split=("batch",)),
            Figure("request", "Time between a request's tokens", y="time_between_tokens_ms", split=("batch",)),
            Figure("request", "A prompt and the 128 tokens after it", y="latency_ms", split=("batch",)),
        ),
        device="cuda",
    ),
    Suite(
        "mini-batch",
        "What does a larger mini-batch cost or gain? TTT at 16 and 32 tokens: forward of a layer, models",
        (
            _axis("forward", (16,), CONTEXTS, "thunderkittens", MINI_BATCHES, scope="layer", l2="cold", timing="graph"),
            _axis("forward", (16,), CONTEXTS, "thunderkittens", MINI_BATCHES),
            _axis("generate", BATCHES, (2048,), "triton-dual", MINI_BATCHES),
        ),
        figures=(
            Figure("forward", "Forward at each mini-batch size", split=("scope",)),
            Figure("generate", "Generate at each mini-batch size", x="batch"),
        ),
        device="cuda",
    ),
    Suite(
        "backbone",
        "What do the Mamba backbone's convolutions and gate cost? (M) beside (T), whole models",
        (
            _axis("forward", (16,), CONTEXTS, "thunderkittens", BOTH_BACKBONES),
            _axis("generate", BATCHES, (2048,), "triton-dual", BOTH_BACKBONES),
        ),
        figures=(
            Figure("forward", "Forward on each backbone"),
            Figure("generate", "Generate on each backbone", x="batch"),
        ),
        device="cuda",
    ),
    Suite(
        "kernel-forward",
        "One layer's forward: batch 1 to 64, context 2k to 128k, cold and warm L2, each backend",
        (
            *(
                Panel(
                    "forward",
                    TTT,
                    ("1.3b",),
                    (1, 4, 16, 64),
                    doubling(2048, 131072),
                    scope="layer",
                    l2=l2,
                    timing="graph",
                    backends=("thunderkittens", "triton"),
                )
                for l2 in ("cold", "warm")
            ),
            # What is tens of times slower is compared at fewer lengths, so that it does not take most of the time.
            Panel(
                "forward",
                TTT,
                ("1.3b",),
                (1, 4, 16, 64),
                (2048, 8192, 32768),
                scope="layer",
                l2="cold",
                timing="graph",
                backends=("torch", "torch-compile", "fla"),
            ),
        ),
        figures=(
            Figure(
                "forward",
                "One layer's forward",
                y="latency_ms",
                y_log=True,
                forms=True,
                floor=True,
                split=("batch", "system"),
            ),
        ),
        device="cuda",
    ),
    Suite(
        "kernel-generate",
        "One layer's step of generate: batch 1 to 4096, each form and state precision",
        (
            Panel(
                "generate",
                TTT,
                ("1.3b",),
                doubling(1, 4096),
                (1,),
                scope="layer",
                l2="cold",
                grows=True,
                backends=("triton-dual", "triton-primal"),
                state_dtypes=STATE_DTYPES,
            ),
        ),
        figures=(
            Figure(
                "generate",
                "One layer's step of generate",
                x="batch",
                y="latency_ms",
                y_log=True,
                forms=True,
                floor=True,
                split=("system",),
            ),
        ),
        device="cuda",
    ),
    Suite(
        "regressors",
        "One layer of TTT and of today's delta rules: time over the context length",
        (_layers(TTT, "thunderkittens", "triton"), _layers(REGRESSORS, "fla")),
        figures=(Figure("forward", "One layer's forward", y="latency_ms", y_log=True),),
        device="cuda",
    ),
    Suite(
        "peers",
        "16,384 tokens generated after a prompt of 16,384: the comparison that the authors of Mamba-3 publish",
        tuple(
            replace(panel, batches=(16, 128), contexts=(16384,), options={"steps": (16384,)}, grows=True)
            for panel in (
                _request(TTT, "thunderkittens", state_dtypes=("float32-planes",)),
                _request(("transformer", *GROUPED), "vllm"),
                _request(("mamba", "mamba2"), "mamba-ssm"),
            )
        ),
        figures=(Figure("request", "A prompt of 16,384 tokens and as many generated", x="batch", y="latency_ms"),),
        device="cuda",
        min_samples=1,
        trial=True,
        budget_s=1.0,
    ),
    Suite(
        "generate-fidelity",
        "How far does each state precision drift from the exact model in 2,048 tokens? Small models, random weights",
        (
            Panel("generate", TTT, ("125m",), (4,), (2048,), COMPARED_EXACTLY, backends=("torch",)),
            *(
                Panel(
                    "generate",
                    TTT,
                    ("125m",),
                    (4,),
                    (2048,),
                    COMPARED_EXACTLY,
                    backends=("triton-dual", "triton-primal"),
                    state_dtypes=STATE_DTYPES,
                    dtype=dtype,
                )
                # In float32 the rounding of the activations does not hide that of the state.
                for dtype in ("", "float32")
            ),
        ),
        device="cuda",  # 2,048 steps of the exact model, in float64, take ten minutes on two cores
    ),
    Suite(
        "vllm-settings",
        "Which attention, block size, tokens a step and graphs suit vLLM best? Its adapters' defaults are from here",
        # In an order that starts each engine once.
        (
            _setting("forward", block_size=16, max_num_batched_tokens=8192),
            _setting("forward", block_size=16, max_num_batched_tokens=32768),
            _setting("forward", block_size=128, max_num_batched_tokens=32768),
            _setting("forward", 1, block_size=128, max_num_batched_tokens=32768),
            _setting("forward", 1, block_size=128, max_num_batched_tokens=32768, graphs="prompts"),
            _setting("forward", block_size=16, max_num_batched_tokens=16384),
            _setting("generate", block_size=16, max_num_batched_tokens=16384),
            _setting("generate", block_size=128, max_num_batched_tokens=16384),
            _setting("forward", block_size=128, max_num_batched_tokens=16384),
            _setting("generate", block_size=16, max_num_batched_tokens=16384, graphs="doubling"),
            *(
                _setting("generate", block_size=16, max_num_batched_tokens=16384, attention=name)
                for name in ("FLASH_ATTN-2", "TRITON_ATTN", "FLASHINFER")
            ),
            *(
                _setting("generate", batch, block_size=16, max_num_batched_tokens=32768, **runner)
                for runner in (
                    {"model_runner": "V2"},
                    {"model_runner": "V1"},
                    {"model_runner": "V1", "cuda_graphs": "FULL_DECODE_ONLY"},
                    {"model_runner": "V2", "cuda_graphs": "FULL_DECODE_ONLY"},
                )
                for batch in (1, 16, 512)
            ),
            *(
                _setting(phase, system="transformer-gqa", block_size=block, max_num_batched_tokens=32768)
                for block in (16, 64, 128)
                for phase in ("forward", "generate")
            ),
            *(_setting("forward", system="mamba", max_num_batched_tokens=tokens) for tokens in (16384, 131072)),
        ),
        device="cuda",
        trial=True,
    ),
)


def refuse_mistakes(suites: Sequence[Suite]) -> None:
    """UserError for the first suite that has the name of another, or names what does not exist.

    Of such a system, backend or size no case would be planned, and the suite would only be smaller.
    """
    known = {
        "system": [system.name for system in SYSTEMS],
        "backend": list(dict.fromkeys(adapter.backend for adapter in ADAPTERS)),
        "size": list(SIZES),
        "primary": [adapter.label for adapter in ADAPTERS],
        "metric": [metric.name for metric in METRICS],
        "axis": ["system", "backend", *(axis.name for axis in AXES)],
    }
    where = {"metric": "METRICS", "axis": "AXES"}  # what a suite of one's own may have to add
    seen: set[str] = set()
    for suite in suites:
        if suite.name in seen:
            raise UserError(f"suite {suite.name!r}: two suites have this name; rename one")
        seen.add(suite.name)
        for kind, name in _names_of(suite):
            if name not in known[kind]:
                add = f"; add it to {where[kind]} of bench/catalogue/metrics.py" if kind in where else ""
                there = ", ".join(known[kind])
                raise UserError(f"suite {suite.name!r}: {kind} {name!r} is unknown; there are {there}{add}")


def _names_of(suite: Suite) -> Iterator[tuple[str, str]]:
    """What the suite names that must exist: of which kind, and its name."""
    for panel in suite.panels:
        for kind, names in (("system", panel.systems), ("backend", panel.backends), ("size", panel.sizes)):
            yield from ((kind, name) for name in names)
    for figure in suite.figures:
        yield from (("primary", label) for label in figure.primary)
        yield "metric", figure.y
        yield from (("axis", name) for name in (figure.x, *figure.split))


def find_suite(name: str) -> Suite:
    """The suite called `name`; UserError otherwise."""
    for suite in SUITES:
        if suite.name == name:
            return suite
    names = [suite.name for suite in SUITES] + [group.name for group in GROUPS]
    if "," in name:
        raise UserError(f"suite {name!r}: names of suites are separated by spaces")
    if name.partition("/")[0] in {adapter.system for adapter in ADAPTERS}:
        raise UserError(f"suite {name!r}: is a system; say --systems {name}")
    raise unknown(f"suite {name!r}", name, names)


@dataclass(frozen=True)
class Group:
    """Suites that are asked for by one word, on some systems (empty for all)."""

    name: str
    question: str
    suites: tuple[str, ...]
    systems: tuple[str, ...] = ()


# Default seconds of sampling a case, the same in every suite, so that a case of two suites is measured in one way; on a
# GPU beside the six samples of every point. The paper's suites take 20 minutes so on one H100.
BUDGETS_S = {"cuda": 1.0, "cpu": 1.5}

GROUPS: tuple[Group, ...] = (
    Group(
        "fig15",
        "Figure 15: latency over context length, for the headline systems on the paper's backends",
        ("fig15-forward", "fig15-generate"),
        HEADLINES,
    ),
    Group(
        "paper",
        "Figures 15 and 20: TTT-Linear, TTT-MLP, vLLM's Transformer with and without GQA, and Mamba",
        ("fig15-forward", "fig15-generate", "fig20-throughput"),
        HEADLINES,
    ),
    Group(
        "all",
        "Every suite but `quick` and the trials of settings, on every system; slow references last",
        tuple(suite.name for suite in SUITES if suite.name != "quick" and not suite.trial),
    ),
)


def find_group(name: str) -> Group | None:
    """The group called `name`, if there is one."""
    return next((group for group in GROUPS if group.name == name), None)


def default_suite(device: str) -> str:
    """What `ttt-bench run` runs without a name: the paper's figures on a GPU, small models without one."""
    return "paper" if device == "cuda" else "quick"
