"""Reading a recording from a file, a pipe or a folder of raw frames."""

from __future__ import annotations

import os
import stat
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, NoReturn

from sidecar.recording.folder import read_folder
from sidecar.recording.format import (
    FILE_HEADER,
    INDEX_ENTRY,
    INDEX_HEAD,
    INDEX_MAGIC,
    MAGIC,
    MAX_RECORD_BYTES,
    RECORD_HEADER,
    TRAILER,
    Kind,
    Record,
    RecordingError,
    Scalar,
    check_file_header,
    decode_facts,
    decode_message,
)

_CHUNK: Final = 1 << 20
_PICKLES: Final = frozenset({".pkl", ".pickle", ".pck", ".joblib", ".pt", ".pth", ".ckpt"})


@dataclass(frozen=True, slots=True)
class Truncation:
    """A recording that ends within a record: where that record begins, and how much of it is there."""

    offset: int
    nbytes: int

    def __str__(self) -> str:
        return f"cut short: {self.nbytes} bytes of an unfinished record at offset {self.offset} were left out"


@dataclass(frozen=True, slots=True)
class _Index:
    """Messages in the file, messages between two entries, and (offset, wall clock in ns) of each entry."""

    messages: int
    stride: int
    entries: tuple[tuple[int, int], ...]


