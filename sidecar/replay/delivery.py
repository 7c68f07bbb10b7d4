"""Whether a peer has taken what it was sent.

PUSH tells nothing of that. Two things can be seen from outside: that a connection is there (the socket's
monitor), and how many bytes the peer has not read from it yet (the kernel's send queue: on a Unix-domain
socket what the peer's process has not read, on TCP what its host has not acknowledged). A sender that
closes before these are zero loses messages: libzmq flushes its own queue on close, but a peer whose
queue is full drops what it has read no further when the connection ends.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import termios
import time
from typing import Final, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

_EVENTS: Final = zmq.EVENT_CONNECTED | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_SETTLE_MIN_S: Final = 0.025
_CHECK_EVERY_S: Final = 0.005
_STALL_S: Final = 1.0


class Taken(NamedTuple):
    """How a wait ended: the bytes last seen unread, whether the peers have left, and whether they had
    stopped reading before. A peer that leaves while it reads may have read everything; nothing tells."""

    unread: int
    left: bool
    stalled: bool


class Delivery:
    """Watches the connections of a socket."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._lost = 0
        self._fds: set[int] = set()
        self._socket = socket
        self._monitor = socket.get_monitor_socket(_EVENTS)

    @property
    def connected(self) -> bool:
        """Whether a peer is connected now."""
        self._update()
        return bool(self._fds)

    @property
    def lost(self) -> int:
        """How many connections have ended."""
        self._update()
        return self._lost

    def unread(self) -> int:
        """Bytes that are with the kernel and that no peer has read."""
        self._update()
        total = 0
        for fd in self._fds:
            size = array.array("i", [0])
            with contextlib.suppress(OSError):  # the connection ended a moment ago
                fcntl.ioctl(fd, termios.TIOCOUTQ, size)
            total += size[0]
        return total

    def wait_taken(self, timeout_s: float, settle_s: float) -> Taken:
        """Wait until the peers have had nothing to read for `settle_s`; or until nothing has moved for
        `timeout_s`, or the last peer has left.

        libzmq's own queue cannot be seen, but while it holds anything, the kernel's is empty for
        moments only.
        """
        moved = time.monotonic()
        before = -1
        while True:
            unread = self.unread()
            now = time.monotonic()
            if not self._fds:
                return Taken(max(before, 0), left=True, stalled=now - moved > _STALL_S)
            if unread != before:
                before, moved = unread, now
            elif now - moved >= (timeout_s if unread else max(settle_s, _SETTLE_MIN_S)):
                return Taken(unread, left=False, stalled=unread > 0)
            time.sleep(_CHECK_EVERY_S)

    def close(self) -> None:
        """Stop watching; the socket stays as it is."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)

    def _update(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)
            if event["event"] == zmq.EVENT_DISCONNECTED:
                self._fds.discard(event["value"])
                self._lost += 1
            else:
                self._fds.add(event["value"])
