"""Where messages come from: a recording, a folder of raw frames, or a file that is one message."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sidecar.errors import UsageError
from sidecar.inspection.page import read_page
from sidecar.recording import Reader, Record
from sidecar.recording.format import MAGIC, MAX_RECORD_BYTES
from sidecar.replay.decode import MessageKind
from sidecar.wire.tokenspeed import ENGINE_DEAD


class Source:
    """The messages of `path`; `-` is a recording on standard input.

    `is_stream` says that they are one stream in the order of time, not a collection. Iteration raises
    `UsageError` for what is neither a recording nor a message.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._reader: Reader | None = None
        self.is_stream = path == "-" or not os.path.isdir(path)

    @property
    def truncation(self) -> str:
        """What was left out of a recording that ends within a record; empty for a whole one."""
        found = self._reader.truncation if self._reader is not None else None
        return str(found) if found is not None else ""

    def __iter__(self) -> Iterator[Record]:
        single = _read_single(self._path)
        if single is not None:
            yield single
            return
        self._reader = Reader(self._path)
        folder = Path(self._path).resolve().name if os.path.isdir(self._path) else ""
        with self._reader:
            for record in self._reader:
                yield _named(record, folder) if folder else record


def _named(record: Record, folder: str) -> Record:
    """A record out of a folder, its source told from the folder on."""
    source = str(record.metadata.get("source", ""))
    where = source if source == folder else f"{folder}/{source}"
    return dataclasses.replace(record, metadata={**record.metadata, "source": where})


def _read_single(path: str) -> Record | None:
    """The message that a file holds in place of a recording; None for a recording, a folder, a pipe."""
    if path == "-" or os.path.isdir(path):
        return None
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return None
        head = file.read(len(ENGINE_DEAD))
        if not _begins_as_message(head):
            return None
        if status.st_size > MAX_RECORD_BYTES:
            raise UsageError(f"{path}: neither a recording nor a message: {status.st_size} bytes")
        payload = head + file.read()
    others = len(list(Path(path).absolute().parent.glob("[0-9]*.bin"))) - 1 if path.endswith(".bin") else 0
    hint = f" alone; the folder holds {others} more frames" if others > 0 else ""
    record = Record([payload], metadata={"source": Path(path).name + hint})
    page = read_page(record)
    if page.kind is MessageKind.UNREADABLE and page.problems:
        raise UsageError(f"{path}: neither a recording nor a message: {page.problems[0]}")
    return record


def _begins_as_message(head: bytes) -> bool:
    """Whether these first bytes are an array's or a map's, and neither a recording's nor a pickle's."""
    if head == ENGINE_DEAD:
        return True
    if not head or head.startswith(MAGIC[:6]) or (head[0] == 0x80 and head[1:2] in b"\x02\x03\x04\x05"):
        return False
    return 0x80 <= head[0] <= 0x9F or head[0] in (0xDC, 0xDD, 0xDE, 0xDF)
