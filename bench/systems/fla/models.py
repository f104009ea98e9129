"""Run Gated DeltaNet and RWKV-7 in flash-linear-attention at size 1.3b."""

from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from bench.models.base import PackageModel, check_ids
from bench.models.config import SIZES, VOCABULARY, DeltaRuleConfig, split_size
from bench.systems.fla.regressors import FlaLayerAdapter
from bench.systems.model_calls import STEPS, greedy_steps, last_logits, random_ids
from bench.systems.needs import cannot_import, import_or_skip, no_gpu
from bench.systems.on_device import device
from bench.systems.phases import Forward, Generate, LogitsAfter, PhaseWork, logits_along
from bench.systems.regressor import SIZE
from bench.systems.triton_tuning import compile_ahead, untuned
from bench.systems.tuned_model import TunedLanguageModel
from harness.measure.correctness import Checks
from harness.measure.system import Skip, Workload
from harness.schema.case import Case

# Prompt tokens per call: enough to fill an H100, few enough that the states of all chunks fit in its memory.
FORWARD_TOKENS = 131_072
# The package runs pieces below 64 tokens on its recurrent kernels, longer ones on its chunked kernels.
RECURRENT_TOKENS = 32
# Longest prompt that is checked with the recurrent kernels, whose pieces are slow to launch.
RECURRENT_CHECKED_TOKENS = 2048
SAME_KERNELS = (
    f"timed logits of prompts of more than {RECURRENT_CHECKED_TOKENS} tokens were compared with the same kernels on"
    " pieces of the prompts, because the recurrent kernels would take too long"
)


