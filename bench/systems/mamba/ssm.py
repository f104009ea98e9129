"""Run Mamba and Mamba-2 in mamba-ssm; a timed forward also stores the final state."""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from bench.models.base import PackageModel, check_ids
from bench.models.config import MambaConfig, model_config
from bench.systems.mamba.scan import ScannedMamba, ScannedMamba2
from bench.systems.needs import cannot_import, no_gpu
from bench.systems.on_device import device
from bench.systems.tuned_model import TunedLanguageModel
from harness.measure.system import Skip, Workload
from harness.schema.case import Case

FORWARD_TOKENS = 131_072  # tokens per call, over all sequences


class MambaSSMModel(PackageModel):
    """Wrapper that gives mamba-ssm's MambaLMHeadModel the interface of `CausalLM`.

    layer: "Mamba1" or "Mamba2". The state is the package's InferenceParams; its tensors are updated in place.
    """

    def __init__(self, config: MambaConfig, layer: str, device: str, dtype: torch.dtype) -> None:
        from mamba_ssm.models.config_mamba import MambaConfig as PackageConfig
        from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel

        super().__init__()
        self.config, self.dtype = config, dtype
        package_config = PackageConfig(
            d_model=config.width, n_layer=config.layers, vocab_size=config.vocabulary, ssm_cfg={"layer": layer}
        )
        self.inner: Any = MambaLMHeadModel(package_config, device=device, dtype=dtype).eval()

    def init_state(self, batch: int, context: int = 0) -> Any:
        from mamba_ssm.utils.generation import InferenceParams

        states = self.inner.allocate_inference_cache(batch, context, dtype=self.dtype)
        return InferenceParams(max_seqlen=context, max_batch_size=batch, key_value_memory_dict=states)

    def reset_state(self, state: Any) -> None:
        state.seqlen_offset = 0
        # One launch for all tensors: a timed forward and a timed request include the reset.
        torch._foreach_zero_([tensor for tensors in state.key_value_memory_dict.values() for tensor in tensors])

    def prefill(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        check_ids(ids, 2, state.max_batch_size)
        rows = max(1, FORWARD_TOKENS // ids.shape[1])  # whole prompts: the package's scans start from empty states
        pieces = [slice(start, start + rows) for start in range(0, ids.shape[0], rows)]
        logits = [self._prefill_piece(ids[piece], state, piece) for piece in pieces]
        state.seqlen_offset = ids.shape[1]
        return torch.cat(logits) if len(logits) > 1 else logits[0], state

    def generate_step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        check_ids(ids, 1, state.max_batch_size)
        state.seqlen_offset += 1  # a nonzero offset chooses the step instead of the scan
        return self.inner(ids[:, None], inference_params=state, num_last_tokens=1).logits[:, 0], state

    def _prefill_piece(self, ids: Tensor, state: Any, piece: slice) -> Tensor:
        views = {
            index: tuple(tensor[piece] for tensor in tensors) for index, tensors in state.key_value_memory_dict.items()
        }
        piece_state = type(state)(max_seqlen=state.max_seqlen, max_batch_size=ids.shape[0], key_value_memory_dict=views)
        return self.inner(ids, inference_params=piece_state, num_last_tokens=1).logits[:, 0]


class MambaSSM(TunedLanguageModel):
    """Adapter of mamba/mamba-ssm: Mamba on its authors' kernels."""

    packages = ("mamba-ssm", "causal-conv1d")
    layer: ClassVar[str] = "Mamba1"

    def unavailable(self) -> str:
        return no_gpu() or cannot_import("mamba_ssm")

    def build(self, case: Case) -> Workload:
        config = model_config("mamba", case.size)
        assert isinstance(config, MambaConfig)
        if case.phase != "generate" and case.context > (longest := self.longest_prompt(config)):
            raise Skip(
                f"{case.system_backend} reads prompts of at most "
                f"{longest} tokens, because its kernels have 32-bit indices; this one has {case.context}"
            )
        return super().build(case)

    def longest_prompt(self, config: MambaConfig) -> int:
        """Return the longest prompt, in tokens, that causal-conv1d 1.7.0 can index with uint32."""
        return (1 << 32) // config.inner_width

    def settings(self, case: Case) -> dict[str, str]:
        """Add whether causal-conv1d is present: without it, mamba-ssm silently runs other code."""
        absent = cannot_import("causal_conv1d")
        prefill = {"prefill": "stores the state; logits of the last token"} if case.phase != "generate" else {}
        own = {"causal_conv1d": f"absent ({absent})" if absent else "present", "residual": "float32"}
        return super().settings(case) | own | prefill | {"reference_state": f"{case.dtype} in generate steps"}

    def load(self, case: Case) -> MambaSSMModel:
        """Return a random model; Mamba-1's x_proj is scaled so that logits depend on the state."""
        config = model_config("mamba", case.size)
        assert isinstance(config, MambaConfig)
        from bench.models.mamba import scale_b_and_c

        torch.manual_seed(0)
        model = MambaSSMModel(config, self.layer, device(), getattr(torch, case.dtype))
        if self.layer == "Mamba1":  # Mamba-2 needs no scaling: its B and C are as large as its other activations
            scale_b_and_c(model.inner, config)
        return model

    def reference(self, model: MambaSSMModel, dtype: torch.dtype) -> ScannedMamba:
        """Return a `ScannedMamba`, because transformers' Mamba would run mamba-ssm's kernels."""
        from bench.models.mamba import Mamba

        transformers = Mamba(model.config, device(), dtype)
        copy_weights(model.weights(), transformers.inner)
        return ScannedMamba(transformers.inner, device())

    def timed_check_reference(self, model: MambaSSMModel, dtype: torch.dtype, case: Case) -> ScannedMamba:
        """Return a reference whose generate steps round the state to mamba-ssm's dtype."""
        reference = self.reference(model, dtype)
        reference.stored, reference.prompt = model.dtype, 0 if case.phase == "generate" else case.context
        return reference

    def rounded_reference(self, model: MambaSSMModel, case: Case) -> None:
        """Return None, for fixed check limits: no reference rounds like mamba-ssm's kernels."""


class Mamba2SSM(MambaSSM):
    """Adapter of mamba2/mamba-ssm: Mamba-2 with the width and depth of the Mamba model."""

    layer = "Mamba2"

    def longest_prompt(self, config: MambaConfig) -> int:
        """Return the longest prompt, in tokens, whose in_proj output Triton can index with int32."""
        # a token's channels: inputs and z; B and C, 128 each; a time step per head of 64
        return (1 << 31) // (2 * config.inner_width + 2 * 128 + config.inner_width // 64)

    def cost_config(self, model: MambaSSMModel) -> MambaConfig:
        mixer = model.inner.backbone.layers[0].mixer
        return replace(model.config, state_dim=mixer.d_state, groups=mixer.ngroups, token_flops=5)

    def reference(self, model: MambaSSMModel, dtype: torch.dtype) -> ScannedMamba2:
        from transformers import Mamba2Config, Mamba2ForCausalLM

        mixer = model.inner.backbone.layers[0].mixer
        config = Mamba2Config(
            vocab_size=model.config.vocabulary,
            hidden_size=model.config.width,
            num_hidden_layers=model.config.layers,
            expand=model.config.expand,
            state_size=mixer.d_state,
            head_dim=mixer.headdim,
            num_heads=mixer.nheads,
            n_groups=mixer.ngroups,
            conv_kernel=mixer.d_conv,
            tie_word_embeddings=True,
        )
        with torch.device(device()):
            inner: Any = Mamba2ForCausalLM(config).eval().to(dtype)
        copy_weights(model.weights(), inner)
        return ScannedMamba2(inner, device())


@torch.no_grad()
def copy_weights(source: dict[str, Tensor], target: torch.nn.Module) -> None:
    """Copy weights with mamba-ssm's names to a transformers model; KeyError if one is missing."""
    named = dict(target.named_parameters())
    renamed = {name.replace("backbone.embedding.", "backbone.embeddings."): weight for name, weight in source.items()}
    if missing := set(named) - set(renamed):
        raise KeyError(f"no weight for {min(missing)}")
    for name, weight in renamed.items():
        named[name].copy_(weight)
