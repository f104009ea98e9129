"""Report packages of a system that are missing, broken or of another release."""

import importlib
import importlib.util

from bench.errors import CANNOT_IMPORT
from harness.measure.environment import versions_of
from harness.measure.system import Skip
from harness.schema.reason import of_exception
from tk_kernels.build import NO_GPU


def cannot_import(*modules: str) -> str:
    """Name the first of `modules` that cannot be imported, and why; "" if all can.

    Every exception counts: an extension built for another torch or CUDA may raise any.
    """
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            return f"{name.partition('.')[0]} {CANNOT_IMPORT}: {_message(error)}"
    return ""


def cannot_find(package: str) -> str:
    """Report a missing package without importing it; "" if it is installed.

    For packages that take seconds to import and have no extension of their own.
    """
    return "" if importlib.util.find_spec(package) else f"{package} {CANNOT_IMPORT}: No module named {package!r}"


def other_release(package: str, oldest: str, newest: str) -> str:
    """Report an installed minor release older than `oldest` or newer than `newest`; "" if it is supported."""
    version = versions_of((package,)).get(package, newest)
    if _minor(oldest) <= _minor(version) <= _minor(newest):
        return ""
    return f"{package} {version} is not supported: install {package}=={newest}.* (supported: {oldest} to {newest})"


def import_or_skip(*modules: str) -> None:
    """Import modules that a case needs; raise Skip if one cannot be imported."""
    if why := cannot_import(*modules):
        raise Skip(why)


def no_gpu() -> str:
    """Report a missing CUDA GPU; "" if there is one."""
    import torch

    return "" if torch.cuda.is_available() else NO_GPU


def _minor(version: str) -> tuple[int, ...]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _message(error: Exception) -> str:
    """Return the first line of an ImportError's message; for other errors, the type and the first line."""
    return str(error).splitlines()[0] if isinstance(error, ImportError) and str(error) else of_exception(error)
