"""The Mamba baseline, as Hugging Face's package transformers implements it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, MambaForCausalLM
from transformers import MambaConfig as TransformersMambaConfig

from bench.models.base import PackageModel, check_ids
from bench.models.config import CONV_KERNEL, MambaConfig
from bench.models.layers import INITIALIZER_RANGE, at_least_float32, layer_range

BC_STD = 96  # standard deviation of x_proj's rows for B and C, times the width


@dataclass
class MambaState:
    """State per layer: conv inputs [B, inner_width, 4], SSM state [B, inner_width, state_dim]."""

    batch: int
    cache: DynamicCache


class Mamba(PackageModel):
    """Transformers' Mamba, with its parameter names; runs mamba-ssm's kernels where installed.

    The scan always starts from a zero state, so only a state's first prompt is scanned. Later prompts run token by
    token. PyTorch's scan holds a float32 tensor [B, inner_width, T, state_dim], so its memory grows with T.
    """

    def __init__(
        self, config: MambaConfig, device: torch.device | str, dtype: torch.dtype, seed: int | None = None
    ) -> None:
        """Build the model. seed: for random weights; None leaves them undefined until loaded."""
        super().__init__()
        self.config, device = config, torch.device(device)
        if seed is None:
            with torch.device("meta"):  # on other devices, transformers draws random weights, which is slow
                self.inner: Any = MambaForCausalLM(transformers_config(config)).eval()
            self.inner.to_empty(device=device).tie_weights()
        else:
            with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
                torch.manual_seed(seed)
                self.inner = MambaForCausalLM(transformers_config(config)).eval()
            scale_b_and_c(self.inner, config)
        mixers = [layer.mixer for layer in self.inner.backbone.layers]
        wide = {weight for mixer in mixers for weight in (mixer.A_log, mixer.D, mixer.dt_proj.bias)}
        for weight in self.inner.parameters():
            weight.data = weight.data.to(at_least_float32(dtype) if weight in wide else dtype)

    def init_state(self, batch: int, context: int = 0) -> MambaState:
        cache: Any = DynamicCache(config=self.inner.config)
        weight, inner_width = self.inner.lm_head.weight, self.config.inner_width
        for layer in cache.layers:
            layer.lazy_initialization(
                conv_states=weight.new_zeros(batch, inner_width, CONV_KERNEL),
                recurrent_states=weight.new_zeros(
                    batch, inner_width, self.config.state_dim, dtype=at_least_float32(weight.dtype)
                ),
            )
        return MambaState(batch, cache)

    def reset_state(self, state: MambaState) -> None:
        state.cache.reset()

    @torch.no_grad()
    def prefill(self, ids: Tensor, state: MambaState) -> tuple[Tensor, MambaState]:
        check_ids(ids, 2, state.batch)
        chunks = ids.split(1, dim=1) if state.cache.has_previous_state() else (ids,)
        for chunk in chunks:
            hidden = self._hidden(chunk, state)
        return self._logits(hidden[:, -1]), state

    @torch.no_grad()
    def generate_step(self, ids: Tensor, state: MambaState) -> tuple[Tensor, MambaState]:
        check_ids(ids, 1, state.batch)
        return self._logits(self._hidden(ids[:, None], state)[:, 0]), state

    @property
    def tied(self) -> dict[str, str]:
        return {"lm_head.weight": "backbone.embeddings.weight"}

    def _hidden(self, ids: Tensor, state: MambaState) -> Tensor:
        backbone = self.inner.backbone
        h = backbone.embeddings(ids)
        for index, layer in enumerate(backbone.layers):
            with layer_range(index):
                h = layer(h, cache_params=state.cache)
        return h

    def _logits(self, hidden: Tensor) -> Tensor:
        head = self.inner.lm_head
        return head(self.inner.backbone.norm_f(hidden).to(head.weight.dtype))


@torch.no_grad()
def scale_b_and_c(model: nn.Module, config: MambaConfig) -> None:
    """Scale the random weights for Mamba's B and C, so that the state visibly affects logits."""
    for name, weight in model.named_parameters():
        if name.endswith("x_proj.weight"):
            rows = weight[config.time_step_rank :]
            # Otherwise, the state would add so little to a tiny model's output that bfloat16 would hide a wrong scan.
            rows *= BC_STD / config.width / rows.std()


def transformers_config(config: MambaConfig) -> TransformersMambaConfig:
    """Convert `config` to transformers' configuration class; vLLM reads this class too."""
    return TransformersMambaConfig(
        vocab_size=config.vocabulary,
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        state_size=config.state_dim,
        expand=config.expand,
        conv_kernel=CONV_KERNEL,
        time_step_rank=config.time_step_rank,
        tie_word_embeddings=True,
        # The authors' initial weights; the defaults of transformers give models that are chaotic in bfloat16.
        initializer_range=INITIALIZER_RANGE,
        rescale_prenorm_residual=True,
    )
