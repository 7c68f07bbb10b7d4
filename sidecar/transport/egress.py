"""Sending: never waits, copies what is small, and knows when libzmq has let go of what is large."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import zmq

from sidecar.transport.mailbox import Mailbox
from sidecar.wire.msgpack import Buffer

REFERENCE_BYTES: Final = 32 * 1024
"""Frames from this size on are received and sent by reference. Below it two copies are cheaper than the
bookkeeping, and what libzmq then holds is its own memory, bounded by the high-water mark."""

BULK_BYTES: Final = 256 * 1024
PACE_BYTES: Final = 2 * 1024 * 1024
"""Messages from `BULK_BYTES` on are not taken while libzmq has `PACE_BYTES` of large frames to write. A
small message then waits in the pipe for one large message at most, not for a high-water mark of them,
and an engine that dies takes no more than that with it."""

ALONE: Final = 128
"""After so many large messages with no small one between them a second one may wait in the pipe: its
thread then need not wait for ours between two of them, and 12 MB images pass a tenth faster."""

_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS: Final = int(zmq.EVENTS)
_POLLOUT: Final = int(zmq.POLLOUT)


def _send_of(socket: zmq.Socket[Any]) -> Callable[..., Any]:
    """pyzmq's own send without its wrapper, which looks for routing ids and groups: 0.1 us of 4 for 1 KB."""
    return super(zmq.Socket, socket).send if isinstance(socket, zmq.Socket) else socket.send


class _Lease:
    """A sent message with buffers that libzmq still reads."""

    __slots__ = ("nbytes", "parts", "references", "sent")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.parts = 0
        self.sent = False
        self.references: list[weakref.ref[memoryview]] = []


class Egress:
    """Writes to a socket that has POLLOUT (PUSH, DEALER) on the running event loop.

    `on_writable()` is called after a `send` that was refused, when sending is worth another try.
    `on_release(nbytes)` is called when the bytes of a sent message are libzmq's concern no more: at
    once for a message of small frames, which are copied, and for others when the last buffer is let go.
    """

    def __init__(
        self, socket: zmq.Socket[Any], on_writable: Callable[[], None], on_release: Callable[[int], None]
    ) -> None:
        self.leased = 0
        """Bytes of messages that were sent and are not yet released."""
        self.releases = 0
        self._socket = socket
        self._send = _send_of(socket)
        self._on_writable = on_writable
        self._on_release = on_release
        self._loop = asyncio.get_running_loop()
        self._descriptor = socket.fileno()
        self._waiting = False
        self._paced = False
        self._in_a_row = 0  # large messages since the last small one
        self._leases: set[_Lease] = set()
        self._released: Mailbox[_Lease] = Mailbox(self._reap)
        self._closed = False
        socket.copy_threshold = 0  # who decides is `REFERENCE_BYTES`

    @property
    def blocked(self) -> bool:
        """Whether the last `send` was refused: no peer is there, or its pipe is full."""
        return self._waiting

    def send(self, frames: Sequence[Buffer], nbytes: int) -> bool:
        """Hand a message to libzmq, or say that it takes none now. `nbytes` is what to release later.

        A message is handed over as a whole or not at all. Its buffers must not be written to again.
        """
        if len(frames) == 1 and len(frames[0]) < REFERENCE_BYTES:
            try:
                self._send(frames[0], _NOBLOCK)
            except zmq.Again:
                self._wait()
                return False
            self._in_a_row = 0
            if nbytes:
                self._on_release(nbytes)
            return True
        index, last = 0, len(frames) - 1
        lease: _Lease | None = None
        try:
            for index, frame in enumerate(frames):
                flags = _NOBLOCK if index == last else _MORE
                if len(frame) < REFERENCE_BYTES:
                    self._send(frame, flags)
                    continue
                if lease is None:
                    lease = _Lease(nbytes)
                self._send(self._watch(frame, lease), flags, False)
        except zmq.Again:
            if index:
                self._abandon(index == last)
            self._wait()
            return False
        self._in_a_row = self._in_a_row + 1 if nbytes >= BULK_BYTES else 0
        if lease is None:
            if nbytes:
                self._on_release(nbytes)
        else:
            lease.sent = True
            self.leased += nbytes
            self._leases.add(lease)
        return True

    def send_each(self, messages: Sequence[Sequence[Buffer]]) -> int:
        """Hand over messages of small frames in their order, up to the first that is not taken.

        Returns how many come before it. Nothing is released for them.
        """
        send = self._send
        sent = 0
        try:
            for frames in messages:
                if len(frames) == 1:
                    send(frames[0], _NOBLOCK)
                elif not self.send(frames, 0):
                    break
                sent += 1
        except zmq.Again:
            self._wait()
        if sent:
            self._in_a_row = 0
        return sent

    def takes(self, nbytes: int) -> bool:
        """Whether a message of this size would be taken now. If not, `on_writable` says when to try again."""
        if nbytes >= BULK_BYTES and self._has_enough():
            self._paced = True
            return False
        if self._waiting:
            return False
        if int(self._socket.get(_EVENTS)) & _POLLOUT:
            return True
        self._wait()
        return False

    def _has_enough(self) -> bool:
        """Whether libzmq has as many large messages as it should."""
        return self.leased >= PACE_BYTES and (self._in_a_row < ALONE or len(self._leases) > 1)

    def retry(self) -> None:
        """Call `on_writable` if the socket takes messages again; otherwise when it does."""
        if int(self._socket.get(_EVENTS)) & _POLLOUT:
            self._stop_waiting()
            self._on_writable()
        else:
            self._wait()

    def close(self, linger_s: float) -> None:
        """Close the socket; libzmq goes on delivering what it was handed for at most `linger_s`."""
        self._closed = True
        self._released.close()
        self._stop_waiting()
        self._socket.close(linger=int(linger_s * 1000))

    def _abandon(self, ended: bool) -> None:
        """The peer left in the middle of a message, and took the frames that it had with it.

        libzmq now swallows frames until the end of that message. It must see an end, or it would take
        the whole next message for the rest of this one.
        """
        if not ended:
            with contextlib.suppress(zmq.Again):
                self._send(b"", _NOBLOCK)

    def _wait(self) -> None:
        if not self._waiting and not self._closed:
            self._waiting = True
            self._loop.add_reader(self._descriptor, self._on_event)
            # The event that would wake us may have been taken off the socket by the send that failed.
            self._loop.call_soon(self._on_event)

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting = False
            self._loop.remove_reader(self._descriptor)

    def _on_event(self) -> None:
        if self._waiting:
            self.retry()

    def _watch(self, frame: Buffer, lease: _Lease) -> memoryview:
        """A view of a frame that tells when nobody has it any more: it dies with libzmq's reference."""
        view = memoryview(frame)
        lease.parts += 1
        lease.references.append(weakref.ref(view, partial(self._part_released, lease)))
        return view

    def _part_released(self, lease: _Lease, reference: weakref.ref[memoryview]) -> None:
        """Called on whatever thread drops the view: pyzmq's own, most often."""
        self._released.put(lease)

    def _reap(self, released: deque[_Lease]) -> None:
        while released:
            lease = released.popleft()
            lease.parts -= 1
            if lease.parts == 0 and lease.sent:
                self._leases.discard(lease)
                self.releases += 1
                self.leased -= lease.nbytes
                self._on_release(lease.nbytes)
        if self._paced and not self._has_enough():
            self._paced = False
            self._on_writable()
