"""Writing a recording: append-only, every record handed to the operating system before `write` returns."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from sidecar.recording.format import (
    INDEX_ENTRY,
    INDEX_HEAD,
    INDEX_MAGIC,
    TRAILER,
    Kind,
    Record,
    RecordingError,
    Scalar,
    encode_info,
    encode_message,
    file_header,
    record_header,
)
from sidecar.recording.reader import Reader
from sidecar.wire.msgpack import Buffer

_IOV_MAX: Final = 1024
_INDEX_MAX_ENTRIES: Final = 65536


class Index:
    """Where messages begin. Beyond 65,536 entries every second one is dropped, so that it stays small."""

    def __init__(self) -> None:
        self.messages = 0
        self._stride = 1
        self._entries: list[tuple[int, int]] = []

    def add(self, offset: int, wall_ns: int) -> None:
        """Count a message and, if it is its turn, remember where it begins."""
        if self.messages % self._stride == 0:
            if len(self._entries) == _INDEX_MAX_ENTRIES:
                del self._entries[1::2]
                self._stride *= 2
            if self.messages % self._stride == 0:
                self._entries.append((offset, wall_ns))
        self.messages += 1

    def encode(self, offset: int) -> list[Buffer]:
        """The parts of an index record that begins at `offset`."""
        body = INDEX_HEAD.pack(self.messages, self._stride, len(self._entries))
        body += b"".join(INDEX_ENTRY.pack(*entry) for entry in self._entries)
        body += TRAILER.pack(offset, INDEX_MAGIC)
        return [record_header(Kind.INDEX, [body]), body]


class Writer:
    """Appends records to a file, or to standard output for `-`.

    A record is one `writev`: a reader of the growing file sees whole records, or at worst one cut short,
    which it reports. `close` adds the index; a recording without one (the process was killed) reads the
    same, only seeking is slower. With `append` an existing recording is continued, a cut tail removed.

    `max_bytes` bounds the file: a record that would pass it is not written, `write` answers False from
    then on, and `full` is set. Not for use by several threads at once.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        max_bytes: int | None = None,
        compress: bool = True,
        append: bool = False,
        info: Mapping[str, Scalar] | None = None,
    ) -> None:
        self.name = str(path)
        self.full = False
        self._max_bytes = max_bytes
        self._compress = compress
        self._index = Index()
        self._offset = 0
        if self.name == "-":
            self._fd = os.dup(sys.stdout.fileno())
        else:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if append else os.O_TRUNC), 0o600)
        self._seekable = stat.S_ISREG(os.fstat(self._fd).st_mode)
        try:
            if append and self._seekable and os.fstat(self._fd).st_size:
                self._resume()
            else:
                self._append([file_header()])
                if info:
                    self._append(encode_info(info))
        except BaseException:
            os.close(self._fd)
            self._fd = -1
            raise

    @property
    def messages(self) -> int:
        """Messages in the recording, those that it held before included."""
        return self._index.messages

    @property
    def nbytes(self) -> int:
        """Bytes in the recording, without the index to come."""
        return self._offset

    def write(self, record: Record) -> bool:
        """Append a message. False, and nothing is written, once the recording is full.

        An OSError (the disk is full, the reader of a pipe has left) leaves the file as it was before.
        """
        if self.full:
            return False
        parts = encode_message(record, compress=self._compress)
        size = sum(memoryview(part).nbytes for part in parts)
        if self._max_bytes is not None and self._offset + size > self._max_bytes:
            self.full = True
            return False
        start = self._offset
        self._append(parts)
        self._index.add(start, record.wall_ns)
        return True

    def close(self) -> None:
        """Write the index and close. A second call does nothing."""
        if self._fd < 0:
            return
        try:
            if self._seekable:
                with contextlib.suppress(OSError):  # a recording without an index is whole
                    self._append(self._index.encode(self._offset))
        finally:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _resume(self) -> None:
        """Take over an existing recording: count its messages and go to the end of its last whole record."""
        with Reader(self.name) as reader:
            for record in reader:
                self._index.add(reader.record_offset, record.wall_ns)
            if reader.truncation is not None:
                os.ftruncate(self._fd, reader.truncation.offset)
        self._offset = os.lseek(self._fd, 0, os.SEEK_END)

    def _append(self, parts: Sequence[Buffer]) -> None:
        if self._fd < 0:
            raise RecordingError(f"{self.name}: the recording is closed")
        waiting = [view for part in parts if (view := memoryview(part).cast("B")).nbytes]
        total = written = sum(view.nbytes for view in waiting)
        try:
            while waiting:
                written = os.writev(self._fd, waiting[:_IOV_MAX])
                while waiting and written >= waiting[0].nbytes:
                    written -= waiting.pop(0).nbytes
                if written:
                    waiting[0] = waiting[0][written:]
        except OSError:
            if self._seekable:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._offset)
                    os.lseek(self._fd, self._offset, os.SEEK_SET)
            else:
                self.full = True
            raise
        self._offset += total
