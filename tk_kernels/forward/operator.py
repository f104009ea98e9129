"""The forward of TTT-Linear or TTT-MLP: a Hopper kernel, Triton or the reference."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tk_kernels import build
from tk_kernels.checks import (
    check_choice,
    check_contiguous,
    check_devices,
    check_outer,
    check_shape,
    check_state,
    check_tokens,
    common_position,
)
from tk_kernels.forward import common
from tk_kernels.generate.common import available, to_float32
from tk_kernels.packed import Packed
from tk_kernels.reference.layer import rope as rotate
from tk_kernels.reference.learner import Learner
from tk_kernels.reference.token_rows import State, clone, overwrite

HEAD_DIM = 64  # head dimension of the Hopper kernels
HEAD_DIMS = (64, 96, 128)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # Hopper kernels take the first; Triton on a GPU the first two
THUNDERKITTENS, TRITON, REFERENCE = BACKENDS = ("thunderkittens", "triton", "reference")
Tokens = tuple[Tensor, Tensor, Tensor, Tensor]  # q, k, v [B, T, H, D], lr [B, T, H]
OuterTensors = tuple[Tensor, Tensor, Tensor]  # token_scale [m], ln_weight, ln_bias [H, D]


class ForwardOperator:
    """The forward of TTT-Linear or TTT-MLP: checks arguments and runs one of three backends.

    name: "linear" or "mlp". learner: the PyTorch reference. portable: function that launches the Triton kernel.
    widths: each layer's input width, then the last layer's output width, in multiples of the head dimension.
    kernels: names of the Hopper kernels, by mini-batch size.
    plan: function that returns further arguments of the Hopper kernel, given q [B, T, H, D] and the mini-batch size.
    """

    def __init__(
        self,
        name: str,
        learner: Learner,
        widths: tuple[int, ...],
        kernels: dict[int, str],
        portable: Callable[..., None],
        plan: Callable[[Tensor, int], tuple[int, ...]] = lambda q, mini_batch: (),
    ) -> None:
        self.learner, self.widths, self.kernels, self.portable, self.plan = learner, widths, kernels, portable, plan
        self.weights: tuple[str, ...] = learner.state._fields[: 2 * len(widths) - 2]
        self.launch = torch.library.custom_op(f"ttt_bench::{name}_forward", self._launch, mutates_args=("outputs",))

    def available(self, mini_batch: int = 16) -> str:
        """Return why `mini_batch`'s Hopper kernel cannot run, or ""; ValueError if there is none."""
        check_choice("mini_batch", mini_batch, tuple(self.kernels))
        return build.unavailable(self.kernels[mini_batch])

    def choice(self, q: Tensor, mini_batch: int) -> str:
        """Return the first of `BACKENDS` that supports q [B, T, H, D] and `mini_batch` here."""
        kernel = self.kernels.get(mini_batch)
        takes = q.is_cuda and q.dtype == torch.bfloat16 and q.shape[3] == HEAD_DIM
        if kernel and takes and not build.unavailable_on(q.device, kernel):
            return THUNDERKITTENS
        takes_type = common.triton.knobs.runtime.interpret or (q.is_cuda and q.dtype in common.GPU_DTYPES)
        return TRITON if takes_type and not available() else REFERENCE

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lr: Tensor,
        token_scale: Tensor,
        ln_weight: Tensor,
        ln_bias: Tensor,
        state: State,
        *,
        rope: bool = False,
        start: int | None = None,
        inplace: bool = False,
        backend: str = "",
    ) -> tuple[Tensor, State]:
        """Return the outputs [B, T, H, D] of T tokens and the state after them, without autograd.

        q, k, v [B, T, H, D]: bfloat16, float16 or float32; D 64, 96 or 128. Strides: 1 over D, else multiples of 8.
        lr [B, T, H]: learning rates, which a layer computes as base_lr * sigmoid(...) / D.
        token_scale [m], not negative; m, the mini-batch size, is 4 to 64. ln_weight, ln_bias [H, D].
        state: float32, all sequences at the same position, F = 4 D for TTT-MLP. If the position is inside a mini-batch,
        the tokens up to the end of that mini-batch run in the reference.
        rope: whether to apply RoPE to q and k (theta 10000, position in the mini-batch, interleaved pairs).
        start: the state's position, 0 to m - 1; None to read it from the device, which waits for the GPU.
        inplace: write the next state to the tensors of `state`, and return `state`. False: do not change `state`.
        backend: "thunderkittens", "triton" or "reference"; "" uses the one that `choice` returns.
        Raises ValueError for unsupported arguments, and BuildError if "thunderkittens" cannot run here.
        """
        tokens, outer = (q, k, v, lr), (token_scale, ln_weight, ln_bias)
        shapes = self._checked(tokens, outer, state, inplace)
        check_choice("backend", backend, ("", *BACKENDS))
        start = common_position(state.position, start, len(token_scale))  # type: ignore[attr-defined]
        if not q.numel():
            return torch.empty_like(q), state if inplace else clone(state)
        outputs, after, to_boundary = [], state, min(-start % len(token_scale), q.shape[1])
        if to_boundary:
            out, after = self._run_reference([x[:, :to_boundary] for x in tokens], outer, state, start, rope)
            outputs.append(out)
        if to_boundary < q.shape[1]:
            q, k, v, lr = (x[:, to_boundary:] for x in tokens)
            weights = to_float32(*(getattr(after, name) for name in self.weights))
            if not inplace:
                empty = {name: weights[0].new_empty(shape) for name, shape in shapes.items()}
                empty["position"] = torch.empty_like(state.position)  # type: ignore[attr-defined]
                after = type(state)(**empty)
            outputs.append(torch.empty(q.shape, dtype=q.dtype, device=q.device))
            results = (outputs[-1], *after[:-1])
            self.launch((q, k, v, *to_float32(lr)), to_float32(*outer), weights, results, rope, backend)
            after.position.fill_(q.shape[1] % len(token_scale))  # type: ignore[attr-defined]
        if inplace:
            overwrite(state, after)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1), state if inplace else after

    def _checked(self, tokens: Tokens, outer: OuterTensors, state: tuple, inplace: bool) -> dict[str, tuple[int, ...]]:
        """Raise ValueError for bad arguments of `forward`; return the shape of each field of the next state."""
        _check_tokens(tokens, outer, "[B, T, H, D]")
        q, mini_batch = tokens[0], len(outer[0])
        batch, _, heads, head_dim = q.shape
        widths = [head_dim * width for width in self.widths]
        shapes = self.learner.shapes(widths, (batch, heads), mini_batch)
        fields = state._asdict()  # type: ignore[attr-defined]
        read = shapes if inplace else {name: shapes[name] for name in (*self.weights, "position")}
        check_state(state, read, torch.float32)
        check_devices(q=q, **{f"state.{name}": x for name, x in fields.items()})
        for name, x in fields.items() if inplace else ():
            check_contiguous(f"state.{name}, which inplace=True writes to,", x)
        return shapes

    def _launch(
        self,
        tokens: Sequence[Tensor],
        outer: Sequence[Tensor],
        weights: Sequence[Tensor],
        outputs: Sequence[Tensor],
        rope: bool,
        backend: str,
    ) -> None:
        """Run a backend, by default that of `choice`; fill `outputs`: out, weights, biases, rows."""
        q, mini_batch = tokens[0], len(outer[0])
        backend = backend or self.choice(q, mini_batch)
        if backend == THUNDERKITTENS:
            names = ("q", "k", "v", *self.weights, "out", *self.learner.state._fields[:-1])
            for name, x in zip(names, (*tokens[:3], *weights, *outputs), strict=True):
                if x.data_ptr() % 16:  # checked here: tensors have no addresses while torch.compile traces
                    begins = f"{name} begins at element {x.storage_offset()} of its storage"
                    raise ValueError(f"{begins}: must be a multiple of {16 // x.element_size()}")
            plan = self.plan(q, mini_batch)
            with torch.cuda.device(q.device):
                module = build.load(self.kernels[mini_batch])
                module.forward(*tokens, *outer, *weights, *outputs, rope, *plan)
        elif backend == TRITON:
            self.portable(_with_rope(tokens, 0, mini_batch, rope), tuple(outer), tuple(weights), tuple(outputs))
        else:
            rows = (torch.zeros_like(x) for x in outputs[1 + len(weights) :])
            position = torch.zeros(len(q), dtype=torch.int32, device=q.device)
            state = self.learner.state(*weights, *rows, position)
            found, after = self._run_reference(tokens, outer, state, 0, rope)
            for target, x in zip(outputs, (found, *after[:-1]), strict=True):
                target.copy_(x)

    def _run_reference(
        self, tokens: Sequence[Tensor], outer: Sequence[Tensor], state: State, start: int, rope: bool
    ) -> tuple[Tensor, State]:
        given = to_float32(*_with_rope(tokens, start, len(outer[0]), rope))
        reference: Callable[..., tuple[Tensor, State]] = self.learner.forward
        out, state = reference(*given, *outer, state, start=start)
        return out.to(tokens[0].dtype), state


