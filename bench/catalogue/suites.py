"""The suites: the cases of each figure. To add a suite, add one entry to SUITES."""

from dataclasses import dataclass, field, replace

from bench.catalogue.systems import ADAPTERS, HEADLINES
from bench.errors import UserError, unknown
from bench.models.config import SIZES
from harness.measure.interval import FEWEST
from harness.schema.catalogue import FigureEntry as Figure
from harness.schema.catalogue import PaperClaim as Claim


@dataclass(frozen=True)
class Panel:
    """Cases of one phase: every combination of systems, their backends, sizes, batches, contexts and options."""

    phase: str
    systems: tuple[str, ...]
    sizes: tuple[str, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    options: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    scope: str = "model"  # or "layer"
    l2: str = "warm"
    timing: str = ""  # "" for the system's own; see `cases.timing_of`
    # Whether batch or context grow until memory is exhausted: after the first case that does not fit, skip larger ones.
    grows: bool = False
    backends: tuple[str, ...] = ()  # () for all
    state_dtypes: tuple[str, ...] = ()  # () for the system's own
    dtype: str = ""  # of weights and activations; "" for bfloat16 on a GPU and float32 on a CPU


@dataclass(frozen=True)
class Suite:
    """A suite, as `ttt-bench run NAME` measures it: panels of cases, the question that they answer, and its figures.

    device: "cuda" for a suite that needs a GPU, "" for any device.
    min_samples: fewest samples per case, whatever the time budget.
    trial: whether the group `all` leaves the suite out, because the suite searches for a system's default settings or
        its cases take minutes.
    budget_s: seconds of sampling per case, 0 for `BUDGETS_S`; a run of several suites takes the highest of theirs.
    """

    name: str
    question: str
    panels: tuple[Panel, ...]
    figures: tuple[Figure, ...] = ()
    device: str = ""
    min_samples: int = FEWEST
    trial: bool = False
    budget_s: float = 0.0


LANGUAGE_MODELS = ("ttt-linear", "ttt-mlp", "transformer", "mamba")
# Systems newer than the paper, which the suites of its figures measure next to its four.
GROUPED = ("transformer-gqa",)
RECURRENT = ("mamba2", "gated-deltanet", "rwkv7")
COMPARED = (*LANGUAGE_MODELS, *GROUPED, *RECURRENT)
TTT = ("ttt-linear", "ttt-mlp")
REGRESSORS = ("mamba3", "gated-deltanet", "gated-deltanet-128", "kda", "deltaproduct", "mesanet")
COMPARED_EXACTLY: dict[str, tuple[str | int, ...]] = {"compare": ("float64",)}
# State dtypes of the generate kernels; "float32-planes" is float32 in two 16-bit planes.
STATE_DTYPES = ("float32-planes", "float32", "bfloat16", "float16")


def doubling(first: int, last: int) -> tuple[int, ...]:
    """Return (first, 2 * first, 4 * first, ...) up to last."""
    return (first, *doubling(2 * first, last)) if first <= last else ()


def _setting(phase: str, batch: int | None = None, system: str = "transformer", **options: str | int) -> Panel:
    """Return a panel of Figure 15's cases at a few contexts, in vLLM with the settings `options`.

    batch: None for Figure 15's. vLLM captures CUDA graphs for certain batch sizes only, which matters at 1,024 tokens:
    335 sequences fit at once there, no power of two.
    """
    usual_batch, contexts = {"forward": (16, (2048, 8192)), "generate": (512, (512, 1024, 2048))}[phase]
    chosen: dict[str, tuple[str | int, ...]] = {
        name: (value,) for name, value in ({"graphs": "engine"} | options).items()
    }
    return Panel(phase, (system,), ("1.3b",), (batch or usual_batch,), contexts, chosen, backends=("vllm",))


def _request(systems: tuple[str, ...], *backends: str, state_dtypes: tuple[str, ...] = ()) -> Panel:
    """Return a panel of requests with prompts of 2k to 32k tokens and 128 output tokens, at batch 1 and 16."""
    contexts = doubling(2048, 32768)
    options: dict[str, tuple[str | int, ...]] = {"steps": (128,)}
    return Panel(
        "request", systems, ("1.3b",), (1, 16), contexts, options, backends=backends, state_dtypes=state_dtypes
    )


def _layers(systems: tuple[str, ...], *backends: str) -> Panel:
    """Return a panel of one layer's forward at batch 16, timed as a CUDA graph with a cold L2 cache."""
    how = {"scope": "layer", "l2": "cold", "timing": "graph"}
    return Panel("forward", systems, ("1.3b",), (16,), CONTEXTS, backends=backends, **how)  # type: ignore[arg-type]


# Values of the layer's options that the kernels support.
MINI_BATCHES: dict[str, tuple[str | int, ...]] = {"mini_batch": (16, 32)}
BOTH_BACKBONES: dict[str, tuple[str | int, ...]] = {"backbone": ("mamba", "transformer")}
LARGE_SIZES = tuple(size for size in SIZES if size != "tiny")
CONTEXTS, BATCHES = doubling(2048, 32768), (1, 16, 64, 512)


def _axis(
    phase: str,
    batches: tuple[int, ...],
    contexts: tuple[int, ...],
    backend: str,
    options: dict[str, tuple[str | int, ...]],
    **how: str,
) -> Panel:
    """Return a panel of TTT-Linear and TTT-MLP on one backend, over all combinations of the values in `options`.

    how: further fields of `Panel`: scope, l2 and timing.
    """
    return Panel(phase, TTT, ("1.3b",), batches, contexts, options, backends=(backend,), **how)  # type: ignore[arg-type]


# The paper's abstract; measured on an A100.
_PAPER_CLAIMS = (
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
        budget_s=0.17,  # 130 cases on a GPU with at most five times the budget: two minutes of sampling
    ),
    Suite(
        "fig15-forward",
        "Figure 15, left: forward latency per token over the context length, batch 16",
        (Panel("forward", COMPARED, ("1.3b",), (16,), doubling(2048, 32768)),),
        figures=(
            Figure(
                "forward",
                "Forward latency per token",
                source="Figure 15, left",
                primary=HEADLINES,
                claims=_PAPER_CLAIMS,
            ),
        ),
        device="cuda",
    ),
    Suite(
        "fig15-generate",
        "Figure 15, right: generate latency per token over the context length, batch 512",
        (Panel("generate", COMPARED, ("1.3b",), (512,), doubling(512, 32768)),),
        figures=(Figure("generate", "Generate latency per token", source="Figure 15, right", primary=HEADLINES),),
        device="cuda",
    ),
    Suite(
        "fig20-throughput",
        "Figure 20: tokens per second over the batch size, until memory is exhausted",
        (
            Panel("forward", COMPARED, ("1.3b",), doubling(1, 256), (2048,), grows=True),
            Panel("generate", COMPARED, ("1.3b",), doubling(1, 4096), (2048,), grows=True),
        ),
        figures=(
            Figure("forward", "Forward throughput", "batch", "tokens_per_s", "Figure 20", best=True, primary=HEADLINES),
            Figure(
                "generate", "Generate throughput", "batch", "tokens_per_s", "Figure 20", best=True, primary=HEADLINES
            ),
            Figure(
                "generate",
                "Generate throughput over interactivity",
                "tokens_per_s_each",
                "tokens_per_s",
                best=True,
                along="batch",
                primary=HEADLINES,
            ),
        ),
        device="cuda",
    ),
    Suite(
        "model-sizes",
        "Latency per token over the model size, 125m to 1.3b",
        (
            Panel("forward", (*LANGUAGE_MODELS, *GROUPED), LARGE_SIZES, (16,), (2048,)),
            Panel("generate", (*LANGUAGE_MODELS, *GROUPED), LARGE_SIZES, (64,), (2048,)),
        ),
        figures=(
            Figure("forward", "Forward latency per token", "model_size", along="size", primary=HEADLINES),
            Figure("generate", "Generate latency per token", "model_size", along="size", primary=HEADLINES),
        ),
        device="cuda",
    ),
    Suite(
        "fig8-minibatch",
        "Figure 8, right: time of one TTT-Linear layer to compute W and z over the mini-batch size",
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
        figures=(Figure("forward", "Time to compute W and z", "mini_batch", "latency_ms", "Figure 8, right"),),
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
        "One sequence of 8k to a million tokens: time per token and state, until memory is exhausted",
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
            Figure("forward", "State or KV cache of one long sequence", y="state_bytes", y_log=True),
        ),
        device="cuda",
    ),
    Suite(
        "prompt-then-128",
        "Requests with 128 output tokens: TTFT and ITL, for 16 at once the median. vLLM answers some requests while it "
        "reads others; the other systems answer all together",
        (
            _request(TTT, "thunderkittens", state_dtypes=("float32-planes",)),
            _request((*TTT, "transformer", *GROUPED, "mamba"), "vllm", "mamba-ssm"),
        ),
        figures=(
            Figure("request", "Time to a request's first token", y="time_to_first_token_ms", split=("batch",)),
            Figure("request", "Inter-token latency of a request", y="time_between_tokens_ms", split=("batch",)),
            Figure("request", "End-to-end latency of a request", y="latency_ms", split=("batch",)),
        ),
        device="cuda",
    ),
    Suite(
        "mini-batch",
        "What does a larger mini-batch cost? TTT at 16 and 32 tokens: a layer's forward, and models",
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
        "staggered",
        "Generate with all sequences at one position in the mini-batch, and with positions spread over it as served "
        "requests have them",
        (_axis("generate", (64, 512), (2048,), "triton-dual", {"positions": ("common", "staggered")}),),
        figures=tuple(
            Figure("generate", title, x="batch", y=metric, split=("system",))
            for title, metric in (
                ("99th percentile of the steps", "itl_p99_ms"),
                ("Median of the steps", "itl_p50_ms"),
                ("Longest step over mean step", "itl_worst_over_mean"),
            )
        ),
        device="cuda",
    ),
    Suite(
        "backbone",
        "What do the Mamba backbone's convolutions and gate cost? Models with (M) and (T)",
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
            # Backends that are tens of times slower run at fewer lengths.
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
                lower_bound=True,
                split=("batch", "system"),
            ),
        ),
        device="cuda",
    ),
    Suite(
        "kernel-generate",
        "One layer's generate step: batch 1 to 4096, each form and state precision",
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
                "One layer's generate step",
                x="batch",
                y="latency_ms",
                y_log=True,
                forms=True,
                lower_bound=True,
                split=("system",),
            ),
        ),
        device="cuda",
    ),
    Suite(
        "regressors",
        "One layer of TTT and of its recurrent peers: time over the context length",
        (_layers(TTT, "thunderkittens", "triton"), _layers(REGRESSORS, "mamba-ssm", "fla", "flash-qla", "flashinfer")),
        figures=(Figure("forward", "One layer's forward", y="latency_ms", y_log=True),),
        device="cuda",
    ),
    Suite(
        "arrivals",
        "Requests with Poisson arrivals, prompts of 1,024 to 3,072 tokens and 64 to 192 output tokens: goodput, TTFT "
        "and ITL of each system in vLLM",
        (
            Panel(
                "request",
                (*LANGUAGE_MODELS, *GROUPED),
                ("1.3b",),
                (128,),
                (2048,),
                {"steps": (128,), "rate": (8, 16, 32)},
                backends=("vllm",),
            ),
        ),
        figures=tuple(
            Figure("request", title, x="rate", y=metric)
            for title, metric in (
                ("Goodput", "goodput"),
                ("Time to first token, 99th percentile", "ttft_p99_ms"),
                ("Inter-token latency, 99th percentile", "itl_p99_ms"),
                ("Throughput, prompts included", "tokens_per_s"),
            )
        ),
        device="cuda",
        min_samples=1,
        trial=True,
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
                # float32 too, because bfloat16 activations can hide the rounding of the state.
                for dtype in ("", "float32")
            ),
        ),
        device="cuda",  # 2,048 float64 steps take ten minutes on two cores
    ),
    Suite(
        "vllm-settings",
        "Which attention backend, block size, tokens per step and graphs are fastest in vLLM?",
        # This order starts each engine once.
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


def find_suite(name: str) -> Suite:
    """Return the suite called `name`. Raises UserError if there is none."""
    for suite in SUITES:
        if suite.name == name:
            return suite
    names = [suite.name for suite in SUITES] + [group.name for group in GROUPS]
    if "," in name:
        raise UserError(f"suite {name!r}: separate suites by spaces")
    if name.partition("/")[0] in {adapter.system for adapter in ADAPTERS}:
        raise UserError(f"suite {name!r}: is a system; use --systems {name}")
    raise unknown(f"suite {name!r}", name, names)


@dataclass(frozen=True)
class Group:
    """Suites that `ttt-bench run NAME` measures together.

    systems: labels SYSTEM/BACKEND of the systems that run; () for all.
    """

    name: str
    question: str
    suites: tuple[str, ...]
    systems: tuple[str, ...] = ()


# Seconds of sampling per case by device; suites share this default, because they share cases.
BUDGETS_S = {"cuda": 1.0, "cpu": 1.5}

GROUPS: tuple[Group, ...] = (
    Group(
        "fig15",
        "Figure 15: latency over context length, headline systems",
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
        "Every suite except `quick` and searches for settings, on every system; slow references last",
        tuple(suite.name for suite in SUITES if suite.name != "quick" and not suite.trial),
    ),
)


def find_group(name: str) -> Group | None:
    """Return the group called `name`, or None."""
    return next((group for group in GROUPS if group.name == name), None)


def default_suite(device: str) -> str:
    """Return the name of the suite or group that `ttt-bench run` measures if none is named. device: "cpu" or "cuda"."""
    return "paper" if device == "cuda" else "quick"
