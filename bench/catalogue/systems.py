"""Every system and backend that can be measured: label, look, what it needs, and the adapter that runs it.

An adapter is imported only in its worker, so that this list costs nothing and systems whose packages conflict can live
in environments of their own. To add a system, write its adapter and one entry here; to add a backend, its adapter and
two (`CONTRIBUTING.md`).
"""

from dataclasses import dataclass, replace

ANYWHERE = ("cpu", "cuda")
BOTH, LAYER = ("model", "layer"), ("layer",)
FORWARD, PREFILL, GENERATE, NO_REQUEST = ("forward",), ("forward", "request"), ("generate",), ("forward", "generate")
VLLM, MAMBA = "make venv-vllm", "make venv-mamba"  # what installs them; `make baselines` does both
# A prefill of so many tokens may be shorter than its launches from Python: those of a 1.3B model take 1 ms a layer, the
# work of 2,048 tokens half of that, so that they break even at 4,096 on a fast host, and later on a slow one. Beyond it
# a graph would only hold memory.
LAUNCH_BOUND_TOKENS = 8192


@dataclass(frozen=True)
class Adapter:
    """What runs a system on one backend.

    entry: MODULE:CLASS (see `harness.SystemAdapter`). scopes: the whole language model, or one layer of it.
    state_dtype: of the recurrent state or cache, "" for the type of the weights. install: what makes it available.
    devices: elsewhere it is left out, unless it is named. replays: whether a prefill that is shorter than its launches
    is timed as replays of a CUDA graph. engine: whether it times itself. headline: whether it answers the paper's
    figures for its system. slow: a reference that runs after all others.
    """

    backend: str
    entry: str
    scopes: tuple[str, ...] = ("model",)
    state_dtype: str = ""
    install: str = "make bench"
    phases: tuple[str, ...] = ("forward", "generate", "request")
    devices: tuple[str, ...] = ("cuda",)
    replays: bool = False
    engine: bool = False
    headline: bool = False
    slow: bool = False
    system: str = ""

    @property
    def label(self) -> str:
        """SYSTEM/BACKEND, as the command line and systems.toml name it."""
        return f"{self.system}/{self.backend}"


@dataclass(frozen=True)
class System:
    """A system as it is called and drawn, and what runs it.

    tone: index of its colour, 0 to 7. marker: circle, square, diamond, triangle-up, pentagon, triangle-down or star
    (`harness.schema.catalogue.MARKERS`).
    """

    name: str
    label: str
    family: str
    tone: int
    marker: str
    adapters: tuple[Adapter, ...]


@dataclass(frozen=True)
class Backend:
    """What a backend is called, and the dash of its lines."""

    name: str
    label: str
    dash: str = "solid"


BACKENDS: tuple[Backend, ...] = (
    Backend("thunderkittens", "ThunderKittens"),
    Backend("mamba-ssm", "mamba-ssm"),
    Backend("vllm", "vLLM"),
    Backend("triton", "Triton", "dash"),
    Backend("triton-dual", "Triton dual"),
    Backend("flash-attn", "PyTorch + FlashAttention", "dash"),
    Backend("triton-primal", "Triton primal", "dashdot"),
    Backend("torch", "PyTorch", "dot"),
    Backend("torch-compile", "torch.compile", "longdashdot"),
    Backend("fla", "flash-linear-attention", "longdash"),
)


def _ttt(learner: str) -> tuple[Adapter, ...]:
    """The backends of both TTT layers; learner is "Linear" or "MLP"."""
    kernels, compiled = "bench.systems.ttt.kernels", "bench.systems.ttt.compiled"
    planes = "float32-planes"
    return (
        Adapter("thunderkittens", f"{kernels}:{learner}ThunderKittens", BOTH, "float32", phases=PREFILL, replays=True,
                headline=True),
        Adapter("triton", f"{kernels}:{learner}Triton", BOTH, "float32", phases=PREFILL, replays=True),
        Adapter("triton-dual", f"{kernels}:{learner}TritonDual", BOTH, planes, phases=GENERATE, headline=True),
        Adapter("triton-primal", f"{kernels}:{learner}TritonPrimal", BOTH, planes, phases=GENERATE),
        Adapter("torch-compile", f"{compiled}:Compiled{learner}", LAYER, "float32", phases=FORWARD, slow=True),
        Adapter("torch", "bench.systems.ttt.pytorch:TTTTorch", BOTH, "float32", devices=ANYWHERE, slow=True),
    )  # fmt: skip


