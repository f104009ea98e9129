"""Demangle the names of C++ kernels as `torch.profiler` does, so that every reader calls a kernel the same."""

import ctypes
from collections.abc import Callable
from functools import cache


def demangled(name: str) -> str:
    """The name of a mangled C++ symbol; other names, and all of them where there is no libstdc++, as they are."""
    return _demangler()(name)


@cache
def _demangler() -> Callable[[str], str]:
    """`abi::__cxa_demangle`."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return lambda name: name
    library.__cxa_demangle.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]

    def of_symbol(name: str) -> str:
        status = ctypes.c_int()
        address = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
        if not address:
            return name
        try:
            return ctypes.string_at(address).decode(errors="replace")
        finally:
            library.free(address)

    return of_symbol
