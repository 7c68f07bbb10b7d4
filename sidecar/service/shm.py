"""The probe through which the core looks at shared memory: stat and unlink below /dev/shm, never an attach."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from sidecar.admission.shm import SegmentStat

SHM_FOLDER: Final = Path("/dev/shm")


class SharedMemory:
    """Segments as files. A process that attached to one would unlink it when it exits (CPython 3.11)."""

    def __init__(self, folder: Path = SHM_FOLDER) -> None:
        self._folder = os.fspath(folder)

    def stat(self, name: str) -> SegmentStat | None:
        """The segment of that name; None for anything that is no regular file there."""
        try:
            status = os.lstat(f"{self._folder}/{name}")
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return SegmentStat(status.st_size, (status.st_dev, status.st_ino))

    def unlink(self, name: str) -> None:
        """Remove the segment of that name; it is no error if it is gone."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._folder}/{name}")
