"""Run tests of Triton kernels on the GPU or, without a GPU, in Triton's interpreter (see conftest.py)."""

import os
from typing import Any

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available()
DEVICE = "cpu" if INTERPRETED else "cuda"


def speed_up() -> None:
    """Make Triton's interpreter up to ten times faster; its results stay the same bit for bit."""
    import numpy as np
    from triton.runtime.interpreter import InterpretedFunction, ReduceOps

    first_call, by_element, called = InterpretedFunction.__call__, ReduceOps.generic_reduce, set()

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.fn in called:
            return self.rewrite()(*arguments, **named)
        called.add(self.fn)  # a kernel's first call patches Triton's modules; that is slow, and the patches stay
        return first_call(self, *arguments, **named)

    def by_slice(self: Any, given: tuple[Any, ...]) -> list[Any]:
        if self.axis is None or self.keep_dims:
            return by_element(self, given)
        rows = ((np.moveaxis(each.handle.data, self.axis, 0), each.dtype) for each in given)
        first, *others = zip(*([self.to_tensor(x, dtype) for x in found] for found, dtype in rows), strict=True)
        for other in others:
            combined = self.combine_fn.fn(*first, *other)
            first = combined if isinstance(combined, tuple) else (combined,)
        return list(first)

    InterpretedFunction.__call__, ReduceOps.generic_reduce = call, by_slice