_VLLM = "bench.systems.vllm.transformer"


def _transformers() -> tuple[Adapter, ...]:
    """The backends of this repository's Transformers."""
    attention, pytorch = "bench.systems.transformer.attention", "bench.systems.transformer.pytorch"
    return (
        Adapter("flash-attn", f"{attention}:FlashAttn", install=VLLM, replays=True),
        Adapter("torch", f"{pytorch}:TorchTransformer", devices=ANYWHERE, replays=True, slow=True),
    )


SYSTEMS: tuple[System, ...] = (
    System(
        "ttt-linear",
        "TTT-Linear",
        "TTT",
        0,
        "circle",
        (
            *_ttt("Linear"),
            Adapter("fla", "bench.systems.fla.layer:FlaTTTLinear", LAYER, "float32", MAMBA, FORWARD),
        ),
    ),
    System("ttt-mlp", "TTT-MLP", "TTT", 1, "square", _ttt("MLP")),
    System(
        "transformer",
        "Transformer",
        "attention",
        2,
        "diamond",
        (
            Adapter("vllm", f"{_VLLM}:VllmTransformer", install=VLLM, engine=True, headline=True),
            *_transformers(),
        ),
    ),
    System(
        "transformer-gqa",
        "Transformer, GQA",
        "attention",
        7,
        "diamond",
        (
            Adapter("vllm", f"{_VLLM}:VllmGroupedQueryTransformer", install=VLLM, engine=True, headline=True),
            *_transformers(),
        ),
    ),
    System(
        "mamba",
        "Mamba",
        "state space",
        3,
        "triangle-up",
        (
            Adapter("mamba-ssm", "bench.systems.mamba.ssm:MambaSSM", install=MAMBA, replays=True, headline=True),
            Adapter("vllm", "bench.systems.vllm.mamba:VllmMamba", install=VLLM, engine=True),
            Adapter("torch", "bench.systems.mamba.pytorch:TorchMamba", devices=("cpu",), slow=True),
        ),
    ),
    System(
        "mamba2",
        "Mamba-2",
        "state space",
        4,
        "pentagon",
        (Adapter("mamba-ssm", "bench.systems.mamba.ssm:Mamba2SSM", install=MAMBA, replays=True),),
    ),
    System(
        "gated-deltanet",
        "Gated DeltaNet",
        "linear attention",
        5,
        "triangle-down",
        (Adapter("fla", "bench.systems.fla.models:GatedDeltaNet", BOTH, "float32", MAMBA, NO_REQUEST, replays=True),),
    ),
    *(
        System(
            name,
            label,
            "linear attention",
            tone,
            marker,
            (Adapter("fla", "bench.systems.fla.regressors:Regressor", LAYER, "float32", MAMBA, FORWARD),),
        )
        for name, label, tone, marker in (
            ("kda", "Kimi Delta Attention", 5, "square"),
            ("deltaproduct", "Gated DeltaProduct", 6, "circle"),
        )
    ),
    System(
        "rwkv7",
        "RWKV-7",
        "linear attention",
        6,
        "star",
        (Adapter("fla", "bench.systems.fla.models:RWKV7", ("model",), "float32", MAMBA, NO_REQUEST, replays=True),),
    ),
)


def _all_adapters() -> tuple[Adapter, ...]:
    """Every adapter under its system's name, in the order in which jobs run: headlines first, slow references last."""
    found = [replace(adapter, system=system.name) for system in SYSTEMS for adapter in system.adapters]
    return tuple(sorted(found, key=lambda adapter: (adapter.slow, not adapter.headline)))


ADAPTERS: tuple[Adapter, ...] = _all_adapters()
HEADLINES: tuple[str, ...] = tuple(adapter.label for adapter in ADAPTERS if adapter.headline)
