"""Model configurations: sizes, options, parameter counts. Imports no torch."""

import math
from dataclasses import dataclass, field, replace

from bench.errors import UserError
from tk_kernels import ROPE_THETA

VOCABULARY = 32000
QUERY_GROUP = 4  # query heads of one KV head in transformer-gqa
CONV_KERNEL = 4
NORM_EPS = 1e-6


class ConfigError(UserError):
    """A model that cannot be built; the message names the wrong value and the allowed values."""


class CheckpointError(UserError):
    """An unusable checkpoint or folder; the message says what is wrong and where."""


@dataclass(frozen=True)
class Shape:
    width: int
    ffn_width: int
    layers: int
    heads: int


# Paper, appendix "Training details": GPT-3's sizes with Llama's SwiGLU. `tiny` is for tests and quick runs.
SIZES = {
    "tiny": Shape(128, 384, 2, 2),
    "125m": Shape(768, 2048, 12, 12),
    "350m": Shape(1024, 2736, 24, 16),
    "760m": Shape(1536, 4096, 24, 16),
    "1.3b": Shape(2048, 5504, 24, 32),
}
MODELS = ("ttt-linear", "ttt-mlp", "transformer", "transformer-gqa", "mamba")
BACKBONES = ("mamba", "transformer")

# base_lr in the inner learning rate base_lr * sigmoid(logit) / D (paper, section 3.1), by learner.
BASE_LR = {"linear": 1.0, "mlp": 0.1}

# SwiGLU widths that make tiny models nearly equal in size: W1 and W2 are a large part of a tiny TTT-MLP.
_TINY_FFN_WIDTH = {"ttt-mlp": 240, "transformer": 416, "transformer-gqa": 416}
_TINY_VOCABULARY = 512
_CUT = "/"  # between the name of a size and its number of layers


@dataclass(frozen=True)
class TTTConfig:
    """The configuration of a TTT language model."""

    learner: str  # the model inside the hidden state: "linear" (TTT-Linear) or "mlp" (TTT-MLP)
    width: int
    ffn_width: int
    layers: int
    heads: int
    vocabulary: int = VOCABULARY
    backbone: str = "mamba"  # or "transformer"; M and T in the paper
    mini_batch: int = 16
    base_lr: float = field(kw_only=True)  # a factor of the inner learning rate; see BASE_LR
    rope_theta: float = ROPE_THETA
    norm_eps: float = NORM_EPS  # of the RMSNorms; the TTT layer's LayerNorms always have 1e-6
    tied: bool = True  # whether the LM head is the embedding

    def __post_init__(self) -> None:
        _require_one_of("learner", self.learner, tuple(BASE_LR))
        _require_one_of("backbone", self.backbone, BACKBONES)
        for name in ("width", "ffn_width", "layers", "vocabulary", "mini_batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)}: must be at least 1")
        for name in ("base_lr", "rope_theta", "norm_eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} {getattr(self, name)}: must be a positive number")
        if self.heads < 1 or self.width % self.heads or self.head_dim % 2:
            raise ConfigError(f"width {self.width} with {self.heads} heads: the head dimension must be an even integer")

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def weight_shapes(self) -> dict[str, tuple[int, int, int]]:
        """{name: [heads, rows, columns]} of the initial weights W1, b1 and, for TTT-MLP, W2, b2."""
        heads, dim = self.heads, self.head_dim
        if self.learner == "linear":
            return {"W1": (heads, dim, dim), "b1": (heads, 1, dim)}
        hidden = 4 * dim
        first = {"W1": (heads, dim, hidden), "b1": (heads, 1, hidden)}
        return first | {"W2": (heads, hidden, dim), "b2": (heads, 1, dim)}


