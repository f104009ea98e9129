"""Check an operator's arguments: a ValueError names the argument, its value and the limits."""

import torch
from torch import Tensor

from tk_kernels import check_choice

# The state's dtype, by the dtype of q, k and v
STATE_DTYPE = {torch.float64: torch.float64, torch.float32: torch.float32, torch.bfloat16: torch.float32}


def check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless the tensor has this shape; `name` is for the message."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: expected {shape}")


def check_parameter(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless the tensor is contiguous with this shape."""
    check_shape(name, tensor, shape)
    check_contiguous(name, tensor)


def check_contiguous(name: str, tensor: Tensor) -> None:
    if not tensor.is_contiguous():
        raise ValueError(f"{name} has strides {tensor.stride()}: must be contiguous")


def check_devices(**tensors: Tensor | None) -> None:
    """Raise ValueError unless all tensors are on one device; skip arguments that are None."""
    given = [(name, x) for name, x in tensors.items() if x is not None]
    (first, x), *others = given
    for name, other in others:
        if other.device != x.device:
            raise ValueError(f"{name} is on {other.device}: {first} is on {x.device}")


def check_tokens(tokens: dict[str, Tensor], lr: Tensor, layout: str, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise ValueError unless q, k, v share a shape and one of `dtypes`, and lr fits.

    tokens: {name: tensor} of q, k and v, or of two of these. lr has their shape without the last axis.
    layout: their shape in letters, such as "[B, T, H, D]"; only its number of dimensions is checked.
    """
    first, *others = tokens
    x = tokens[first]
    if x.ndim != layout.count(",") + 1:
        raise ValueError(f"{first} has shape {tuple(x.shape)}: expected {layout}")
    check_choice(f"{first}.dtype", x.dtype, dtypes)
    for name in others:
        check_shape(name, tokens[name], tuple(x.shape))
        check_choice(f"{name}.dtype", tokens[name].dtype, (x.dtype,))
    check_shape("lr", lr, tuple(x.shape[:-1]))


def check_outer(token_scale: Tensor, ln_weight: Tensor, ln_bias: Tensor, heads: int, head_dim: int) -> None:
    """Raise ValueError unless token_scale is [m >= 1], ln_weight and ln_bias [heads, head_dim]."""
    if token_scale.ndim != 1 or not len(token_scale):
        raise ValueError(f"token_scale has shape {tuple(token_scale.shape)}: expected [mini_batch], at least 1")
    check_shape("ln_weight", ln_weight, (heads, head_dim))
    check_shape("ln_bias", ln_bias, (heads, head_dim))


def check_state(state: tuple, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> None:
    """Raise ValueError if a field of `state` that `shapes` names has a wrong shape or dtype.

    The field position must be int32. Other fields must be float64 if the tokens' `dtype` is float64, else float32.
    """
    for name, shape in shapes.items():
        tensor = getattr(state, name)
        check_shape(f"state.{name}", tensor, shape)
        supported = (torch.int32,) if name == "position" else (STATE_DTYPE[dtype],)
        check_choice(f"state.{name}.dtype", tensor.dtype, supported)


def common_position(position: Tensor, start: int | None, mini_batch: int) -> int:
    """Return the position in the mini-batch: `start`, or if None, the one in `position` [B].

    Reading `position` waits for the GPU. ValueError if its values differ or the result is not 0 to mini_batch - 1.
    """
    values = sorted(set(position.tolist())) if start is None else [start]
    if len(values) > 1:
        raise ValueError(f"state.position holds {values}: must be one position for all sequences")
    found = values[0] if values else 0
    if not 0 <= found < mini_batch:
        name = "state.position" if start is None else "start"
        raise ValueError(f"{name} is {found}: expected a position inside the mini-batch, 0 to {mini_batch - 1}")
    return found


def check_aligned(tokens: int, start: int, mini_batch: int) -> None:
    if start or tokens % mini_batch:
        raise ValueError(f"{tokens} tokens from position {start}: expected whole mini-batches of {mini_batch}")
