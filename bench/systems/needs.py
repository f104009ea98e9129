"""Report why a system cannot run here: failed imports, unsupported releases, or no GPU."""

import importlib

from bench.errors import CANNOT_IMPORT
from harness.measure.environment import versions_of
from harness.measure.system import Skip
from harness.schema.reason import of_exception
from tk_kernels.build import NO_GPU


def cannot_import(*modules: str) -> str:
    """Import the modules. Return a message for the first that fails; "" if all succeed."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # an extension built for another torch or CUDA can raise any exception
            why = str(error).splitlines()[0] if isinstance(error, ImportError) and str(error) else of_exception(error)
            return f"{name.partition('.')[0]} {CANNOT_IMPORT}: {why}"
    return ""


def unsupported_release(package: str, oldest: str, newest: str) -> str:
    """Return a message for an installed minor release outside `oldest` to `newest`, else ""."""
    version = versions_of((package,)).get(package, newest)
    if _minor(oldest) <= _minor(version) <= _minor(newest):
        return ""
    return f"{package} {version} is not supported: install {package}=={newest}.* (supported: {oldest} to {newest})"


def import_or_skip(*modules: str) -> None:
    """Import the modules that a case needs. Raises Skip if one cannot be imported."""
    if why := cannot_import(*modules):
        raise Skip(why)


def no_gpu() -> str:
    """Return an error message if PyTorch finds no CUDA GPU; "" if it finds one."""
    import torch

    return "" if torch.cuda.is_available() else NO_GPU


def _minor(version: str) -> tuple[int, ...]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
