"""Run a TTT checkpoint with transformers' `generate()`; on CUDA, with the project's kernels."""

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers.generation import GenerationConfig, GenerationMixin
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.configuration_auto import AutoConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.models.mamba.modeling_mamba import MambaCausalLMOutput

from bench.models import checkpoint
from bench.models.fused import FusedBlock
from bench.models.hugging_face import config_values, read_config, read_json
from bench.models.kernel_operator import KernelOperator
from bench.models.ttt import TTTModel
from bench.serving.hugging_face import HuggingFaceConfig


class HuggingFaceTTT(PreTrainedModel, GenerationMixin):
    """A TTT model for transformers' greedy search and sampling, with prompts of equal length."""

    config_class = HuggingFaceConfig
    _is_stateful = True

    def __init__(self, config: HuggingFaceConfig, ttt: TTTModel) -> None:
        super().__init__(config)
        self.ttt = ttt

    @classmethod
    def from_pretrained(cls, folder: str | Path, *rest: Any, config: Any = None, **options: Any) -> Self:
        """Load a checkpoint folder onto one device; `options` other than the following are ignored.

        device_map: the device, such as "cuda:0". None or "auto": a GPU if there is one, otherwise the CPU.
        dtype, torch_dtype: dtype of the projections. Neither, or "auto": bfloat16 on a GPU, float32 on a CPU.
        Raises CheckpointError if the checkpoint is unusable, and ValueError if `device_map` is not one device or
        `config` differs from config.json.
        """
        chosen = options.get("device_map")
        default = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            device = torch.device(default if chosen in (None, "auto") else chosen)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"device_map {chosen}: name one device, such as 'cuda'") from error
        dtype = options.get("dtype") or options.get("torch_dtype")
        dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype  # "auto": by the device
        kernels: dict[str, Any] = {}
        if device.type == "cuda":
            kernels = {"operator": KernelOperator(read_config(folder).learner), "block": FusedBlock}
        model = checkpoint.load(folder, device, dtype, **kernels)
        assert isinstance(model, TTTModel)
        made = cls(config or HuggingFaceConfig.from_pretrained(folder), model).eval()
        for key, value in config_values(model.config).items():
            if (given := getattr(made.config, key, None)) not in (None, value):
                raise ValueError(f"{key} = {given}: the checkpoint has {value}; edit its config.json")
        if (file := Path(folder) / "generation_config.json").exists():
            made.generation_config = GenerationConfig.from_dict(read_json(file))
        return made

    def save_pretrained(self, save_directory: str | Path, **rest: Any) -> None:
        """Save a checkpoint folder with the model's dtype; other arguments are ignored."""
        dtype = str(self.ttt.dtype).removeprefix("torch.")
        checkpoint.save(self.ttt, save_directory, self.config.to_diff_dict() | {"dtype": dtype})
        self.generation_config.save_pretrained(save_directory)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, cache: Any = None, attention_mask: Tensor | None = None, **rest: Any
    ) -> dict[str, Any]:
        ids = input_ids if cache is None else input_ids[:, -1:]
        return {"input_ids": ids, "cache": cache, "attention_mask": attention_mask}

    def forward(self, input_ids: Tensor, cache: Any = None, **rest: Any) -> MambaCausalLMOutput:
        """Return the logits [B, 1, V] after the last token, and the state as `cache`.

        input_ids: the prompts [B, T] if `cache` is None, otherwise the next token of each sequence [B, 1].
        cache: the state from the previous call, updated in place. None: start from an empty state.
        With use_cache=False, return no state.
        Raises ValueError if `attention_mask` has a zero, and for several tokens with a cache.
        """
        if (mask := rest.get("attention_mask")) is not None and not mask.all():
            raise ValueError("attention_mask with zeros: prompts must have one length; call generate() for each length")
        if cache is None:
            logits, state = self.ttt.prefill(input_ids, self.ttt.init_state(len(input_ids)))
            cache = self.ttt.generate_state(state)
        else:
            if input_ids.shape[1] > 1:
                raise ValueError(f"{input_ids.shape[1]} tokens with a cache: pass one token of each sequence at a time")
            logits, _ = self.ttt.generate_step(input_ids[:, 0], cache)
        return MambaCausalLMOutput(logits=logits[:, None], cache=None if rest.get("use_cache") is False else cache)


def register() -> None:
    """Register TTT models in transformers' auto classes; repeated calls are safe."""
    AutoConfig.register(HuggingFaceConfig.model_type, HuggingFaceConfig, exist_ok=True)
    AutoModelForCausalLM.register(HuggingFaceConfig, HuggingFaceTTT, exist_ok=True)