def _with_rope(tokens: Sequence[Tensor], start: int, mini_batch: int, rope: bool) -> tuple[Tensor, ...]:
    """Return `tokens` (q, k, ...); if `rope`, with RoPE on q and k at positions (start + t) % mini_batch."""
    q, k, *others = tokens
    if rope:
        position = torch.arange(start, start + q.shape[1], device=q.device) % mini_batch
        q, k = (rotate(x.float(), position).to(x.dtype) for x in (q, k))
    return q, k, *others


def forward_packed(
    launch: Callable[..., Tensor],
    tokens: Tokens,
    outer: OuterTensors,
    initial: tuple[Tensor, ...],
    state: Any,
    sequences: Packed,
) -> Tensor:
    """Run a portable forward kernel on packed sequences; return outputs [N, H, D] in q's dtype.

    launch: `launch_packed` of ttt_linear.forward or ttt_mlp.forward. sequences: the layout of the N tokens.
    tokens: q, k, v [N, H, D] in the dtype of the state's rows, and lr [N, H]. q and k already have RoPE.
    outer: token_scale [m], ln_weight [H, D] and ln_bias [H, D].
    initial: the learned initial weights [H, ...] and biases [H, ...] or [H, 1, ...]. A sequence begins from them if
        it has no earlier tokens (`sequences.start` is 0), otherwise from its slot of `state`.
    state: a `GenerateState` in the dual form, whose slots are updated in place; its position is not read.
    Raises ValueError for unsupported arguments, and if the portable kernels cannot run here.
    """
    if why := available():
        raise ValueError(why)
    _check_tokens(tokens, outer, "[N, H, D]")
    q, k, v, lr = tokens
    check_shape("q", q, (sequences.tokens, *q.shape[1:]))
    check_choice("q.dtype", q.dtype, (state.accumulated[0].dtype,))
    if q.is_cuda:
        check_choice("q.dtype", q.dtype, common.GPU_DTYPES)
    check_choice("state.form", state.form, ("dual",))
    check_choice("state.mini_batch", state.mini_batch, (len(outer[0]),))
    for bias in state.biases():
        check_choice("a layer's width", bias.shape[-1], (q.shape[-1], 4 * q.shape[-1]))
    where = {"cu_seqlens": sequences.cu_seqlens, "start": sequences.start, "slots": sequences.slots}
    check_devices(q=q, state=state.accumulated[0], **where)
    rates, *parameters = to_float32(lr, *outer)
    return launch((q, k, v, rates), tuple(parameters), to_float32(*initial), state, sequences)


def _check_tokens(tokens: Tokens, outer: OuterTensors, layout: str) -> None:
    (q, k, v, lr), (token_scale, ln_weight, ln_bias) = tokens, outer
    named = {"q": q, "k": k, "v": v}
    check_tokens(named, lr, layout, DTYPES)
    check_choice("q.shape[-1], the head dimension,", q.shape[-1], HEAD_DIMS)
    for name, x in named.items():
        if x.stride(-1) != 1 or any(stride % 8 for stride in x.stride()[:-1]):  # a kernel reads 16 bytes at once
            needed = "must have D contiguous (stride 1), and other strides that are multiples of 8"
            raise ValueError(f"{name} has strides {x.stride()}: {needed}")
    check_outer(token_scale, ln_weight, ln_bias, *q.shape[-2:])
    least, most = common.MINI_BATCHES[0], common.MINI_BATCHES[-1]
    if not least <= len(token_scale) <= most:
        raise ValueError(f"len(token_scale), the mini-batch size, is {len(token_scale)}: must be {least} to {most}")
    check_devices(q=q, k=k, v=v, lr=lr, token_scale=token_scale, ln_weight=ln_weight, ln_bias=ln_bias)
