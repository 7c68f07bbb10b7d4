"""What the relay must still know after it has ended: an engine speaks its handshake only once.

One small file a rank beside the relay's sockets, written before a handshake is passed on. A sidecar that
starts again finds in it how the engine introduced itself, and whether a gateway still takes it for attached.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgpack

from sidecar.wire.handshake import MAX_INDEX

_PREFIX: Final = "rank-"
_SUFFIX: Final = ".state"
_MODE: Final = 0o600
_FIELDS: Final = ("hello", "ready", "registration")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Introduction:
    """The three messages with which an engine's rank introduces itself."""

    hello: bytes
    ready: bytes
    registration: bytes


@dataclass(frozen=True, slots=True)
class Remembered:
    """A rank's introduction, and the output address of the gateway that it was attached to, if it was."""

    introduction: Introduction
    attached: str | None = None


class Memory:
    """The files of all ranks, in the folder of the relay's sockets. A file that cannot be read is no file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self) -> dict[int, Remembered]:
        """All ranks that are remembered."""
        found = {}
        for path in sorted(self._folder.glob(f"{_PREFIX}*{_SUFFIX}")):
            number = path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
            if not (number.isascii() and number.isdigit() and int(number) <= MAX_INDEX):
                continue
            try:
                found[int(number)] = _decode(msgpack.unpackb(path.read_bytes()))
            except (OSError, ValueError, KeyError, TypeError) as error:
                logger.warning("%s cannot be read and is left out: %s", path, error)
        return found

    def save(self, index: int, remembered: Remembered) -> None:
        """Write a rank's file, whole or not at all. A disk that does not take it costs a warning."""
        introduction = remembered.introduction
        fields = {name: getattr(introduction, name) for name in _FIELDS} | {"attached": remembered.attached}
        path = self._path(index)
        temporary = path.with_suffix(".new")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, _MODE)
            with open(descriptor, "wb") as file:
                file.write(msgpack.packb(fields))
            temporary.replace(path)
        except OSError as error:
            logger.warning("cannot write %s: %s; after a crash the engine must be restarted", path, error.strerror)

    def forget(self, index: int) -> None:
        """Remove a rank's file."""
        with contextlib.suppress(OSError):
            self._path(index).unlink()

    def _path(self, index: int) -> Path:
        return self._folder / f"{_PREFIX}{index}{_SUFFIX}"


def _decode(fields: Mapping[str, Any]) -> Remembered:
    messages = [fields[name] for name in _FIELDS]
    attached = fields["attached"]
    if not all(isinstance(message, bytes) for message in messages) or not isinstance(attached, str | None):
        raise ValueError("not what was written there")
    return Remembered(Introduction(*messages), attached)
