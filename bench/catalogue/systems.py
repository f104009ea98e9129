"""Every system and backend: label, marker, requirements and adapter.

Only a system's worker imports its adapter, so packages may conflict between environments.
To add a system, write its adapter and one entry here; for a backend, two entries (`CONTRIBUTING.md`).
"""

from dataclasses import dataclass, replace

ANYWHERE = ("cpu", "cuda")
BOTH, LAYER = ("model", "layer"), ("layer",)
FORWARD, PREFILL, GENERATE, NO_REQUEST = ("forward",), ("forward", "request"), ("generate",), ("forward", "generate")
VLLM, MAMBA = "make venv-vllm", "make venv-mamba"  # `make baselines` runs both
# Up to this many tokens a 1.3B model's forward is launch-bound on a slow host. Beyond them a graph only costs memory.
LAUNCH_BOUND_TOKENS = 8192


@dataclass(frozen=True)
class Adapter:
    """The adapter of a system on one backend.

    entry: MODULE:CLASS, then arguments of the class (see `harness.measure.system.SystemAdapter`).
    scopes: "model" for the whole language model, "layer" for one layer.
    state_dtype: of the recurrent state or KV cache, "" for the dtype of the weights.
    install: the command that installs its packages.
    devices: where it runs by default; on other devices it runs only if --systems names it.
    replays: whether a launch-bound forward is timed as replays of a CUDA graph.
    engine: whether it is an engine that times itself.
    headline: whether figures of the paper's results open with this backend of its system.
    slow: whether it is a slow reference, whose jobs run last.
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
        """The name SYSTEM/BACKEND."""
        return f"{self.system}/{self.backend}"


@dataclass(frozen=True)
class System:
    """A system with its label, colour and adapters.

    tone: index of its colour, 0 to 7. marker: one of `harness.schema.catalogue.MARKERS`.
    """

    name: str
    label: str
    family: str
    tone: int
    marker: str
    adapters: tuple[Adapter, ...]


@dataclass(frozen=True)
class Backend:
    """A backend with its label and the dash style of its lines in figures."""

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
    """Return the adapters that TTT-Linear and TTT-MLP share; those of kernels get their learner."""
    kernels, planes = f"bench.systems.ttt.kernels:TTTKernels:{learner}", "float32-planes"
    return (
        Adapter("thunderkittens", f"{kernels}:dual:thunderkittens", BOTH, "float32", phases=PREFILL, replays=True,
                headline=True),
        Adapter("triton", f"{kernels}:dual:triton", BOTH, "float32", phases=PREFILL, replays=True),
        Adapter("triton-dual", f"{kernels}:dual", BOTH, planes, phases=GENERATE, headline=True),
        Adapter("triton-primal", f"{kernels}:primal", BOTH, planes, phases=GENERATE),
        Adapter("vllm", "bench.systems.vllm.ttt:VllmTTT", state_dtype=planes, install=VLLM, engine=True),
        Adapter("torch-compile", "bench.systems.ttt.compiled:CompiledLayer", LAYER, "float32", phases=FORWARD,
                slow=True),
        Adapter("torch", "bench.systems.ttt.pytorch:TTTTorch", BOTH, "float32", devices=ANYWHERE, slow=True),
    )  # fmt: skip


_VLLM = "bench.systems.vllm.transformer"


def _transformers() -> tuple[Adapter, ...]:
    """Return the adapters of this repository's own Transformers."""
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
            *_ttt("linear"),
            Adapter("fla", "bench.systems.fla.layer:FlaTTTLinear", LAYER, "float32", MAMBA, FORWARD),
        ),
    ),
    System("ttt-mlp", "TTT-MLP", "TTT", 1, "square", _ttt("mlp")),
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
        "Transformer (GQA)",
        "attention",
        7,
        "diamond",
        (
            Adapter("vllm", f"{_VLLM}:VllmTransformer", install=VLLM, engine=True, headline=True),
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
    """Return every adapter with its system's name, in the order of jobs: headlines first, slow references last."""
    found = [replace(adapter, system=system.name) for system in SYSTEMS for adapter in system.adapters]
    return tuple(sorted(found, key=lambda adapter: (adapter.slow, not adapter.headline)))


ADAPTERS: tuple[Adapter, ...] = _all_adapters()
HEADLINES: tuple[str, ...] = tuple(adapter.label for adapter in ADAPTERS if adapter.headline)
