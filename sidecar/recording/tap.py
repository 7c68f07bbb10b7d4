"""The tap: a copy of what passes through a live sidecar, for a recorder beside it.

    recorder                                    sidecar
    binds a PULL at ipc://...
    POST /tap?direction=both&to=ipc://...  ──►  connects a PUSH there
                                           ◄──  [meta, *frames] of each message
    DELETE /tap?to=ipc://...               ──►  closes it

The path must not wait for the tap: frames are passed on by reference, and a message that the recorder
does not take at once is dropped and counted. Every message carries the count, so that the recorder
knows what is missing.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import zmq

from sidecar.errors import UsageError
from sidecar.recording.format import Direction, Record
from sidecar.wire.framing import Framing
from sidecar.wire.msgpack import Buffer

_META: Final = struct.Struct("<4sBBqqQ")
"""Magic, direction, framing, wall clock and monotonic clock in ns, messages dropped so far; the outcome follows."""

_MAGIC: Final = b"STAP"
_DIRECTIONS: Final = tuple(Direction)
_FRAMINGS: Final = tuple(Framing)
_COPY_BELOW: Final = 64 << 10
_IPC_MAX_BYTES: Final = 107
_LINGER_MS: Final = 1000
_ABANDONED_NS: Final = 10_000_000_000

HWM: Final = 1000
"""Messages that libzmq may hold for the recorder. Of those that are not copied, `max_bytes` bounds the bytes."""

MAX_BYTES: Final = 256 << 20


def tap_socket(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    """The PUSH of a tap, connected to the recorder's address.

    It queues from the start, so that nothing is missed while the connection is being made.
    """
    socket = context.socket(zmq.PUSH)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDHWM, HWM)
    socket.connect(check_tap_address(address))
    return socket


def check_tap_address(address: str) -> str:
    """The address, if it is an ipc path: a tap never leaves the host. Raises `UsageError`."""
    path = address.removeprefix("ipc://")
    if path == address or not path.startswith("/") or len(path.encode()) > _IPC_MAX_BYTES:
        raise UsageError(f"a tap goes to ipc:///path of at most {_IPC_MAX_BYTES} bytes, not to {address!r:.120}")
    return address


def parse_directions(text: str) -> frozenset[Direction]:
    """`ingress`, `egress`, `output` or `both` (ingress and egress). Raises `UsageError`."""
    if text == "both":
        return frozenset((Direction.INGRESS, Direction.EGRESS))
    if text in _DIRECTIONS:
        return frozenset((Direction(text),))
    raise UsageError(f"direction {text!r:.40}: expected ingress, egress, output or both")


class Tap:
    """The sidecar's end of a tap, on a PUSH socket that is connected to the recorder.

    `dropped` and `sent` count messages. `abandoned` is true when the recorder has taken nothing for ten
    seconds although something was offered: it has gone without a word, and the tap should be closed.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        directions: frozenset[Direction] = frozenset((Direction.INGRESS, Direction.EGRESS)),
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.sent = 0
        self.dropped = 0
        self.directions = directions
        self._socket = socket
        self._max_bytes = max_bytes
        self._held: deque[tuple[zmq.MessageTracker, int]] = deque()
        self._held_bytes = 0
        self._refused_since: int | None = None

    @property
    def abandoned(self) -> bool:
        """Whether the recorder seems to be gone."""
        return self._refused_since is not None and time.monotonic_ns() - self._refused_since > _ABANDONED_NS

    def offer(self, direction: Direction, framing: Framing, frames: Sequence[Buffer], outcome: str = "") -> None:
        """Pass a message on, or drop it. Never waits, never raises for what the recorder does."""
        if direction not in self.directions:
            return
        now = time.monotonic_ns()
        meta = _META.pack(
            _MAGIC, _DIRECTIONS.index(direction), _FRAMINGS.index(framing), time.time_ns(), now, self.dropped
        )
        nbytes = sum(map(len, frames))
        large = nbytes >= _COPY_BELOW
        if large and not self._has_room(nbytes):
            self._drop(now)
            return
        try:
            tracker = self._socket.send_multipart(
                [meta + outcome.encode(), *frames], zmq.NOBLOCK, copy=not large, track=large
            )
        except zmq.ZMQError:
            self._drop(now)
            return
        if tracker is not None:
            self._held.append((tracker, nbytes))
            self._held_bytes += nbytes
        self._refused_since = None
        self.sent += 1

    def close(self) -> None:
        """Close the socket. What it holds still goes to a recorder that takes it within a second."""
        self._socket.close(linger=_LINGER_MS)

    def _has_room(self, nbytes: int) -> bool:
        while self._held and self._held[0][0].done:
            self._held_bytes -= self._held.popleft()[1]
        return not self._held or self._held_bytes + nbytes <= self._max_bytes

    def _drop(self, now: int) -> None:
        self.dropped += 1
        if self._refused_since is None:
            self._refused_since = now


def read_tapped(frames: Sequence[bytes]) -> tuple[Record, int]:
    """The record in a message of a tap, and how many the tap had dropped by then. Raises `UsageError`."""
    if not frames or len(frames[0]) < _META.size or not frames[0].startswith(_MAGIC):
        raise UsageError("a message that is none of a tap; is the other side a sidecar of this version?")
    _, direction, framing, wall_ns, mono_ns, dropped = _META.unpack_from(frames[0])
    if direction >= len(_DIRECTIONS) or framing >= len(_FRAMINGS):
        raise UsageError(f"a tap's message with direction {direction} and framing {framing}")
    outcome = frames[0][_META.size :].decode("utf-8", "replace")
    metadata = {"outcome": outcome} if outcome else {}
    return Record(frames[1:], _DIRECTIONS[direction], _FRAMINGS[framing], wall_ns, mono_ns, metadata), dropped
