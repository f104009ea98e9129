"""Which cases does each figure need? The paper's figures and ours, as axes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from bench.errors import UserError
from bench.systems import SystemSpec
from harness.case import Case
from harness.record import Record

LANGUAGE_MODELS = ("ttt-linear", "ttt-mlp", "transformer", "mamba")
# Today's recurrent models stand beside the paper's four in its figures.
RECURRENT = ("mamba2", "gated-deltanet", "rwkv7")
COMPARED = (*LANGUAGE_MODELS, *RECURRENT)
TTT = ("ttt-linear", "ttt-mlp")
COMPARED_EXACTLY: dict[str, tuple[str | int, ...]] = {"compare": ("float64",)}
# How the generate kernels can keep the weights; "float32-planes" is float32 in two 16-bit planes.
STATE_DTYPES = ("float32-planes", "float32", "bfloat16", "float16")


def doubling(first: int, last: int) -> tuple[int, ...]:
    """first, 2 * first, ... up to last."""
    return (first, *doubling(2 * first, last)) if first <= last else ()


@dataclass(frozen=True)
class Panel:
    """A rectangle of cases: every combination of its axes, for every system."""

    phase: str
    systems: tuple[str, ...]
    sizes: tuple[str, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    options: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    scope: str = "model"  # or "layer": one layer of it, the latency of the kernel suites
    l2: str = "warm"
    timing: str = ""  # "" is eager, and in a graph what is shorter than its launches: generate on a GPU
    # Whether the batch runs into memory's end on purpose: after the first that does not fit, larger ones are skipped.
    grows: bool = False
    backends: tuple[str, ...] = ()  # only these; empty for all
    state_dtypes: tuple[str, ...] = ()  # empty for that of each system
    dtype: str = ""  # of weights and activations; "" is bfloat16 on a GPU and float32 on a CPU


@dataclass(frozen=True)
class Suite:
    """A figure: its panels, the question it answers, and the device it needs ("cuda", or "" for any).

    trial: of a system's settings, whose best is its default; run when it is named.
    """

    name: str
    question: str
    panels: tuple[Panel, ...]
    device: str = ""
    trial: bool = False


def _setting(phase: str, block: int, step_tokens: int, graphs: str = "engine") -> Panel:
    """Figure 15's case, at few contexts, of vLLM's Transformer under some settings.

    Of 1,024 tokens 335 sequences fit at once, between two powers of two: there the sizes of the graphs can matter.
    """
    batch, contexts = {"forward": (16, (2048, 8192)), "generate": (512, (1024,))}[phase]
    options: dict[str, tuple[str | int, ...]] = {
        "block_size": (block,),
        "max_num_batched_tokens": (step_tokens,),
        "graphs": (graphs,),
    }
    return Panel(phase, ("transformer",), ("1.3b",), (batch,), contexts, options, backends=("vllm",))


SUITES: tuple[Suite, ...] = (
    Suite(
        "quick",
        "Small models on any machine: forward over context lengths, generate over batch sizes",
        (
            Panel("forward", LANGUAGE_MODELS, ("tiny",), (2,), doubling(64, 1024)),
            Panel("generate", LANGUAGE_MODELS, ("tiny",), doubling(1, 16), (128,)),
        ),
    ),
    Suite(
        "fig15-forward",
        "Figure 15, left: forward latency a token over the context length, batch 16",
        (Panel("forward", COMPARED, ("1.3b",), (16,), doubling(2048, 32768)),),
        device="cuda",
    ),
    Suite(
        "fig15-generate",
        "Figure 15, right: generate latency a token over the context length, batch 512",
        (Panel("generate", COMPARED, ("1.3b",), (512,), doubling(512, 32768)),),
        device="cuda",
    ),
    Suite(
        "fig20-throughput",
        "Figure 20: tokens a second over the batch size, until memory ends",
        (
            Panel("forward", COMPARED, ("1.3b",), doubling(1, 256), (2048,), grows=True),
            Panel("generate", COMPARED, ("1.3b",), doubling(1, 4096), (2048,), grows=True),
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
        device="cuda",
    ),
    Suite(
        "prompt-then-128",
        "A request: the prompt, then 128 tokens",
        (Panel("request", LANGUAGE_MODELS, ("1.3b",), (16,), doubling(2048, 32768), {"steps": (128,)}),),
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
                    backends=("thunderkittens",),
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
        device="cuda",
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
    ),
    Suite(
        "vllm-settings",
        "Which block size, tokens a step and graph sizes suit vLLM best? Its adapter's defaults come from here",
        # In an order that starts each engine once.
        (
            _setting("forward", 16, 8192),
            _setting("forward", 16, 32768),
            _setting("forward", 16, 16384),
            _setting("generate", 16, 16384),
            _setting("generate", 128, 16384),
            _setting("forward", 128, 16384),
            _setting("generate", 16, 16384, graphs="doubling"),
        ),
        device="cuda",
        trial=True,
    ),
)


def find_suite(name: str) -> Suite:
    """The suite called `name`; UserError otherwise."""
    for suite in SUITES:
        if suite.name == name:
            return suite
    raise UserError(f"suite {name!r}: unknown; there are {', '.join(s.name for s in SUITES)}")


def default_suites(device: str) -> tuple[str, ...]:
    """What `make bench` runs: every suite but `quick` on a GPU, `quick` without one."""
    if device != "cuda":
        return ("quick",)
    return tuple(suite.name for suite in SUITES if suite.name != "quick" and not suite.trial)


@dataclass(frozen=True)
class Selection:
    """What the command line asks for; an empty axis leaves the suite's own."""

    systems: tuple[SystemSpec, ...]
    sizes: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()

    @property
    def narrows_axes(self) -> bool:
        """Whether a size of the work comes from the user and not from the suite."""
        return bool(self.sizes or self.batches or self.contexts)


