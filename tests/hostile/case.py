"""What a hostile message is, and the helpers that build one."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from sidecar.admission.shm import SegmentStat
from sidecar.errors import Reason
from sidecar.model import ModelSpec
from sidecar.wire.framing import Framing
from sidecar.wire.tokenspeed import Request, Sampling
from tests.build import NORMALIZED, QWEN, frames


@dataclass(frozen=True)
class Hostile:
    """A message, and what must become of it.

    `reason` is why it is refused; None stands for a message that is dropped, because nobody can be
    answered. `first` goes before it and passes. `stops` says what an engine without the sidecar does,
    where that is listed as ending it; `quiet` what it suffers without ending.
    """

    name: str
    message: Any
    reason: Reason | None
    aux: tuple[bytes, ...] = ()
    first: Any = None
    spec: ModelSpec = QWEN
    rules: Mapping[str, Any] = field(default_factory=dict)
    segments: Mapping[str, int] = field(default_factory=dict)
    stops: bool = False
    quiet: str = ""
    native_only: bool = False

    def frames(self, framing: Framing) -> list[bytes]:
        """The message in a framing."""
        return frames(self.message, *self.aux, framing=framing)

    def before(self, framing: Framing) -> list[list[bytes]]:
        """What goes before it."""
        return [] if self.first is None else [frames(self.first, framing=framing)]


class Segments:
    """A probe over made-up segments: name -> size in bytes."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        self.unlinked: list[str] = []

    def stat(self, name: str) -> SegmentStat | None:
        """The segment, with an identity of its name."""
        return SegmentStat(self.sizes[name], (hash(name),)) if name in self.sizes else None

    def unlink(self, name: str) -> None:
        """Note that it is gone."""
        self.unlinked.append(name)


def sampling(**changes: Any) -> tuple[Any, ...]:
    """Final sampling params with some fields changed, by their lower-case names."""
    values = list(NORMALIZED)
    for name, value in changes.items():
        values[Sampling[name.upper()]] = value
    return tuple(values)


def replaced(message: Any, mark: str, data: bytes) -> bytes:
    """A message whose string `mark` is replaced by bytes that no encoder writes."""
    packed: bytes = msgpack.packb(message)
    assert packed.count(msgpack.packb(mark)) == 1
    return packed.replace(msgpack.packb(mark), data)


def spoilt(message: Any, **fields: bytes) -> bytes:
    """A request with raw bytes in place of some of its fields."""
    parts = [msgpack.packb(value) for value in message]
    for name, data in fields.items():
        parts[Request[name.upper()]] = data
    return b"\xdc" + struct.pack(">H", len(parts)) + b"".join(parts)
