"""What saved records show: tables and pages for people; nothing here runs a system.

`write_report` and `write_table` are loaded when they are asked for: who only wants words needs no plotting library.
"""

from typing import Any

__all__ = ["write_report", "write_table"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from reports import publish

        return getattr(publish, name)
    raise AttributeError(f"module 'reports' has no attribute {name!r}")