def cases(suite: Suite, selection: Selection, device: str) -> list[Case]:
    """Every case of the suite under the selection, smaller ones first within a system, without repetition."""
    found = [
        case
        for panel in suite.panels
        for spec in selection.systems
        if _is_in(spec, panel)
        for case in _panel_cases(suite.name, panel, spec, selection, device)
    ]
    return list(dict.fromkeys(found))


def _is_in(spec: SystemSpec, panel: Panel) -> bool:
    named = spec.system in panel.systems and (not panel.backends or spec.backend in panel.backends)
    return named and panel.scope in spec.scopes and panel.phase in spec.phases


def _panel_cases(suite: str, panel: Panel, spec: SystemSpec, selection: Selection, device: str) -> Iterator[Case]:
    dtype = panel.dtype or ("bfloat16" if device == "cuda" else "float32")
    scope = {"scope": ("layer",)} if panel.scope == "layer" else {}
    # Settings that start an engine anew vary slowest.
    for size, options, state_dtype, context, batch in product(
        selection.sizes or panel.sizes,
        _combinations({**panel.options, **scope}),
        panel.state_dtypes or (spec.state_dtype or dtype,),
        sorted(selection.contexts or panel.contexts),
        sorted(selection.batches or panel.batches),
    ):
        yield Case(
            suite=suite,
            system=spec.system,
            backend=spec.backend,
            size=size,
            phase=panel.phase,
            batch=batch,
            context=context,
            dtype=dtype,
            state_dtype=state_dtype,
            timing=panel.timing or ("graph" if device == "cuda" and panel.phase == "generate" else "eager"),
            l2=panel.l2,
            options=options,
        )


def _combinations(axes: Mapping[str, Sequence[str | int]]) -> list[tuple[tuple[str, str | int], ...]]:
    names = sorted(axes)
    return [tuple(zip(names, values, strict=True)) for values in product(*(axes[name] for name in names))]


def beyond_memory(case: Case, earlier: Iterable[Record]) -> str:
    """Why a case of a panel that grows until memory ends need not be tried: the smaller batch that did not fit."""
    panels = [panel for panel in find_suite(case.suite).panels if panel.phase == case.phase]
    if not any(panel.grows for panel in panels):
        return ""
    for record in earlier:
        smaller = record.case.batch < case.batch and replace(record.case, batch=case.batch) == case
        if smaller and record.status == "oom":
            return f"batch {record.case.batch} did not fit"
        at_once = record.metrics.get("sequences_at_once") or record.case.batch
        if smaller and at_once < record.case.batch:
            return f"of batch {record.case.batch} only {at_once} sequences fitted at once, and were measured"
    return ""
