"""The generate step of TTT-Linear and TTT-MLP: its state, argument checks and kernel launch."""

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor

from tk_kernels import FORMS
from tk_kernels.checks import check_choice, check_devices, check_parameter, check_shape
from tk_kernels.generate.common import (
    PRECISIONS,
    by_sequences,
    dependent_launch,
    dot_type,
    float_copy,
    join_planes,
    on_its_device,
    section_name,
    to_precision,
    triton,
)
from tk_kernels.generate.tuning import Tuning, tuning
from tk_kernels.reference.learner import Learner, layers_of
from tk_kernels.reference.token_rows import rows_before, summed_rows

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(kw_only=True)
class StepState:
    """State of `generate_step`, updated in place; each operator has a subclass `GenerateState`.

    form: "dual" or "primal". mini_batch: m.
    precision: "float32", "bfloat16", "float16" or "planes", which stores each float32 weight as two 16-bit numbers.
    position [B, H] int32: tokens so far in the current mini-batch, the same for all heads of a sequence.
    layers: for each layer (weight [B, H, ...], low plane or None, bias [B, H, width] float32). With "planes", `weight`
        is the high plane. All weights except the last are transposed: each row belongs to one hidden unit.
    accumulated, dual form: cached rows [B, H, m, width], first each layer's inputs, then each layer's lr * G. G is the
        loss's gradient at the layer's output. The rows' dtype is `precision`; with "planes", it is bfloat16.
    accumulated, primal form: for each layer, float32 gradient sums dW, in the weight's layout, and db.
    slots [B], int32 or int64, dual form only: each sequence's index in dimension 0 of weights, biases and cached rows.
        With slots, steps do not change `position`. Dimension 0 may have any size. Equal shapes have equal strides.
    """

    form: str
    precision: str
    mini_batch: int
    position: Tensor
    accumulated: tuple[Tensor, ...]
    layers: tuple[tuple[Tensor, Tensor | None, Tensor], ...]
    slots: Tensor | None = None

    operator: ClassVar[str]  # its name in `tuning.toml`
    learner: ClassVar[Learner]  # the reference
    sm90_widths: ClassVar[tuple[int, ...]]  # widths of the layers' outputs that `generate_sm90.py` supports

    def kernel(self, launch: Tuning) -> tuple[Any, dict[str, Any]]:
        """Return (kernel that the settings `launch` select, compile-time arguments by name)."""
        raise NotImplementedError

    @classmethod
    def from_state(cls, state: Any, form: str = "dual", precision: str = "planes") -> Any:
        """Return a generate state of the given form and precision, copied from a reference state.

        `state` has cached rows, not gradient sums. Raises ValueError for an unknown form or precision.
        """
        check_choice("form", form, FORMS)
        check_choice("precision", precision, tuple(PRECISIONS))
        layers = layers_of(state)
        stored = []
        for layer in layers:
            W = layer.weight if layer is layers[-1] else layer.weight.mT
            stored.append((*by_sequences(partial(to_precision, precision=precision), W), float_copy(layer.bias)))
        rows = (*(layer.x for layer in layers), *(layer.g for layer in layers))
        row_type = PRECISIONS[precision].rows

        def accumulated(position: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
            if form == "dual":
                return tuple(rows_before(x, position).to(row_type, copy=True) for x in rows)
            wide, sums = [x.double() for x in rows], list[Tensor]()
            for layer, x, g in zip(layers, wide[: len(layers)], wide[len(layers) :], strict=True):
                dW, db = summed_rows(x, g, position)
                sums += [dW if layer is layers[-1] else dW.mT, db]
            return tuple(map(float_copy, sums))

        return cls(
            form=form,
            precision=precision,
            mini_batch=rows[0].shape[2],
            position=state.position[:, None].repeat(1, rows[0].shape[1]).to(torch.int32),
            accumulated=by_sequences(accumulated, state.position, *rows),
            layers=tuple(stored),
        )

    def to_state(self) -> Any:
        """Copy to a float32 reference state with cached rows (dual) or gradient sums (primal)."""
        position, last = self.position[:, 0].clone(), self.layers[-1]
        weights: list[Tensor] = []
        for layer in self.layers:
            weight, low, bias = layer
            W = weight.to(torch.float32, copy=True) if low is None else join_planes(weight, low)
            weights += [W if layer is last else W.mT.contiguous(), bias.clone()]
        if self.form == "dual":
            return self.learner.state(*weights, *map(float_copy, self.accumulated), position)
        begun = (self.position > 0)[..., None]  # a new mini-batch ignores the old sums
        sums: list[Tensor] = []
        for layer, dW, db in zip(self.layers, self.accumulated[::2], self.accumulated[1::2], strict=True):
            sums += [(dW if layer is last else dW.mT) * begun[..., None], db * begun]
        return self.learner.primal(*weights, *sums, position)

    def tensors(self) -> list[Tensor]:
        """List all tensors of the state except `slots`, for snapshots and for counting bytes."""
        return [x for x in (*chain(*self.layers), self.position, *self.accumulated) if x is not None]

    def biases(self) -> list[Tensor]:
        """List each layer's bias [B, H, width]."""
        return [bias for _, _, bias in self.layers]

    def suits_sm90(self) -> bool:
        """Whether `generate_sm90.py` supports this state's form, precision, widths and mini-batch."""
        in_16_bits = self.form == "dual" and self.precision != "float32"
        widths = tuple(bias.shape[2] for bias in self.biases())
        return in_16_bits and widths == self.sm90_widths and self.mini_batch <= 16

    def tuned_as(self) -> str:
        return section_name(self.suits_sm90(), self.position.device)

    def default_launch(self) -> Tuning:
        return tuning(self.operator, self.form, self.precision, self.tuned_as())


def portable_constants(state: StepState, block: int) -> dict[str, Any]:
    """Return compile-time arguments of the portable generate kernels, by name.

    D: head dimension. DP, MP: D and m, padded to powers of two, MP to at least 16. DOT: dtype of matmul operands.
    BLOCK: rows of a weight to rewrite at once, at most `block`.
    """
    rows, D = state.biases()[0].shape[2], state.biases()[-1].shape[2]
    return {
        "D": D,
        "DP": triton.next_power_of_2(D),
        "MP": max(16, triton.next_power_of_2(state.mini_batch)),
        "BLOCK": min(block, triton.next_power_of_2(rows)),
        "DOT": dot_type(state.accumulated[0]),
    }


@on_its_device
def generate_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    gstate: StepState,
    *,
    out: Tensor | None = None,
    rope: Tensor | None = None,
    base_lr: float | None = None,
    launch: Tuning | None = None,
    pdl: bool = False,
    compile_only: bool = False,
) -> Tensor:
    """Train the inner model f on one token of each sequence; return the outputs q + LN(f(q)) [B, H, D].

    q, k, v [B, H, D] of one dtype, contiguous except in B. lr [B, H] float32 or of q's dtype.
    token_scale [m]; ln_weight, ln_bias [H, D]. gstate: the state of all sequences, updated in place.
    out: the tensor to write and return, of any floating dtype; by default a new one of q's dtype.
    rope: the result of `rope_table`, to apply RoPE to q and k. None: they already have RoPE.
    base_lr: if given, lr holds logits, and the learning rate is base_lr * sigmoid(lr) / D.
    launch: settings to use instead of `gstate.default_launch()`. compile_only: compile the kernel, compute nothing.
    pdl: use programmatic dependent launch in the kernels for Hopper; other kernels ignore it. The kernel then reads
    gstate, token_scale, ln_weight, ln_bias and rope before earlier launches end.
    Raises ValueError on a wrong shape, dtype, stride or device, and for a `launch` that does not suit the state.
    """
    s, biases = gstate, gstate.biases()
    B, (_, H, D) = len(s.position), biases[-1].shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    outer = {"token_scale": token_scale, "ln_weight": ln_weight, "ln_bias": ln_bias}
    _check({"q": q, "k": k, "v": v, "lr": lr, "out": out}, outer, rope, s, (B, H, D))
    launch = launch or s.default_launch()
    if launch.sm90 and not s.suits_sm90():
        raise ValueError(f"launch {launch}: the sm_90 kernel does not support this state; see `suits_sm90`")
    kernel, constants = s.kernel(launch)
    weight, low, _ = s.layers[0]
    slot_arguments: tuple[Any, ...] = ()
    if s.form == "dual":
        input_rows = s.accumulated[: len(biases)]
        slot_arguments = (s.slots, *(x.stride(0) for x in (weight, *biases, *input_rows)))
        constants["SLOTS"] = s.slots is not None
    kernel.run(
        q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope, *chain(*s.layers), *s.accumulated, s.position,
        q.stride(0), k.stride(0), v.stride(0), out.stride(0), lr.stride(0), base_lr or 0.0, *slot_arguments,
        H=H, m=s.mini_batch, PLANES=low is not None, ROPE=rope is not None, LOGITS=base_lr is not None,
        grid=(B * H,), warmup=compile_only, num_warps=launch.warps, maxnreg=launch.registers or None,
        **(dependent_launch(pdl) if launch.sm90 else {}), **constants,
    )  # fmt: skip
    return out


def _check(
    tokens: dict[str, Tensor], outer: dict[str, Tensor], rope: Tensor | None, state: StepState, shape: tuple[int, ...]
) -> None:
    B, H, D = shape
    dtype = tokens["q"].dtype
    dtypes = dict.fromkeys(tokens, (dtype,)) | {"q": FLOATING, "out": FLOATING, "lr": (torch.float32, dtype)}
    for name, x in tokens.items():
        check_shape(name, x, (B, H) if name == "lr" else shape)
        check_choice(f"{name}.dtype", x.dtype, dtypes[name])
        if B and not x[0].is_contiguous():
            raise ValueError(f"{name} has strides {x.stride()}: must be contiguous after the first dimension")
    check_devices(**tokens, **outer, rope=rope, gstate=state.biases()[0])
    for name, x in outer.items():
        check_parameter(name, x, (state.mini_batch,) if name == "token_scale" else (H, D))
    if rope is not None:
        check_parameter("rope", rope, (state.mini_batch, 2, D))
    if state.slots is not None:
        check_choice("form of a state with slots", state.form, ("dual",))
        check_shape("slots", state.slots, (B,))
