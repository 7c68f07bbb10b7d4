"""Where a replay sends to and where it sees what became of it: one small interface, two topologies."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import zmq

from sidecar.errors import TransportError
from sidecar.replay.decode import MessageKind, glance, peek
from sidecar.replay.delivery import Delivery
from sidecar.replay.endpoint import attach, new_socket
from sidecar.replay.workload import Shot
from sidecar.wire.framing import Framing
from sidecar.wire.msgpack import Buffer
from sidecar.wire.tokenspeed import GENERATE_TAG

COPY_BELOW: Final = 64 << 10
_SPIN_BELOW_S: Final = 0.00015
_SLEEP_OVERSHOOT_S: Final = 0.00008
_RECEIVE_AT_ONCE: Final = 256
_LINGER_MS: Final = 10_000
"""On a busy machine libzmq's thread may not yet have written what looks as if it had been read."""


class Seen(NamedTuple):
    """Something that was seen of a request: its last message if `final`, with what became of it."""

    rid: str
    final: bool
    outcome: str


class Target(Protocol):
    """A peer that takes messages, and perhaps shows what became of them.

    `send` answers False when the peer takes nothing now. `send_many` sends until then, and adds to `times`
    when each had been sent, on the clock of `time.perf_counter_ns`. `seen` never waits. `wait` returns when
    something was seen or the time is over; `wait_writable` when the peer may take a message.
    `finish` raises `TransportError` if the peer has not taken what it was sent.
    """

    observes: bool

    def open(self, timeout_s: float) -> None: ...
    def send(self, frames: Sequence[Buffer]) -> bool: ...
    def send_many(self, shots: Sequence[Shot], times: list[int]) -> None: ...
    def seen(self) -> Iterable[Seen]: ...
    def wait(self, timeout_s: float) -> None: ...
    def wait_writable(self, timeout_s: float) -> None: ...
    def finish(self, timeout_s: float) -> None: ...
    def close(self) -> None: ...


def wait_readable(socket: zmq.Socket[bytes] | None, timeout_s: float) -> None:
    """Sleep with microsecond precision, less if the socket becomes readable.

    The socket's descriptor is edge-triggered: it must have been read until nothing was left. The last
    stretch is spun through, because a sleep overshoots by some 60 us.
    """
    if timeout_s <= _SPIN_BELOW_S:
        end = time.perf_counter() + timeout_s
        while time.perf_counter() < end:
            pass
    elif socket is None:
        time.sleep(timeout_s - _SLEEP_OVERSHOOT_S)
    else:
        select.select([socket.fileno()], [], [], timeout_s - _SLEEP_OVERSHOOT_S)


class PushTarget:
    """A PULL socket of a sidecar; with an `observe` socket, the messages that leave it at the other end.

    A request is over when it is seen there, forwarded or with a validation_error.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        *,
        connect: str | None = None,
        bind: str | None = None,
        observe: zmq.Socket[bytes] | None = None,
        observe_framing: Framing = Framing.NATIVE,
        hwm: int = 1000,
        settle_s: float = 0.25,
    ) -> None:
        self.observes = observe is not None
        self._address = connect or bind
        self._socket = new_socket(context, zmq.PUSH, hwm=hwm)
        self._delivery = Delivery(self._socket)  # before it connects, so as to miss no connection
        attach(self._socket, connect=connect, bind=bind)
        self._observe = observe
        self._observe_framing = observe_framing
        self._settle_s = settle_s
        self._linger_ms = 0
        self.note = ""

    def open(self, timeout_s: float) -> None:
        """Wait for a peer."""
        end = time.monotonic() + timeout_s
        while not self._delivery.connected:
            if time.monotonic() >= end:
                raise TransportError(
                    f"nobody is at {self._address} after {timeout_s:g} s; is the sidecar running, and is this "
                    "its ingress?"
                )
            time.sleep(0.002)

    def send(self, frames: Sequence[Buffer]) -> bool:
        try:
            if len(frames) == 1 and len(frames[0]) < COPY_BELOW:
                self._socket.send(frames[0], zmq.NOBLOCK)
            else:
                self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True

    def send_many(self, shots: Sequence[Shot], times: list[int]) -> None:
        # One call a batch, nothing but the socket's own `send` a message: a loop through `send` above reaches
        # 0.75 of the speed of one that only sends 1 KB messages, this one 0.9.
        send, clock, done = self._socket.send, time.perf_counter_ns, times.append
        try:
            for shot in shots:
                frames = shot.frames
                if len(frames) == 1 and len(frames[0]) < COPY_BELOW:
                    send(frames[0], zmq.NOBLOCK)
                else:
                    self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
                done(clock())
        except zmq.Again:
            return

    def seen(self) -> Iterable[Seen]:
        if self._observe is None:
            return ()
        found = []
        for _ in range(_RECEIVE_AT_ONCE):
            try:
                frames = self._observe.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            envelope = peek(frames, self._observe_framing)
            if envelope.kind is MessageKind.GENERATE:
                refused = envelope.tag == GENERATE_TAG and glance(frames, self._observe_framing)[1]
                found.append(Seen(envelope.rid, True, "rejected" if refused else "forwarded"))
        return found

    def wait(self, timeout_s: float) -> None:
        wait_readable(self._observe, timeout_s)

    def wait_writable(self, timeout_s: float) -> None:
        self._socket.poll(max(1, int(timeout_s * 1000)), zmq.POLLOUT)

    def finish(self, timeout_s: float) -> None:
        # Whoever sees the requests at the other end knows; otherwise give a peer whose queue was full the
        # time to take the last few kilobytes that its libzmq has read but not handed over.
        taken = self._delivery.wait_taken(timeout_s, 0 if self.observes else self._settle_s)
        if taken.left and not taken.stalled:
            self.note = f"{self._address} left while it was reading; whether it took the last messages is not known"
        elif taken.unread:
            verb = "has left with" if taken.left else "has stopped taking messages:"
            raise TransportError(f"{self._address} {verb} {taken.unread} bytes or more unread")
        self._linger_ms = _LINGER_MS

    @property
    def disconnects(self) -> int:
        """How often a peer has gone away."""
        return self._delivery.lost

    def close(self) -> None:
        self._delivery.close()
        self._socket.close(linger=self._linger_ms)
