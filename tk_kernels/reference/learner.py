"""PyTorch reference of TTT-Linear (one linear layer) and TTT-MLP (two, GELU between).

    Z1 = K @ W1 + b1, Z2 = gelu(Z1) @ W2 + b2

`Learner` computes the function of `naive.py` (arXiv 2407.04620, Sections 2.3 to 2.7) without autograd, in three ways:
dual and primal for sequences, and token by token.

Precision: the state's dtype, which is float64 for float64 tokens, else float32. With bfloat16 tokens, the dual form of
whole mini-batches rounds its matmul inputs (q, k, hidden units, weights, gradients, eta) to bfloat16. Sums and results
are float32, as on tensor cores. The state is never rounded.
"""

from collections import namedtuple
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Generic, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tk_kernels import FORMS
from tk_kernels.checks import (
    STATE_DTYPE,
    check_aligned,
    check_choice,
    check_outer,
    check_shape,
    check_state,
    check_tokens,
    common_position,
)
from tk_kernels.reference.layer import Outer, gradient_offset, ln_l2_grad, output
from tk_kernels.reference.mini_batches import (
    BIAS_INPUTS,
    matmul,
    read_layer,
    stacked,
    subtract_matmul_,
    tiled,
    unstack_,
    untiled,
    with_bias_input,
)
from tk_kernels.reference.token_rows import (
    State,
    add_to_sums_,
    affine,
    apply_rows_,
    apply_sums_,
    causal_scale,
    clone,
    stepped_affine,
    summed_rows,
    write_rows_,
)

PrimalState = tuple[Tensor, ...]  # gradient sums instead of rows: a `Learner.primal`
Trace = tuple[Tensor, ...]


class InnerLayer(NamedTuple):
    """One layer of an inner model, with data of the current mini-batch's tokens so far.

    weight [B, H, in, out], bias [B, H, out]: the parameters at the mini-batch's start.
    With cached rows, x [B, H, m, in] holds the tokens' inputs. g [B, H, m, out] holds their learning rates times the
    loss's gradients at the layer's output.
    With gradient sums, x [B, H, in, out] is dW, the sum over the tokens of lr_j * d loss_j / d weight. g [B, H, out] is
    db, the same sum for the bias.
    """

    weight: Any
    bias: Any
    x: Any
    g: Any


def layers_of(state: Sequence[Any], rows: bool = True) -> list[InnerLayer]:
    """Group the fields of a state, or their names, by inner layer, in order of the layers.

    rows=True: a state with cached rows. For two layers, it has the fields
        W1, b1, W2, b2, k_rows, x2_rows, g1_rows, g2_rows, position.
    rows=False: a state with gradient sums. For two layers, it has W1, b1, W2, b2, dW1, db1, dW2, db2, position.
    """
    n = len(state) // 4
    weights, biases, rest = state[: 2 * n : 2], state[1 : 2 * n : 2], state[2 * n : 4 * n]
    x, g = (rest[:n], rest[n:]) if rows else (rest[::2], rest[1::2])
    return [InnerLayer(*each) for each in zip(weights, biases, x, g, strict=True)]


