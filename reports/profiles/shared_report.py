"""Removes the names of host, programs and folders from a report of Nsight Compute (.ncu-rep), so that it can be shared.

The file is `NVR`, then a header and blocks: a size in four bytes, a protobuf message of that size, and a payload.
Source: ProfilerReport.proto, which NVIDIA ships with Nsight Compute (extras/FileFormat).
Each text is overwritten by as many characters, so that all sizes stay valid.
A report of Nsight Systems holds the environment of its processes, partly compressed, so it is not shared.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_START = b"NVR\0"
_PAYLOAD_SIZE = 5  # field of a BlockHeader
# Fields of a BlockHeader that are kept, or of which parts are kept; the texts of all others are overwritten.
_SYSTEM = dict.fromkeys((1, 2, 3, 4, 6))  # all except the computer's name and addresses
_SESSION = {3: _SYSTEM, 4: _SYSTEM, 5: None, 6: None, 8: None, 10: None}
_BLOCK: Mapping[int, Any] = {3: _SESSION, 4: None, 6: {}}
# Folders in the rest of the file. A single short one is overwritten only if its name is usual: "/a/" may be a number.
_FOLDERS = re.compile(rb"(?:/[\w.+@~-]{2,}){2,}/|/(?:[\w.+@~-]{6,}|root|home|Users|work|tmp|opt|data|mnt)/")


def without_names(report: bytes) -> bytes:
    """Return the report with all names of host, programs and folders overwritten, at the same size.

    Raises ValueError if the file is no report of Nsight Compute, or if a name remains in an unknown part of the file.
    """
    if not report.startswith(_START):
        raise ValueError("no report of Nsight Compute")
    found, names = bytearray(report), set[bytes]()
    _, at = _sized(report, len(_START))
    try:
        while at < len(report):
            start, end = _sized(report, at)
            names |= set(_overwrite(found, start, end, _BLOCK))
            at = end + sum(value for number, value, *_ in _fields(report, start, end) if number == _PAYLOAD_SIZE)
    except LookupError:
        raise ValueError("truncated, or of an unknown format") from None
    shared = _FOLDERS.sub(lambda folders: re.sub(rb"[^/]", b"x", folders[0]), bytes(found))
    if any(name in shared for name in names if len(name) > 3) or at != len(report):  # a shorter name may be a number
        raise ValueError("a name is in a part of the report that is not known")
    return shared


def _overwrite(report: bytearray, start: int, end: int, kept: Mapping[int, Any]) -> Iterator[bytes]:
    """Overwrite the texts of the message in report[start:end], and yield each original text.

    kept: field numbers to keep; the value None keeps the whole field, a mapping says what to keep within it.
    """
    for number, _, first, last in list(_fields(report, start, end)):
        if number not in kept:
            yield bytes(report[first:last])
            report[first:last] = b"x" * (last - first)
        elif kept[number] is not None:
            yield from _overwrite(report, first, last, kept[number])


def _fields(report: bytes | bytearray, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (field number, value, start, end) for the fields of the protobuf message in report[at:end].

    An integer has its value and the extent (0, 0); a text or message has the value 0 and its extent.
    """
    while at < end:
        tag, at = _varint(report, at)
        value = first = last = 0
        if tag & 7 == 0:
            value, at = _varint(report, at)
        elif tag & 7 == 2:
            size, first = _varint(report, at)
            last = at = first + size
        else:
            at += {1: 8, 5: 4}[tag & 7]
        if at > end:
            raise ValueError("a field beyond the end of its message")
        yield tag >> 3, value, first, last


def _varint(report: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return (the protobuf integer of variable length at position `at`, the position after it)."""
    value = shift = 0
    while True:
        byte, at = report[at], at + 1
        value, shift = value | (byte & 127) << shift, shift + 7
        if byte < 128:
            return value, at


def _sized(report: bytes, at: int) -> tuple[int, int]:
    """Return (start, end) of the message whose size stands in the four bytes at position `at`."""
    start = at + 4
    return start, start + int.from_bytes(report[at:start], "little")