class FlaModel(PackageModel):
    """A language model of flash-linear-attention with the interface of `CausalLM`.

    inner: the package's model. piece: tokens of each prompt per call of `inner`; 0 stands for FORWARD_TOKENS / batch.
    """

    def __init__(self, inner: Any, piece: int = 0) -> None:
        super().__init__()
        self.inner, self.piece = inner, piece
        self.config = SimpleNamespace(vocabulary=inner.config.vocab_size, width=inner.config.hidden_size)

    def init_state(self, batch: int, context: int = 0) -> Any:
        from fla.models.utils import Cache

        return Cache()

    def reset_state(self, state: Any) -> None:
        # the package's own `reset` left the states in the cache before release 0.5.1
        state.__init__()

    def prefill(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        check_ids(ids, 2, ids.shape[0])
        for piece in self._pieces(ids):
            out = self.inner(piece, past_key_values=state, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1], state

    def logits(self, ids: Tensor, last: int) -> Tensor:
        state, logits = self.init_state(len(ids)), []
        for piece in self._pieces(ids):
            out = self.inner(piece, past_key_values=state, use_cache=True, logits_to_keep=piece.shape[1])
            logits.append(out.logits)
        return torch.cat(logits, dim=1)[:, -last:]

    def generate_step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        out = self.inner(ids[:, None], past_key_values=state, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1], state

    def _pieces(self, ids: Tensor) -> tuple[Tensor, ...]:
        return ids.split(self.piece or max(1, FORWARD_TOKENS // len(ids)), dim=1)


class FlaWork(PhaseWork):
    """Base class of fla's timed work; checks do not tune kernels, because tuning takes minutes."""

    def checks(self, logits: Tensor, rows: list[int], *rest: Any, **named: Any) -> Checks:
        def read_pieces() -> None:
            for model in filter(None, (self.reference(), self.rounded_reference())):
                last_logits(model, random_ids(model, len(rows), model.piece))

        with untuned(read_pieces):
            return super().checks(logits, rows, *rest, **named)


class FlaForward(FlaWork, Forward):
    """Timed forward; long prompts are checked against the same kernels on pieces of the prompt."""

    @property
    def _is_long(self) -> bool:
        return self.case.context > RECURRENT_CHECKED_TOKENS

    def reference(self) -> Any:
        return FlaModel(self.model.inner, RECURRENT_CHECKED_TOKENS) if self._is_long else super().reference()

    def rounded_reference(self) -> Any:
        return None if self._is_long else super().rounded_reference()

    def checks(self, *given: Any, **named: Any) -> Checks:
        found = super().checks(*given, **named)
        return found + Checks([], SAME_KERNELS) if self._is_long else found


class FlaGenerate(FlaWork, Generate):
    """Timed generate: each call runs greedy steps from the same state, reached after one token."""

    renews_past = False  # a CUDA graph starts at the tensors of its capture

    def prepare(self) -> None:
        self.settings = {"prompt_tokens": "1"}
        self.ids = random_ids(self.model, self.case.batch)
        self._before = random_ids(self.model, self.case.batch)
        compile_ahead(self.restart)
        self.restart()

    @torch.inference_mode()
    def restart(self) -> None:
        self.state, self._first = None, []
        self.state = self.model.generate_step(self._before, self.model.init_state(self.case.batch))[1]
        self._first = [dict(layer.state) for layer in self.state.layers]

    @torch.inference_mode()
    def run(self) -> tuple[Tensor, Tensor]:
        for layer in self.state.layers:
            layer.state = layer.state | {"conv_state": _cloned(layer.state.get("conv_state"))}  # steps overwrite it
        found = greedy_steps(self.model, self.ids, self.state, STEPS)
        # Restored here, not in the next call, because then a capture would need memory for a third copy of the states.
        for layer, tensors in zip(self.state.layers, self._first, strict=True):
            layer.state = dict(tensors)
        return found

    @property
    def compared_tokens(self) -> int:
        return STEPS  # the reference also reads one earlier token

    def copy_rows(self, rng: Random, rows: list[int]) -> list[int]:
        """Copy nothing, because initial states differ; return each sequence's own index, 0 to B - 1."""
        return [*range(self.case.batch)]

    def new_past(self, rows: list[int], sources: list[int]) -> LogitsAfter:
        return lambda model, some, tokens, numbers: logits_along(model, self._before[some, None], tokens, numbers)


def _cloned(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.clone()
    return None if state is None else tuple(map(_cloned, state))


class Fla(TunedLanguageModel):
    """Base class of the adapters of flash-linear-attention's language models.

    Subclasses set `classes` (names of the configuration class and the model class) and `shape` (configuration values).
    """

    packages = ("flash-linear-attention", "triton")
    # No request: the package allocates a new state at every step, which a CUDA graph cannot replay.
    phases: ClassVar[dict[str, type[PhaseWork]]] = {"forward": FlaForward, "generate": FlaGenerate}
    check_prompt = 100  # longer than one chunk, and not a multiple of it
    classes: ClassVar[tuple[str, str]]
    shape: ClassVar[dict[str, Any]]

    def unavailable(self) -> str:
        return no_gpu() or cannot_import("fla")

    def settings(self, case: Case) -> dict[str, str]:
        return super().settings(case) | {"kernels": "recurrent" if case.phase == "generate" else "chunked"}

    def build(self, case: Case) -> Workload:
        if case.option("scope", "model") == "layer":
            return FlaLayerAdapter().build(case)
        return super().build(case)

    def load(self, case: Case) -> FlaModel:
        """Return fla's model with seeded random weights, even in matrices that fla sets to zero."""
        import_or_skip("fla.models")
        import fla.models

        size, layers = split_size(case.size)
        if size != SIZE:
            raise Skip(f"{case.system} supports only the size {SIZE}")
        config_class, model_class = (getattr(fla.models, name) for name in self.classes)
        shape = self.shape | ({"num_hidden_layers": layers} if layers else {})
        config = config_class(vocab_size=VOCABULARY, tie_word_embeddings=True, **shape)
        torch.manual_seed(0)
        with torch.device(device()):
            inner = model_class(config)
        for weight in inner.parameters():
            if weight.dim() > 1 and not weight.any():
                torch.nn.init.normal_(weight, std=config.initializer_range)
        return FlaModel(inner.to(getattr(torch, case.dtype)).eval())

    def reference(self, model: FlaModel, dtype: torch.dtype) -> FlaModel:
        config = type(model.inner.config).from_dict(model.inner.config.to_dict())
        with torch.device(device()):
            inner = type(model.inner)(config).to(dtype).eval()
        with torch.no_grad():
            inner.load_state_dict(model.inner.state_dict())
        return FlaModel(inner, RECURRENT_TOKENS)

    def rounded_reference(self, model: FlaModel, case: Case) -> FlaModel | None:
        return None if case.dtype == "float32" else FlaModel(model.inner, RECURRENT_TOKENS)


class GatedDeltaNet(Fla):
    """Adapter of gated-deltanet/fla: 21 blocks; 6 heads with 256 key and 512 value channels."""

    classes = ("GatedDeltaNetConfig", "GatedDeltaNetForCausalLM")
    shape: ClassVar[dict[str, Any]] = {"hidden_size": SIZES[SIZE].width, "num_hidden_layers": 21}

    def cost_config(self, model: FlaModel) -> DeltaRuleConfig:
        config = model.inner.config
        key_dim, value_dim = config.head_dim, int(config.head_dim * config.expand_v)
        heads = config.num_heads
        return DeltaRuleConfig(
            config.hidden_size,
            config.num_hidden_layers,
            heads,
            key_dim,
            value_dim,
            token_flops=7,  # per state element: decay 1, prediction 2, update 2, output 2 (arXiv 2412.06464)
            convolved=heads * (2 * key_dim + value_dim),
            vocabulary=config.vocab_size,
        )


class RWKV7(Fla):
    """Adapter of rwkv7/fla: 24 blocks, 64-channel heads, RWKV-7 World 1.5B's low-rank sizes."""

    classes = ("RWKV7Config", "RWKV7ForCausalLM")
    shape: ClassVar[dict[str, Any]] = {
        "hidden_size": SIZES[SIZE].width,
        "num_hidden_layers": 24,
        "decay_low_rank_dim": 96,
        "a_low_rank_dim": 96,
        "v_low_rank_dim": 64,
        "gate_low_rank_dim": 256,
    }

    def cost_config(self, model: FlaModel) -> DeltaRuleConfig:
        config = model.inner.config
        return DeltaRuleConfig(  # omits the inputs of the token shift, which have 2% of the state's bytes
            config.hidden_size,
            config.num_hidden_layers,
            config.num_heads,
            config.head_dim,
            config.value_dim[0] // config.num_heads,
            token_flops=9,  # per state element: decay 1, removal 4, addition 2, output 2 (arXiv 2503.14456)
            vocabulary=config.vocab_size,
        )

    def settings(self, case: Case) -> dict[str, str]:
        """Add fla's warning that its RWKV-7, which is also the reference, may be incorrect."""
        warning = "flash-linear-attention warns that its RWKV-7 may be incorrect, according to RWKV's author"
        return super().settings(case) | {"warning": warning}
