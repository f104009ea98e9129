"""Catalogue of adapters: which class runs a system on a backend, and what it requires.

Only a system's worker process imports its adapter, so two systems may need conflicting packages.
To add a system or a backend, write its adapter, an entry here and its label in `catalogue.toml` (`CONTRIBUTING.md`).
"""

from dataclasses import dataclass, replace

ANYWHERE = ("cpu", "cuda")
BOTH, LAYER = ("model", "layer"), ("layer",)
FORWARD, PROMPTS, GENERATE, NO_REQUEST = ("forward",), ("forward", "request"), ("generate",), ("forward", "generate")
VLLM, MAMBA = "make venv-vllm", "make venv-mamba"  # `make baselines` runs both
# Up to this many tokens a 1.3B model's forward is launch-bound on a slow host; with more, a graph only costs memory.
LAUNCH_BOUND_TOKENS = 8192


@dataclass(frozen=True)
class Adapter:
    """How to load and run a system on one backend: one row of the catalogue."""

    backend: str
    entry: str  # MODULE:CLASS:ARGUMENT:...; see `harness.measure.system.SystemAdapter`
    scopes: tuple[str, ...] = ("model",)  # "model" for the whole language model, "layer" for one layer
    state_dtype: str = ""  # of the recurrent state or KV cache; "" for the dtype of the weights
    install: str = "make bench"  # the command that installs its packages
    phases: tuple[str, ...] = ("forward", "generate", "request")
    devices: tuple[str, ...] = ("cuda",)  # by default; on other devices it runs if --systems names it
    replays: bool = False  # whether a launch-bound forward is timed as replays of a CUDA graph
    engine: bool = False  # a serving engine, such as vLLM, that times itself
    headline: bool = False  # whether figures of the paper's results show this backend of the system
    slow: bool = False  # a slow reference: its jobs run last, on a GPU only where a panel or --systems names it
    system: str = ""

    @property
    def label(self) -> str:
        return f"{self.system}/{self.backend}"


def _ttt(learner: str) -> tuple[Adapter, ...]:
    kernels, planes = f"bench.systems.ttt.kernels:TTTKernels:{learner}", "float32-planes"
    return (
        Adapter("thunderkittens", f"{kernels}:dual:thunderkittens", BOTH, "float32", phases=PROMPTS, replays=True,
                headline=True),
        Adapter("triton", f"{kernels}:dual:triton", BOTH, "float32", phases=PROMPTS, replays=True),
        Adapter("triton-dual", f"{kernels}:dual", BOTH, planes, phases=GENERATE, headline=True),
        Adapter("triton-primal", f"{kernels}:primal", BOTH, planes, phases=GENERATE),
        Adapter("vllm", "bench.systems.vllm.ttt:VllmTTT", state_dtype=planes, install=VLLM, engine=True),
        Adapter("torch", "bench.systems.ttt.model:TTTTorch", BOTH, "float32", devices=ANYWHERE, slow=True),
    )  # fmt: skip


_FLA = "bench.systems.fla"
_REGRESSOR = Adapter("fla", f"{_FLA}.regressors:FlaLayerAdapter", LAYER, "float32", MAMBA, FORWARD)
_TRANSFORMERS = (
    Adapter("vllm", "bench.systems.vllm.transformer:VllmTransformer", install=VLLM, engine=True, headline=True),
    Adapter("torch", "bench.systems.transformer.pytorch:TorchTransformer", devices=ANYWHERE, replays=True, slow=True),
)
_ADAPTERS: dict[str, tuple[Adapter, ...]] = {
    "ttt-linear": (*_ttt("linear"), _REGRESSOR),
    "ttt-mlp": _ttt("mlp"),
    "transformer": _TRANSFORMERS,
    "mamba": (
        Adapter("mamba-ssm", "bench.systems.mamba.ssm:MambaSSM", install=MAMBA, replays=True, headline=True),
        Adapter("vllm", "bench.systems.vllm.mamba:VllmMamba", install=VLLM, engine=True),
        Adapter("torch", "bench.systems.mamba.pytorch:TorchMamba", devices=("cpu",), slow=True),
    ),
    "transformer-gqa": _TRANSFORMERS,
    "mamba2": (Adapter("mamba-ssm", "bench.systems.mamba.ssm:Mamba2SSM", install=MAMBA, replays=True),),
    "mamba3": (Adapter("mamba-ssm", "bench.systems.mamba.mamba3:Mamba3SSM", LAYER, "float32", MAMBA, FORWARD),),
    "gated-deltanet": (
        Adapter("fla", f"{_FLA}.models:GatedDeltaNet", BOTH, "float32", MAMBA, NO_REQUEST, replays=True),
    ),
    "gated-deltanet-128": (_REGRESSOR,),
    "kda": (_REGRESSOR,),
    "deltaproduct": (_REGRESSOR,),
    "mesanet": (_REGRESSOR,),
    "rwkv7": (Adapter("fla", f"{_FLA}.models:RWKV7", ("model",), "float32", MAMBA, NO_REQUEST, replays=True),),
}
# In the order in which jobs run: headline backends first, slow references last, otherwise as in `_ADAPTERS`.
ADAPTERS: tuple[Adapter, ...] = tuple(
    sorted(
        (replace(adapter, system=name) for name, adapters in _ADAPTERS.items() for adapter in adapters),
        key=lambda adapter: (adapter.slow, not adapter.headline),
    )
)
HEADLINES: tuple[str, ...] = tuple(adapter.label for adapter in ADAPTERS if adapter.headline)
