"""Whether a system's packages can be imported here and, if not, which one fails and how."""

import importlib

from bench.errors import CANNOT_IMPORT
from harness.reason import of_exception
from tk_kernels.build import NO_GPU


def cannot_import(*modules: str) -> str:
    """One sentence about the first of `modules` that cannot be imported; "" where all can.

    Every exception counts, as an extension built for another torch or another CUDA raises anything.
    """
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            return f"{name.partition('.')[0]} {CANNOT_IMPORT}: {_message(error)}"
    return ""


def needs_gpu(*modules: str) -> str:
    """`cannot_import`, then whether there is a CUDA GPU: these systems have no other kernels."""
    import torch

    return cannot_import(*modules) or ("" if torch.cuda.is_available() else NO_GPU)


def _message(error: Exception) -> str:
    """Import errors speak for themselves; of others the type tells too."""
    return str(error).splitlines()[0] if isinstance(error, ImportError) and str(error) else of_exception(error)
