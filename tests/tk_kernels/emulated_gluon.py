"""Run Gluon kernels on a CPU, one program after another, on PyTorch tensors.

Triton's interpreter does not support Gluon. The emulator ignores layouts, which the compiler checks. Shared memory is
NaN until written, and an asynchronous copy arrives only when the kernel waits for it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor


class Value:
    type = SimpleNamespace(layout=None)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.dtype = tensor.dtype

    def to(self, dtype: torch.dtype, bitcast: bool = False) -> Value:
        return Value(self.tensor.view(dtype) if bitcast else self.tensor.to(dtype))

    def expand_dims(self, axis: int) -> Value:
        return Value(self.tensor.unsqueeze(axis))

    def reshape(self, shape: list[int]) -> Value:
        return Value(self.tensor.reshape(shape))

    def permute(self, order: list[int]) -> Value:
        return Value(self.tensor.permute(order))

    def broadcast_to(self, shape: list[int]) -> Value:
        return Value(self.tensor.broadcast_to(shape))

    def __getitem__(self, index: Any) -> Value:
        return Value(self.tensor[index])

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __index__(self) -> int:
        return int(self.tensor)

    def __neg__(self) -> Value:
        return Value(-self.tensor)


def _operated(name: str, reflected: bool) -> Callable[[Value, Any], Any]:
    function = getattr(operator, name)

    def apply(self: Value, other: Any) -> Any:
        if isinstance(other, Pointer):
            return NotImplemented
        a, b = self.tensor, other
        if isinstance(other, Value):  # unlike PyTorch, Triton promotes scalars like tensors
            dtype = torch.promote_types(a.dtype, other.tensor.dtype)
            a, b = a.to(dtype), other.tensor.to(dtype)
        return Value(function(b, a) if reflected else function(a, b))

    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor", "rshift", "lshift"):
    setattr(Value, f"__{_name.strip('_')}__", _operated(_name, False))
    setattr(Value, f"__r{_name.strip('_')}__", _operated(_name, True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Value, f"__{_name}__", _operated(_name, False))


class Pointer:
    def __init__(self, memory: Tensor, at: Any = 0) -> None:
        self.memory, self.at = memory, at
        self.dtype = SimpleNamespace(element_ty=memory.dtype)

    @classmethod
    def to(cls, tensor: Tensor) -> Pointer:
        """Return a pointer to a tensor's first element; later elements of its storage are readable too."""
        size = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        return cls(tensor.as_strided((size,), (1,)))

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.at + (offset.tensor if isinstance(offset, Value) else offset))

    __radd__ = __add__

    def read(self, mask: Value | None, other: float | None) -> Tensor:
        at, inside = self._masked(mask)
        found = self.memory[torch.where(inside, at, 0)]
        return torch.where(inside, found, torch.tensor(float("nan") if other is None else other).to(found.dtype))

    def write(self, value: Any, mask: Value | None) -> None:
        at, inside = self._masked(mask)
        values = (value.tensor if isinstance(value, Value) else torch.tensor(value)).to(self.memory.dtype)
        self.memory[at[inside]] = values.broadcast_to(at.shape)[inside]

    def _masked(self, mask: Value | None) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(self.at)
        inside = torch.tensor(True) if mask is None else mask.tensor
        at, inside = torch.broadcast_tensors(at, inside)
        if inside.any() and (int(at[inside].min()) < 0 or int(at[inside].max()) >= len(self.memory)):
            raise IndexError("a kernel reads or writes beyond a tensor's memory")
        return at, inside