class Learner(Generic[State]):
    """PyTorch reference of TTT-Linear or TTT-MLP: one instance per operator.

    state: the class of the operator's states with cached rows, such as `LinearState`. Its fields define the layers.
    max_parallel: most mini-batches that a dual `forward` runs at once; for m > 16, times 16 / m, at least one.
    The attribute `primal` is the class of its states with gradient sums instead of cached rows.
    Methods that take tokens disable autograd and autocast. Only `generate_step` with `inplace` changes a given state.
    """

    def __init__(self, state: type[State], max_parallel: int) -> None:
        self.state: Any = state
        names = state._fields  # type: ignore[attr-defined]
        weights = names[: len(names) // 4 * 2]
        sums = (*weights, *(f"d{name}" for name in weights), "position")
        self.primal: Any = namedtuple("PrimalState", sums)  # type: ignore[misc]
        self.max_parallel = max_parallel
        self._names = layers_of(names), layers_of(sums, rows=False)

    def shapes(
        self, widths: Sequence[int], batch_and_heads: tuple[int, int], mini_batch: int, rows: bool = True
    ) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of a state, by field name.

        widths: each layer's input width, then the last layer's output width, per head. batch_and_heads: (B, H).
        rows: True for a state with cached rows, False for a state with gradient sums.
        """
        shapes: dict[str, tuple[int, ...]] = {"position": batch_and_heads[:1]}
        for name, (inputs, outputs) in zip(self._names[0 if rows else 1], pairwise(widths), strict=True):
            shapes[name.weight], shapes[name.bias] = (*batch_and_heads, inputs, outputs), (*batch_and_heads, outputs)
            shapes[name.x] = (*batch_and_heads, mini_batch, inputs) if rows else shapes[name.weight]
            shapes[name.g] = (*batch_and_heads, mini_batch, outputs) if rows else shapes[name.bias]
        return shapes

    def init_state(
        self, *parameters: Tensor, batch: int, mini_batch: int = 16, dtype: torch.dtype = torch.float32
    ) -> State:
        """Return the state of `batch` new sequences: `parameters` copied, m zero rows, position 0.

        parameters: W [H, in, out] and b [H, 1, out] of each layer. mini_batch: m. dtype: of all tensors but position.
        Raises ValueError for a wrong shape, and TypeError for a wrong number of parameters.
        """
        names = [name for layer in self._names[0] for name in layer[:2]]
        if len(parameters) != len(names):
            raise TypeError(f"init_state takes {', '.join(names)}: {len(parameters)} tensors given")
        weights, biases = parameters[::2], parameters[1::2]
        heads, head_dim = weights[0].shape[:2]
        widths = [head_dim, *(bias.shape[-1] for bias in biases[:-1]), head_dim]
        for number, (inputs, outputs) in enumerate(pairwise(widths)):
            check_shape(names[2 * number], weights[number], (heads, inputs, outputs))
            check_shape(names[2 * number + 1], biases[number], (heads, 1, outputs))
        tensors = [x.detach().to(dtype).repeat(batch, 1, 1, 1) for x in parameters]
        tensors[1::2] = [bias.squeeze(2) for bias in tensors[1::2]]
        rows = [tensors[0].new_zeros(batch, heads, mini_batch, width) for width in (*widths[:-1], *widths[1:])]
        return self.state(*tensors, *rows, torch.zeros(batch, dtype=torch.int32, device=tensors[0].device))

    def primal_state(self, state: State) -> PrimalState:
        """Return a copy of the state with gradient sums instead of cached rows, for primal steps."""
        *tensors, position = clone(state)
        layers = layers_of(state)
        sums = [x for layer in layers for x in summed_rows(layer.x, layer.g, position)]
        return self.primal(*tensors[: 2 * len(layers)], *sums, position)

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
        form: str = "dual",
        start: int | None = None,
    ) -> tuple[Tensor, State]:
        """Return the outputs [B, T, H, D] of T tokens and a new state after them.

        q, k, v [B, T, H, D]: float64, float32 or bfloat16. lr [B, T, H]: learning rates, in the state's dtype.
        token_scale [m]; ln_weight, ln_bias [H, D].
        form: "dual", or "primal", which computes every token's weights W_t.
        state.position: any position inside the mini-batch, the same for all sequences.
        start: the value of state.position; None to read it from the device, which waits for the GPU.
        Raises ValueError for unsupported shapes, dtypes and forms.
        """
        outer = self._checked({"q": q, "k": k, "v": v}, lr, (token_scale, ln_weight, ln_bias), "[B, T, H, D]", state)
        check_choice("form", form, FORMS)
        mini_batch = len(token_scale)
        start = common_position(state.position, start, mini_batch)  # type: ignore[attr-defined]
        with torch.autocast(q.device.type, enabled=False), torch.no_grad():
            state, out = clone(state), torch.empty_like(q)
            parallel = max(1, min(self.max_parallel, 16 * self.max_parallel // mini_batch)) if form == "dual" else 1
            low, tokens = 0, q.shape[1]
            while low < tokens:  # up to `parallel` whole mini-batches, or a part of one
                first = (start + low) % mini_batch
                whole = 0 if first else min((tokens - low) // mini_batch, parallel)
                piece = slice(low, low + (whole * mini_batch or min(mini_batch - first, tokens - low)))
                q_piece, k_piece, v_piece, lr_piece = q[:, piece], k[:, piece], v[:, piece], lr[:, piece]
                if form == "dual" and whole:
                    trace = _train_(k_piece, v_piece, lr_piece, outer, state)
                    out[:, piece] = _read(q_piece, k_piece, lr_piece, outer, trace)
                else:
                    out[:, piece] = _advance_(q_piece, k_piece, v_piece, lr_piece, outer, state, form)
                low = piece.stop
            return out, state

    def generate_step(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lr: Tensor,
        token_scale: Tensor,
        ln_weight: Tensor,
        ln_bias: Tensor,
        state: State | PrimalState,
        *,
        inplace: bool = False,
    ) -> tuple[Tensor, State | PrimalState]:
        """Return the outputs [B, H, D] of one token per sequence, and the state after it.

        q, k, v [B, H, D], lr [B, H]. Sequences can have different positions in their mini-batches.
        state: a state with cached rows selects the dual form, a state with gradient sums the primal form.
        inplace: update the tensors of the given state; otherwise return new tensors.
        A CUDA graph can capture a call with inplace=True: there is no host sync or data-dependent control flow.
        """
        outer = self._checked({"q": q, "k": k, "v": v}, lr, (token_scale, ln_weight, ln_bias), "[B, H, D]", state)
        with torch.autocast(q.device.type, enabled=False), torch.no_grad():
            state = state if inplace else clone(state)
            rows = isinstance(state, self.state)
            out = _advance_(q[:, None], k[:, None], v[:, None], lr[:, None], outer, state, rows=rows)
            return out[:, 0], state

    def states(
        self,
        k: Tensor,
        v: Tensor,
        lr: Tensor,
        token_scale: Tensor,
        ln_weight: Tensor,
        ln_bias: Tensor,
        state: State,
        *,
        start: int | None = None,
    ) -> tuple[Trace, State]:
        """Compute the sequential part of the dual form; return (trace, state after the tokens).

        Raises ValueError unless the tokens are whole mini-batches that begin at position 0.
        start: 0 if state.position is known to be 0; None reads it from the device, which waits for the GPU.
        trace: a tuple for `outputs`, in the tokens' dtype. For N mini-batches, it holds in this order:
        each layer's weight and bias at each mini-batch's start, [N, B*H, in + 8, out], in the layout of `stacked`;
        each layer's inputs, except the first layer's, [N, B*H, m, in + 8], in the layout of `with_bias_input`;
        the loss's gradients at each layer's output, [N, B*H, m, out], not multiplied by lr.
        """
        outer = self._checked({"k": k, "v": v}, lr, (token_scale, ln_weight, ln_bias), "[B, T, H, D]", state)
        mini_batch = len(token_scale)
        start = common_position(state.position, start, mini_batch)  # type: ignore[attr-defined]
        check_aligned(k.shape[1], start, mini_batch)
        with torch.autocast(k.device.type, enabled=False), torch.no_grad():
            state = clone(state)
            return _train_(k, v, lr, outer, state), state

    def outputs(
        self,
        q: Tensor,
        k: Tensor,
        lr: Tensor,
        token_scale: Tensor,
        ln_weight: Tensor,
        ln_bias: Tensor,
        trace: Trace,
    ) -> Tensor:
        """Compute the parallel part of the dual form; return the outputs [B, T, H, D].

        trace: the first result of `states` for the same tokens. Raises ValueError for an incomplete mini-batch.
        """
        outer = self._checked({"q": q, "k": k}, lr, (token_scale, ln_weight, ln_bias), "[B, T, H, D]")
        check_aligned(q.shape[1], 0, len(token_scale))
        with torch.autocast(q.device.type, enabled=False), torch.no_grad():
            return _read(q, k, lr, outer, trace)

    def _checked(
        self,
        tokens: dict[str, Tensor],
        lr: Tensor,
        outer: tuple[Tensor, Tensor, Tensor],
        layout: str,
        state: State | PrimalState | None = None,
    ) -> Outer:
        check_tokens(tokens, lr, layout, tuple(STATE_DTYPE))
        x = next(iter(tokens.values()))
        check_choice("lr.dtype", lr.dtype, (STATE_DTYPE[x.dtype],))
        heads, head_dim = x.shape[-2:]
        check_outer(*outer, heads, head_dim)
        if state is not None:
            rows = isinstance(state, self.state)
            widths = (head_dim, *(layer.weight.shape[-1] for layer in layers_of(state, rows)[:-1]), head_dim)
            check_state(state, self.shapes(widths, (len(x), heads), len(outer[0]), rows), x.dtype)
        return Outer(*(parameter.to(STATE_DTYPE[x.dtype]) for parameter in outer))


def _train_(k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: tuple) -> Trace:
    """Train `state` in place on whole mini-batches; return the trace described in `Learner.states`."""
    layers, mini_batch = layers_of(state), len(outer.token_scale)
    keys = with_bias_input(tiled(k, mini_batch))
    last_eta = outer.token_scale[-1] * tiled(lr, mini_batch).unsqueeze(-1)
    steps, rates = (last_eta * keys).to(k.dtype).mT, last_eta.to(k.dtype)
    offsets = tiled(gradient_offset(k, v, outer), mini_batch)
    weight_squared = outer.ln_weight.square().repeat(len(k), 1).unsqueeze(1)
    weights = [stacked(layer.weight, layer.bias) for layer in layers]
    rows = [k.new_empty(*keys.shape[:3], W.shape[-1]) for W in weights]
    trace = (*(k.new_empty(len(keys), *W.shape) for W in weights), *map(with_bias_input, rows[:-1]), *rows)
    last = len(layers) - 1
    for key, step, rate, offset, *mini_batch_trace in zip(keys, steps, rates, offsets, *trace, strict=True):
        W, X, G = _parts(mini_batch_trace)
        x, z = key, []
        for n, weight in enumerate(weights):
            W[n].copy_(weight)
            z.append(matmul(x, W[n]))  # Z1 = K @ W1 + b1, Z2 = gelu(Z1) @ W2 + b2
            if n < last:
                x = X[n]
                x[..., :-BIAS_INPUTS].copy_(gelu(z[n]))
        G[last].copy_(ln_l2_grad(z[last], offset, weight_squared))
        for n in range(last, 0, -1):  # G1 = (G2 @ W2^T) * gelu'(Z1)
            G[n - 1].copy_(gelu_backward(matmul(G[n], W[n][:, :-BIAS_INPUTS].mT), z[n - 1]))
        subtract_matmul_(weights[0], step, G[0])  # W1 <- W1 - (eta_last^T * K)^T @ G1, and b1
        for n in range(1, last + 1):
            subtract_matmul_(weights[n], X[n - 1].mT, rate * G[n])
    for layer, weight in zip(layers, weights, strict=True):
        unstack_(weight, layer.weight, layer.bias)
    return trace


def _parts(trace: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    layers = (len(trace) + 1) // 3
    return trace[:layers], trace[layers:-layers], trace[-layers:]  # weights, inputs except the first's, gradients


def _read(q: Tensor, k: Tensor, lr: Tensor, outer: Outer, trace: Trace) -> Tensor:
    """Return the outputs Q + LN(Zbar), [B, T, H, D], for the tokens of `trace` (ttt_layer.md, step 5)."""
    mini_batch = len(outer.token_scale)
    queries, keys = (with_bias_input(tiled(x, mini_batch).flatten(0, 1)) for x in (q, k))
    scale = outer.token_scale[:, None].expand(-1, mini_batch).tril()  # [m, m]: s_i for j <= i, otherwise 0
    eta = tiled(lr, mini_batch).flatten(0, 1).unsqueeze(-2) * scale
    weights, inputs, gradients = _parts([x.flatten(0, 1) for x in trace])
    z = read_layer(queries, weights[0], keys, gradients[0], eta)
    for W, X, G in zip(weights[1:], inputs, gradients[1:], strict=True):
        z = read_layer(with_bias_input(gelu(z).to(q.dtype)), W, X, G, eta)
    return output(untiled(z, (len(trace[0]), len(q), q.shape[2])), q, outer)


def _advance_(
    q: Tensor, k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: Any, form: str = "dual", rows: bool = True
) -> Tensor:
    """Update `state` by n tokens of a mini-batch; return the outputs [B, n, H, D]."""
    layers, token_scale = layers_of(state, rows), outer.token_scale
    positions = state.position.long()[:, None] + torch.arange(q.shape[1], device=q.device)  # [B, n]
    x, z, new = _gradients(q, k, v, lr, outer, layers)
    for layer, (x_new, g_new) in zip(layers, new, strict=True):
        if rows:
            write_rows_(layer.x, x_new, positions)
            write_rows_(layer.g, g_new, positions)
        else:
            add_to_sums_(layer.x, layer.g, x_new, g_new)  # n must be 1
    scale = causal_scale(positions, token_scale) if rows else token_scale[positions][:, None, :, None]
    for number, layer in enumerate(layers):
        if number:
            x = gelu(z)
        if form == "primal":
            z = stepped_affine(x, *layer, scale)
        else:  # minus (scale * (x @ x_rows^T + 1)) @ g_rows, or scale * (x @ dW + db)
            step = (scale * (x @ layer.x.mT + 1)) @ layer.g if rows else scale * affine(x, layer.x, layer.g)
            z = (affine(x, layer.weight, layer.bias) if number else z) - step
    ends = positions[:, -1] == len(token_scale) - 1
    last = torch.where(ends, token_scale[-1], 0)[:, None, None, None]
    for layer in layers:
        if rows:
            apply_rows_(*layer, last)
        else:
            apply_sums_(*layer, last, ends)
    state.position.add_(q.shape[1]).remainder_(len(token_scale))
    return output(z.transpose(1, 2), q, outer)


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, lr: Tensor, outer: Outer, layers: list[InnerLayer]
) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    """Return (q [B, H, n, D], q @ W1 + b1, pairs) for n tokens of one mini-batch.

    pairs: for each layer, its inputs for the keys, and lr times the loss's gradients at its output for them.
    """
    first, *others = layers
    q, k, offset = (x.to(first.weight.dtype).transpose(1, 2) for x in (q, k, gradient_offset(k, v, outer)))
    zq, zk = affine(torch.cat((q, k), 2), first.weight, first.bias).chunk(2, 2)
    z, x = [zk], [k]
    for layer in others:
        x.append(gelu(z[-1]))
        z.append(affine(x[-1], layer.weight, layer.bias))
    rate = lr.transpose(1, 2).unsqueeze(-1)
    g = [rate * ln_l2_grad(z[-1], offset, outer.ln_weight.square().unsqueeze(1))]
    for layer, before in zip(reversed(others), reversed(z[:-1]), strict=True):
        g.insert(0, gelu_backward(g[0] @ layer.weight.mT, before))
    return q, zq, list(zip(x, g, strict=True))


def gelu(z: Tensor) -> Tensor:
    return F.gelu(z, approximate="tanh")


def gelu_backward(grad: Tensor, z: Tensor) -> Tensor:
    """Return the gradient at z, given the gradient `grad` at gelu(z)."""
    return torch.ops.aten.gelu_backward(grad, z, approximate="tanh")
