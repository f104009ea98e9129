"""Whether a system's packages can be imported here and, if not, which one fails and how."""

import importlib
import importlib.util

from bench.errors import CANNOT_IMPORT
from harness.measure.environment import versions_of
from harness.measure.system import Skip
from harness.schema.reason import of_exception
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


def cannot_find(package: str) -> str:
    """One sentence where there is no such package; "" where there is, though it may fail when it is imported.

    For a package that takes long to import and has no extension of its own: a case imports it.
    """
    return "" if importlib.util.find_spec(package) else f"{package} {CANNOT_IMPORT}: No module named {package!r}"


def other_release(package: str, oldest: str, newest: str) -> str:
    """Name the release to install where the installed one is not of a minor from `oldest` to `newest`; else ""."""
    version = versions_of((package,)).get(package, newest)
    if _minor(oldest) <= _minor(version) <= _minor(newest):
        return ""
    return f"{package} {version} is not supported: install {package}=={newest}.* (supported: {oldest} to {newest})"


def import_or_skip(*modules: str) -> None:
    """Import modules that a case needs; Skip says which cannot be imported."""
    if why := cannot_import(*modules):
        raise Skip(why)


def needs_gpu(*modules: str) -> str:
    """`no_gpu`, which no package makes good, then `cannot_import`: these systems have no other kernels."""
    return no_gpu() or cannot_import(*modules)


def no_gpu() -> str:
    """One sentence where there is no CUDA GPU."""
    import torch

    return "" if torch.cuda.is_available() else NO_GPU


def _minor(version: str) -> tuple[int, ...]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _message(error: Exception) -> str:
    """Import errors speak for themselves; of others the type tells too."""
    return str(error).splitlines()[0] if isinstance(error, ImportError) and str(error) else of_exception(error)