class Reader:
    """Iterates the records of a recording; `-` is standard input.

    A folder of raw frames reads like a recording (see `sidecar.recording.folder`). A cut tail is no
    error: iteration ends before it and `truncation` says what was left out. Everything else that is
    not as the format demands raises `RecordingError`, which names the offset. One record at most is in
    memory; one larger than `max_record_bytes` is refused before it is read. `record_offset` is where the
    record begins that iteration gave last, `seekable` whether one can go back to it.
    """

    def __init__(self, path: str | Path, *, max_record_bytes: int = MAX_RECORD_BYTES) -> None:
        self.name = str(path)
        self.info: Mapping[str, Scalar] = {}
        self.truncation: Truncation | None = None
        self.record_offset = 0
        self._max_bytes = max_record_bytes
        self._position = 0
        self._index: _Index | None = None
        self._folder: Path | None = None
        if Path(self.name).suffix.lower() in _PICKLES:
            raise RecordingError(f"{self.name}: pickles are never read; give a recording or a folder of raw frames")
        if self.name != "-" and os.path.isdir(self.name):
            self._folder = Path(self.name)
            self._file: BinaryIO | None = None
            self.seekable = False
            return
        self._file = (
            os.fdopen(os.dup(sys.stdin.fileno()), "rb", _CHUNK) if self.name == "-" else open(self.name, "rb", _CHUNK)  # noqa: SIM115 - closed by close()
        )
        self.seekable = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode) and self.name != "-"
        try:
            check_file_header(self._read(FILE_HEADER.size), self.name)
            if self.seekable:
                self._index = self._read_index()
                self._go(FILE_HEADER.size)
        except BaseException:
            self._file.close()
            raise

    def __iter__(self) -> Iterator[Record]:
        if self._folder is not None:
            yield from read_folder(self._folder)
            return
        while (header := self._header()) is not None:
            length, kind, crc = header
            body = self._read(length)
            if len(body) < length:
                self._cut(len(body))
                return
            if zlib.crc32(body) != crc:
                self._damaged("the checksum of a record does not match")
            try:
                if kind == Kind.MESSAGE:
                    record = decode_message(body, self._max_bytes)
                elif kind == Kind.INFO and not self.info:
                    self.info = decode_facts(body)
            except ValueError as error:
                self._damaged(str(error))
            if kind == Kind.MESSAGE:
                yield record

    def count(self) -> int:
        """Messages in the recording. Where there is no index they are counted by hopping over them."""
        if self._folder is not None:
            return sum(1 for _ in read_folder(self._folder))
        if not self.seekable:
            raise RecordingError(f"{self.name}: a pipe has no length")
        if self._index is not None:
            return self._index.messages
        with Reader(self.name, max_record_bytes=self._max_bytes) as other:
            return sum(1 for kind in other._hops() if kind == Kind.MESSAGE)

    def seek(self, number: int) -> None:
        """Go on with message `number`, counted from 0; past the end, iteration ends at once.

        With an index this starts at the nearest entry, without one at the beginning, and hops over what
        lies between.
        """
        if not self.seekable:
            raise RecordingError(f"{self.name}: only in a recording that is a file can be sought")
        offset, passed = FILE_HEADER.size, 0
        if self._index is not None and self._index.entries:
            nearest = min(max(number, 0) // self._index.stride, len(self._index.entries) - 1)
            offset, passed = self._index.entries[nearest][0], nearest * self._index.stride
        self._go(offset)
        if passed < number:
            for kind in self._hops():
                passed += kind == Kind.MESSAGE
                if passed == number:
                    break

    def seek_time(self, wall_ns: int) -> None:
        """Go on with the first message that was seen at `wall_ns` (Unix time, ns) or later."""
        number = 0
        if self._index is not None:
            earlier = sum(1 for entry in self._index.entries if entry[1] < wall_ns)
            number = max(earlier - 1, 0) * self._index.stride
        self.seek(number)
        for record in self:
            if record.wall_ns >= wall_ns:
                self._go(self.record_offset)
                return

    def read_at(self, offset: int) -> Record:
        """The message whose record begins at `offset`: an earlier `record_offset`. Iteration goes on where it was."""
        before, at = self._position, self.record_offset
        self._go(offset)
        record = next(iter(self))
        self._go(before)
        self.record_offset = at
        return record

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _header(self) -> tuple[int, int, int] | None:
        """Body length, kind and body checksum of the next record, None at the end."""
        while True:
            self.record_offset = self._position
            head = self._read(FILE_HEADER.size)
            if head.startswith(MAGIC) and len(head) == FILE_HEADER.size:
                check_file_header(head, self.name)  # recordings that were joined with `cat`
                continue
            head += self._read(RECORD_HEADER.size - len(head)) if len(head) == FILE_HEADER.size else b""
            break
        if not head:
            return None
        if len(head) < RECORD_HEADER.size:
            self._cut(0, len(head))
            return None
        length, kind, flags, _, crc, head_crc = RECORD_HEADER.unpack(head)
        if zlib.crc32(head[:-4]) != head_crc:
            if not head.strip(b"\0") and self._only_zeros():
                self._cut(0, len(head))  # what a file system leaves of a write that a crash cut off
                return None
            self._damaged("the header of a record is damaged (its checksum does not match)")
        if flags:
            self._damaged(f"a record with flags {flags:#x}, not known to this version")
        if length > self._max_bytes:
            self._damaged(f"a record of {length} bytes; at most {self._max_bytes} are read")
        return length, kind, crc

    def _hops(self) -> Iterator[int]:
        """The kinds of the records to come, without reading their bodies."""
        while (header := self._header()) is not None:
            length, kind, _ = header
            if self._remaining() < length:
                self._cut(self._remaining())
                return
            self._go(self._position + length)
            yield kind

    def _read(self, n: int) -> bytes:
        """Up to `n` bytes, fewer at the end. Allocates no more than there is."""
        assert self._file is not None
        if self.seekable:
            data = self._file.read(n if n <= _CHUNK else min(n, self._remaining()))
        else:
            chunks = []
            while n > 0 and (chunk := self._file.read(min(n, _CHUNK))):
                chunks.append(chunk)
                n -= len(chunk)
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._position += len(data)
        return data

    def _remaining(self) -> int:
        assert self._file is not None
        return max(os.fstat(self._file.fileno()).st_size - self._position, 0)

    def _go(self, offset: int) -> None:
        assert self._file is not None
        self._file.seek(offset)
        self._position = offset

    def _only_zeros(self) -> bool:
        while chunk := self._read(_CHUNK):
            if chunk.strip(b"\0"):
                return False
        return True

    def _cut(self, body: int, header: int = RECORD_HEADER.size) -> None:
        self.truncation = Truncation(self.record_offset, header + body)

    def _damaged(self, what: str) -> NoReturn:
        raise RecordingError(f"{self.name}: {what}, at offset {self.record_offset}")

    def _read_index(self) -> _Index | None:
        """The index, None where there is none or where it does not fit this file."""
        size = self._remaining() + self._position
        smallest = FILE_HEADER.size + RECORD_HEADER.size + INDEX_HEAD.size + TRAILER.size
        if size < smallest:
            return None
        self._go(size - TRAILER.size)
        offset, magic = TRAILER.unpack(self._read(TRAILER.size))
        if magic != INDEX_MAGIC or not FILE_HEADER.size <= offset <= size - RECORD_HEADER.size:
            return None
        self._go(offset)
        head = self._read(RECORD_HEADER.size)
        length, kind, _, _, crc, head_crc = RECORD_HEADER.unpack(head)
        if kind != Kind.INDEX or zlib.crc32(head[:-4]) != head_crc or self._position + length != size:
            return None
        body = self._read(length)
        if zlib.crc32(body) != crc:
            return None
        messages, stride, n = INDEX_HEAD.unpack_from(body)
        table = body[INDEX_HEAD.size : -TRAILER.size]
        if len(table) != n * INDEX_ENTRY.size or not stride or n != -(-messages // stride):
            return None
        entries = tuple(INDEX_ENTRY.iter_unpack(table))
        if any(not FILE_HEADER.size <= entry[0] < offset for entry in entries):
            return None
        return _Index(messages, stride, entries)