class Shared:
    """An allocation of shared memory, which holds NaN (integers: the lowest value) until written."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.dtype = tensor.dtype

    def load(self, layout: object = None) -> Value:
        return Value(self.tensor.clone())

    def store(self, value: Value) -> None:
        assert value.tensor.shape == self.tensor.shape
        self.tensor.copy_(value.tensor)

    def index(self, number: int) -> Shared:
        return Shared(self.tensor[number])

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        return Shared(self.tensor.narrow(dim, start, length))

    def permute(self, order: tuple[int, ...]) -> Shared:
        return Shared(self.tensor.permute(order))

    def _reinterpret(self, dtype: torch.dtype, shape: list[int], layout: Any) -> Shared:
        """Return a copy, read as [rows, columns] in a SharedLinearLayout: offset 2**i is element layout.bases[i]."""
        assert dtype == self.dtype
        offsets = torch.zeros(shape, dtype=torch.int64)
        rows, columns = torch.meshgrid(*map(torch.arange, shape), indexing="ij")
        for bit, (row, column) in enumerate(layout.bases):
            offsets += ((rows & row) | (columns & column) != 0).to(torch.int64) << bit
        return Shared(self.tensor.reshape(-1)[offsets])


class Copies:
    def __init__(self) -> None:
        self.pending: list[Callable[[], object]] = []
        self.groups: list[list[Callable[[], object]]] = []

    def async_copy_global_to_shared(self, to: Shared, source: Pointer, mask: Value | None = None) -> None:
        self.pending.append(lambda: to.tensor.copy_(source.read(mask, 0)))

    def commit_group(self) -> None:
        self.groups.append(self.pending)
        self.pending = []

    def wait_group(self, left: int) -> None:
        arrived, self.groups = self.groups[: len(self.groups) - left], self.groups[len(self.groups) - left :]
        for group in arrived:
            for copy in group:
                copy()


def _tensor(x: Any) -> Tensor:
    return x.tensor if isinstance(x, Value) else torch.tensor(x)


def _shared(dtype: torch.dtype, shape: list[int], layout: object) -> Shared:
    empty = float("nan") if dtype.is_floating_point else torch.iinfo(dtype).min
    return Shared(torch.full(shape, empty, dtype=dtype))


def _layout(*arguments: Any, **_: Any) -> SimpleNamespace:
    return SimpleNamespace(bases=arguments[0])


_TYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "int16", "int32", "int64")}
_LAYOUTS = ("Blocked", "Slice", "SwizzledShared", "SharedLinear", "DistributedLinear", "NVMMADistributed", "DotOperand")


def _language(program: int) -> SimpleNamespace:
    return SimpleNamespace(
        **_TYPES,
        **{f"{name}Layout": _layout for name in _LAYOUTS},
        program_id=lambda axis: Value(torch.tensor(program)),
        arange=lambda start, end, layout=None: Value(torch.arange(start, end, dtype=torch.int32)),
        static_range=range,
        load=lambda pointer, mask=None, other=None, **_: Value(pointer.read(mask, other)),
        store=lambda pointer, value, mask=None: pointer.write(value, mask),
        sum=lambda x, axis: Value(x.tensor.sum(axis)),
        where=lambda condition, x, y: Value(torch.where(condition.tensor, _tensor(x), _tensor(y))),
        full=lambda shape, value, dtype, layout: Value(torch.full(shape, value, dtype=dtype)),
        max=lambda x, axis: Value(x.tensor.amax(axis)),
        maximum=lambda x, y: Value(torch.maximum(x.tensor, _tensor(y))),
        sqrt=lambda x: Value(x.tensor.sqrt()),
        rsqrt=lambda x: Value(x.tensor.rsqrt()),
        sigmoid=lambda x: Value(x.tensor.sigmoid()),
        convert_layout=lambda x, layout, assert_trivial=False: x,
        allocate_shared_memory=_shared,
        debug_barrier=lambda: None,
    )


# CPU versions of the helpers that use GPU instructions.
_ASSEMBLY: dict[str, Any] = {
    "widen": lambda x: x.to(torch.float32),
    "narrow": lambda x, dtype: x.to(dtype),
    "all_loads_before": lambda position: None,
    "tanh": lambda x: Value(x.tensor.tanh()),
    "mma_v2": lambda a, b, sums: sums + Value(a.tensor.float() @ b.tensor.float()),
}


def _rebuilt(kernel: Any, replacements: dict[str, Any]) -> FunctionType:
    """Turn a Gluon or Triton function and its callees into plain functions, with globals from `replacements`."""
    function = getattr(kernel, "fn", kernel)
    names = {**function.__globals__, **replacements}
    for name in function.__code__.co_names:
        if name not in replacements and hasattr(names.get(name), "fn"):
            names[name] = _rebuilt(names[name], replacements)
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)


def _argument(x: Any) -> Any:
    return Pointer.to(x) if isinstance(x, Tensor) else x


class Emulated:
    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.launches = 0

    def run(self, *arguments: Any, grid: tuple[int, ...], **options: Any) -> None:
        self.launches += 1
        names = self.kernel.fn.__code__.co_varnames  # all other options are launch options
        arguments = tuple(map(_argument, arguments))
        named = {name: _argument(x) for name, x in options.items() if name in names}
        for program in range(grid[0]):
            copies, language = Copies(), _language(program)
            function = _rebuilt(self.kernel, {**_ASSEMBLY, "gl": language, "tl": language, "async_copy": copies})
            function(*arguments, **named)
            assert not copies.pending
            assert not any(copies.groups), "a kernel ends before its asynchronous copies arrive"