@dataclass(frozen=True)
class TransformerConfig:
    """A Llama-like Transformer with a tied LM head; kv_heads < heads is GQA (arXiv 2305.13245)."""

    width: int
    ffn_width: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int = VOCABULARY

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True)
class MambaConfig:
    """The configuration of a Mamba (arXiv 2312.00752) or Mamba-2; the defaults are Mamba's."""

    width: int
    layers: int
    vocabulary: int = VOCABULARY
    expand: int = 2
    state_dim: int = 16
    token_flops: int = 6  # per token and state element, for update and output (arXiv 2312.00752, equation 2)
    groups: int = 0  # number of (B, C) pairs, which Mamba-2 convolves too; 0 for Mamba

    @property
    def inner_width(self) -> int:
        return self.expand * self.width

    @property
    def time_step_rank(self) -> int:
        return -(-self.width // 16)

    @property
    def state_elements(self) -> int:
        """Number of elements of the recurrent state per layer and sequence."""
        return self.inner_width * self.state_dim


@dataclass(frozen=True)
class DeltaRuleConfig:
    """Sizes of a linear RNN with a delta rule; a head's state is [key_dim, value_dim]."""

    width: int
    layers: int
    heads: int
    key_dim: int
    value_dim: int
    token_flops: int  # per token and element of the state
    convolved: int = 0  # channels of a layer's short convolutions
    vocabulary: int = VOCABULARY

    @property
    def state_elements(self) -> int:
        """Number of elements of the recurrent state per layer and sequence."""
        return self.heads * self.key_dim * self.value_dim


ModelConfig = TTTConfig | TransformerConfig | MambaConfig


def model_config(model: str, size: str, *, backbone: str = "mamba", mini_batch: int = 16) -> ModelConfig:
    """Return the configuration for `model`, a name in MODELS.

    size: a name in SIZES, or NAME/LAYERS: `1.3b/2` has only 2 layers. Mamba has twice as many layers, here 4.
    backbone, mini_batch: only for TTT models. Raises ConfigError for an unknown name or a mini-batch below 1.
    """
    name, layers = split_size(size)
    _require_one_of("model", model, MODELS)
    _require_one_of("size", name, tuple(SIZES))
    shape, vocabulary, ffn_width = SIZES[name], VOCABULARY, SIZES[name].ffn_width
    if layers:
        shape = replace(shape, layers=layers)
    if name == "tiny":
        vocabulary, ffn_width = _TINY_VOCABULARY, _TINY_FFN_WIDTH.get(model, ffn_width)
    if model == "mamba":  # a Mamba block has about half the parameters of a Transformer block
        return MambaConfig(shape.width, 2 * shape.layers, vocabulary)
    if model == "transformer":
        return TransformerConfig(shape.width, ffn_width, shape.layers, shape.heads, shape.heads, vocabulary)
    if model == "transformer-gqa":  # the SwiGLU is wider by the parameters that the K and V projections lose
        kv_heads = max(1, shape.heads // QUERY_GROUP)
        lost = shape.width * (shape.heads - kv_heads) // shape.heads
        return TransformerConfig(
            shape.width, ffn_width + 2 * lost // 3, shape.layers, shape.heads, kv_heads, vocabulary
        )
    learner = model.removeprefix("ttt-")
    sizes = (shape.width, ffn_width, shape.layers, shape.heads, vocabulary)
    return TTTConfig(learner, *sizes, backbone, mini_batch, base_lr=BASE_LR[learner])


def cut(size: str, layers: int) -> str:
    """Return the name of a size with only `layers` layers, such as `1.3b/2`."""
    return f"{size}{_CUT}{layers}"


def split_size(size: str) -> tuple[str, int]:
    """Split a size into (name, layers), 0 for all layers: `1.3b/2` gives ("1.3b", 2)."""
    name, _, layers = size.partition(_CUT)
    return (name, int(layers)) if layers.isdecimal() and int(layers) else (size, 0)


def convolved_channels(config: ModelConfig | DeltaRuleConfig) -> int:
    """Count the channels per layer whose last CONV_KERNEL - 1 convolution inputs are stored."""
    if isinstance(config, MambaConfig):
        return config.inner_width + 2 * config.groups * config.state_dim
    if isinstance(config, DeltaRuleConfig):
        return config.convolved
    if isinstance(config, TTTConfig) and config.backbone == "mamba":
        return 2 * config.width  # the block's convolution, and the one input of Q's and K's
    return 0


def parameter_count(config: ModelConfig) -> int:
    """Count the parameters of a model other than Mamba-2; a tied head and the embedding count once."""
    tables = 2 if isinstance(config, TTTConfig) and not config.tied else 1  # embedding, head
    return tables * config.vocabulary * config.width + config.layers * _layer_parameters(config) + config.width


def _layer_parameters(config: ModelConfig) -> int:
    if isinstance(config, MambaConfig):
        width, inner, rank, state = config.width, config.inner_width, config.time_step_rank, config.state_dim
        projections = width * 2 * inner + inner * width + inner * (rank + 2 * state) + rank * inner + inner
        return projections + inner * (CONV_KERNEL + 1) + inner * state + inner + width
    kv_width = config.kv_width if isinstance(config, TransformerConfig) else config.width
    projections = 2 * config.width * (config.width + kv_width)  # q, o; k (or the output gate), v
    shared = projections + 3 * config.width * config.ffn_width + 2 * config.width  # SwiGLU, norms
    return shared + (_ttt_extra(config) if isinstance(config, TTTConfig) else 0)


def _ttt_extra(config: TTTConfig) -> int:
    width, heads = config.width, config.heads
    learner = sum(a * b * c for a, b, c in config.weight_shapes.values())
    learning_rate = config.mini_batch + heads * width + heads
    norms = 2 * width + 2 * width  # per-head LayerNorm (H x D = width) and the LayerNorm after it
    convolutions = 3 * width * (CONV_KERNEL + 1) + width if config.backbone == "mamba" else 0
    return learner + learning_rate + norms + convolutions


def _require_one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{what} {value}: unknown; there are {', '.join(known)}")
