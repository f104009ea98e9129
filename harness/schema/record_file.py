"""A file of records, one JSON line each: appended by one writer, read by any, whole after a kill."""

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from harness.schema.files import BYTE_ORDER_MARK, refuse_pointer, refusing
from harness.schema.record import LINE_START, Record, RecordError

LINE_LIMIT = 256 << 20  # bytes, beyond what a worker may answer however it is escaped


class RecordFile:
    """Records in a file, one JSON line each, only ever appended by whoever holds the run (`Run.held`).

    A last line that a killed writer left incomplete is passed over in reading and cut off before the next line is
    written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def append(self, record: Record) -> None:
        """Write one whole line and wait until it is on the disk; RecordError for one that could not be read again."""
        line = (record.to_json() + "\n").encode()
        Record.from_json(line)  # a field may have been set since
        with refusing(self.path, "written", RecordError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Not O_TRUNC: nothing that is there may be lost. Not O_APPEND: a failed write is cut off again.
            fd = _open_regular(self.path, os.O_RDWR | os.O_CREAT)
            try:
                self._repair(fd)
                end = os.lseek(fd, 0, os.SEEK_END)
                try:
                    _write_all(fd, line)
                    os.fsync(fd)
                except BaseException:
                    os.ftruncate(fd, end)
                    raise
            finally:
                os.close(fd)

    def read(self) -> list[Record]:
        """Every record in order; none where there is no file. RecordError names the file and the line."""
        return list(self)

    def count_lines(self) -> int:
        """How many lines the file has, without parsing them; 0 where there is no file."""
        with refusing(self.path, "read", RecordError):
            try:
                descriptor = _open_regular(self.path, os.O_RDONLY)
            except FileNotFoundError:
                return 0
            with os.fdopen(descriptor, "rb") as file:
                return sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))

    def __iter__(self) -> Iterator[Record]:
        held: tuple[int, bytes] | None = None
        with refusing(self.path, "read", RecordError):
            try:
                descriptor = _open_regular(self.path, os.O_RDONLY)
            except FileNotFoundError:
                return
            with os.fdopen(descriptor, "rb") as file:
                for number, line in enumerate(iter(lambda: file.readline(LINE_LIMIT), b""), start=1):
                    if held is not None:
                        yield _parse(self.path, *held)
                    if len(line) == LINE_LIMIT:
                        raise RecordError(f"{self.path}, line {number}: is too long for a record")
                    held = (number, line)
        if held is not None and not _is_torn(held[1]):
            yield _parse(self.path, *held)

    def _repair(self, fd: int) -> None:
        """Cut off a last line that is not whole; end one that lacks only its newline."""
        start, line = _last_line(fd)
        if len(line) >= LINE_LIMIT:
            raise RecordError(f"{self.path}, last line: is too long for a record")
        if _is_torn(line):
            os.ftruncate(fd, start)
        elif line and not line.endswith(b"\n"):
            _parse(self.path, None, line)
            os.lseek(fd, 0, os.SEEK_END)
            _write_all(fd, b"\n")


def _open_regular(path: Path, flags: int) -> int:
    """A descriptor of a file that is no link (a stranger's run must not lead outside of its folder), pipe or device."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RecordError(f"{path}: is a link; a run holds its records itself") from None
        if error.errno == errno.ENXIO:
            raise RecordError(f"{path}: is not a regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RecordError(f"{path}: is not a regular file")
    refuse_pointer(descriptor)
    return descriptor


def _is_torn(line: bytes) -> bool:
    """Whether a last line is the beginning of a record whose writer died; never true of what is not ours."""
    line = line.removeprefix(BYTE_ORDER_MARK)
    if not line.startswith(LINE_START[: len(line)]):
        return False
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        return not error.msg.startswith("Extra data")  # after a whole record, which is not to be lost
    except ValueError:
        return True
    except RecursionError:  # whole as far as it was read, and nothing that `to_json` wrote
        return False
    return False


def _parse(path: Path, number: int | None, line: bytes) -> Record:
    where = f"{path}, {'last line' if number is None else f'line {number}'}"
    try:
        return Record.from_json(line.removeprefix(BYTE_ORDER_MARK))
    except RecordError as error:
        advice = "; delete that line, and `run --resume` measures its case again" if "not JSON" in str(error) else ""
        raise RecordError(f"{where}: {error}{advice}") from None


def _last_line(fd: int) -> tuple[int, bytes]:
    """(offset, bytes) of the last line; (0, b"") of an empty file."""
    end = start = os.lseek(fd, 0, os.SEEK_END)
    tail, step = b"", min(end, 1 << 16)
    while start > 0:
        start -= step
        tail = os.pread(fd, step, start) + tail
        newline = tail.rfind(b"\n", 0, len(tail) - 1)
        if newline >= 0:
            return end - len(tail) + newline + 1, tail[newline + 1 :]
        step = min(start, 2 * step)  # so that a long line is not copied for each small piece of it
    return 0, tail


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
