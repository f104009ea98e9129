"""What can be measured: every system and backend, in one list.

An adapter is imported only in its worker, so that this list costs nothing and systems whose requirements conflict
can live in environments of their own.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class SystemSpec:
    """A system on one backend, and the adapter (`module:class`, see `harness.worker.System`) that runs it."""

    system: str
    backend: str
    adapter: str
    # What it can run: the whole language model, or one layer of it (the kernel suites).
    scopes: tuple[str, ...] = ("model",)
    # The type of the recurrent state or of the KV cache; "" is the model's own.
    state_dtype: str = ""
    install: str = "make bench"
    phases: tuple[str, ...] = ("forward", "generate", "request")
    # Elsewhere it is left out, unless it is named.
    devices: tuple[str, ...] = ("cuda",)

    @property
    def label(self) -> str:
        """`system/backend`, as the command line and systems.toml name it."""
        return f"{self.system}/{self.backend}"


# `make baselines` makes both, and a systems.toml that names them.
VLLM, MAMBA = "make venv-vllm", "make venv-mamba"

ANYWHERE = ("cpu", "cuda")
BOTH, LAYER = ("model", "layer"), ("layer",)
FORWARD, PREFILL, GENERATE = ("forward",), ("forward", "request"), ("generate",)
KERNELS, COMPILED = "bench.systems.ttt_kernels", "bench.systems.torch_compiled"
FLA, NO_REQUEST = "bench.systems.fla", ("forward", "generate")

SYSTEMS: tuple[SystemSpec, ...] = (
    SystemSpec("ttt-linear", "torch", "bench.systems.ttt_torch:TTTLinear", BOTH, "float32", devices=ANYWHERE),
    SystemSpec("ttt-mlp", "torch", "bench.systems.ttt_torch:TTTMLP", BOTH, "float32", devices=ANYWHERE),
    SystemSpec("ttt-linear", "torch-compile", f"{COMPILED}:CompiledLinear", LAYER, "float32", phases=FORWARD),
    SystemSpec("ttt-mlp", "torch-compile", f"{COMPILED}:CompiledMLP", LAYER, "float32", phases=FORWARD),
    SystemSpec("transformer", "torch", "bench.systems.torch_transformer:TorchTransformer", devices=ANYWHERE),
    SystemSpec("mamba", "torch", "bench.systems.torch_mamba:TorchMamba", devices=("cpu",)),
    SystemSpec("ttt-linear", "thunderkittens", f"{KERNELS}:LinearThunderKittens", BOTH, "float32", phases=PREFILL),
    SystemSpec("ttt-mlp", "thunderkittens", f"{KERNELS}:MLPThunderKittens", BOTH, "float32", phases=PREFILL),
    SystemSpec("ttt-linear", "triton-dual", f"{KERNELS}:LinearTritonDual", BOTH, "float32-planes", phases=GENERATE),
    SystemSpec("ttt-mlp", "triton-dual", f"{KERNELS}:MLPTritonDual", BOTH, "float32-planes", phases=GENERATE),
    SystemSpec("ttt-linear", "triton-primal", f"{KERNELS}:LinearTritonPrimal", BOTH, "float32-planes", phases=GENERATE),
    SystemSpec("ttt-mlp", "triton-primal", f"{KERNELS}:MLPTritonPrimal", BOTH, "float32-planes", phases=GENERATE),
    SystemSpec("transformer", "vllm", "bench.systems.vllm_transformer:VllmTransformer", install=VLLM),
    SystemSpec("transformer", "sdpa-cudnn", "bench.systems.flash_transformer:SdpaCudnn"),
    SystemSpec("transformer", "sdpa-flash", "bench.systems.flash_transformer:SdpaFlash"),
    SystemSpec("transformer", "flash-attn", "bench.systems.flash_transformer:FlashAttn", install=VLLM),
    SystemSpec("mamba", "vllm", "bench.systems.vllm_mamba:VllmMamba", install=VLLM),
    SystemSpec("mamba", "mamba-ssm", "bench.systems.mamba_ssm:MambaSSM", install=MAMBA),
    SystemSpec("mamba2", "mamba-ssm", "bench.systems.mamba_ssm:Mamba2SSM", install=MAMBA),
    SystemSpec("ttt-linear", "fla", f"{FLA}_layer:FlaTTTLinear", LAYER, "float32", MAMBA, phases=FORWARD),
    SystemSpec("gated-deltanet", "fla", f"{FLA}_models:GatedDeltaNet", ("model",), "float32", MAMBA, phases=NO_REQUEST),
    SystemSpec("rwkv7", "fla", f"{FLA}_models:RWKV7", ("model",), "float32", MAMBA, phases=NO_REQUEST),
)
