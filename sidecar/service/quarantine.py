"""Dropped messages, kept for whoever must find out what they were: recordings in a folder of bounded size."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from sidecar.outcome import Outcome
from sidecar.recording import Direction, Framing, Record, Writer
from sidecar.wire.msgpack import Buffer

PATTERN: Final = "quarantine-*.rec"
MAX_QUEUED_BYTES: Final = 16 << 20
"""What may wait for the disk: a flood of broken messages must not fill the memory."""

logger = logging.getLogger(__name__)


class Quarantine:
    """Writes dropped messages to a recording of this process in `folder`; None keeps nothing.

    `max_bytes` bounds the folder's recordings, those of earlier processes included. Messages that find
    no room are counted in `skipped`. Writing happens on a thread of its own.
    """

    def __init__(self, folder: Path | None, max_bytes: int, framing: Framing) -> None:
        self.messages = 0
        self.bytes = 0
        self.skipped = 0
        self._folder = folder
        self._max_bytes = max_bytes
        self._framing = framing
        self._queued = 0
        self._writer: Writer | None = None
        self._failed = False
        self._thread = ThreadPoolExecutor(1, "quarantine") if folder is not None else None

    def keep(self, frames: Sequence[Buffer], outcome: Outcome) -> None:
        """Keep a message, if there is room. On the event loop's thread."""
        nbytes = sum(map(len, frames))
        if self._thread is None or self._failed or self._queued + nbytes > MAX_QUEUED_BYTES:
            self.skipped += 1
            return
        reason = str(outcome.reason) if outcome.reason is not None else "no_form"
        record = Record.now(frames, Direction.INGRESS, self._framing, outcome="dropped", reason=reason)
        self._queued += nbytes
        self._thread.submit(self._write, record, nbytes)

    def close(self) -> None:
        """Write what still waits, and close the recording."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, record: Record, nbytes: int) -> None:
        try:
            if self._writer is None:
                self._writer = self._open()
            if self._writer.write(record):
                self.messages += 1
                self.bytes += nbytes
            else:
                self.skipped += 1
        except OSError as error:
            self._failed = True
            self.skipped += 1
            logger.error("quarantine stops: cannot write to %s: %s", self._folder, error.strerror or error)
        finally:
            self._queued -= nbytes

    def _open(self) -> Writer:
        assert self._folder is not None
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = sum(path.stat().st_size for path in self._folder.glob(PATTERN))
        path = self._folder / recording_name("quarantine")
        return Writer(path, max_bytes=max(self._max_bytes - there, 0), info={"pid": os.getpid()})


def recording_name(what: str) -> str:
    """A file name that sorts by time and that no other process takes."""
    return f"{what}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.rec"
