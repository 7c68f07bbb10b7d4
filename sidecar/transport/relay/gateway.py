"""One rank's connection to the gateway, dialled as the engine would: handshake, requests in, outputs out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

import zmq

from sidecar.transport.ingress import Handler, Ingress
from sidecar.transport.monitor import PeerMonitor
from sidecar.transport.relay.outputs import OUTPUT_HWM, OutputQueue
from sidecar.transport.sockets import Sockets, ZmqSocket
from sidecar.wire.handshake import Addresses, identity_of
from sidecar.wire.msgpack import Buffer
from sidecar.wire.tokenspeed import ENGINE_DEAD

CHECK_S: Final = 0.5
ATTACH_TIMEOUT_S: Final = 5.0
LINGER_S: Final = 1.0
"""How long the last words to a gateway may take."""

_REDIAL_MAX_MS: Final = 200
"""A gateway that has missed its first bind listens only around its health probes: look often."""

_NEVER: Final = -1
_HANDSHAKE_HWM: Final = 16

logger = logging.getLogger(__name__)


class State(Enum):
    """Where a link stands."""

    IDLE = auto()
    """Nothing is open."""

    DIALLING = auto()
    """HELLO goes out with every connection that the gateway accepts; no INIT has come."""

    ANSWERED = auto()
    """INIT has come; READY or the ready message is still to be sent."""

    ATTACHED = auto()
    """Requests come in."""


class GatewayLink:
    """A rank as the gateway sees it. The caller says what is sent; this says when the gateway comes and goes.

    `on_init(message)` is called with the gateway's INIT, `on_request` with every message for the
    engine, `on_lost()` when the gateway closes the connection or does not open it, which it does when
    it ends, when it has given the engine up, and when it begins anew. `on_pressure(full)` says that the
    gateway does not take outputs as fast as they come, and later that it does again.
    """

    def __init__(
        self,
        sockets: Sockets,
        index: int,
        address: str,
        *,
        hwm: int,
        max_message_bytes: int,
        on_init: Callable[[bytes], None],
        on_request: Handler,
        on_lost: Callable[[], None],
        on_pressure: Callable[[bool], None],
    ) -> None:
        self.state = State.IDLE
        self.outputs: OutputQueue | None = None
        self._sockets = sockets
        self._index = index
        self._address = address
        self._hwm = hwm
        self._max_message_bytes = max_message_bytes
        self._on_init = on_init
        self._on_request = on_request
        self._on_lost = on_lost
        self._on_pressure = on_pressure
        self._loop = asyncio.get_running_loop()
        self._hello = b""
        self._greeted = 0
        self._timer: asyncio.TimerHandle | None = None
        self._socket: ZmqSocket | None = None  # the handshake's until attached, then the input socket
        self._monitor: PeerMonitor | None = None
        self._ingress: Ingress | None = None

    def dial(self, hello: bytes) -> None:
        """Begin the handshake, for as long as it takes. What was open is closed first."""
        self.close()
        self.state = State.DIALLING
        self._hello = hello
        self._greeted = 0
        socket = self._open(zmq.DEALER, _HANDSHAKE_HWM)
        socket.set(zmq.RECONNECT_IVL_MAX, _REDIAL_MAX_MS)
        self._monitor = PeerMonitor(socket, self._on_handshake_peers)
        self._ingress = Ingress(socket, self._on_handshake_message)
        self._ingress.resume()
        self._sockets.connect(socket, self._address)
        self._timer = self._loop.call_later(CHECK_S, self._check)

    def send_status(self, message: bytes) -> None:
        """Send a READY."""
        if self._socket is not None and self.state is State.ANSWERED:
            self._send(self._socket, message)

    def attach(self, addresses: Addresses, registration: bytes) -> None:
        """End the handshake: open the gateway's input and output sockets and send the ready message.

        Neither is ever dialled again by itself: a gateway that closed them expects a new handshake.
        """
        self._close_socket(LINGER_S)
        self.state = State.ATTACHED
        output = self._sockets.create(zmq.PUSH, hwm=OUTPUT_HWM)
        output.set(zmq.RECONNECT_IVL, _NEVER)
        self.outputs = OutputQueue(output, self._on_pressure)
        self._sockets.connect(output, addresses.output)
        socket = self._open(zmq.DEALER, self._hwm, self._max_message_bytes)
        socket.set(zmq.RECONNECT_IVL, _NEVER)
        socket.set(zmq.IMMEDIATE, 0)  # the ready message waits for the connection
        self._monitor = PeerMonitor(socket, self._on_input_peers)
        self._ingress = Ingress(socket, self._on_request)
        self._ingress.resume()
        self._sockets.connect(socket, addresses.input)
        self._send(socket, registration)
        self._timer = self._loop.call_later(ATTACH_TIMEOUT_S, self._expire)

    def set_reading(self, reading: bool) -> None:
        """Take requests, or leave them where they are."""
        if self._ingress is not None and self.state is State.ATTACHED:
            if reading:
                self._ingress.resume()
            else:
                self._ingress.pause()

    def say_dead(self) -> None:
        """Tell the gateway that the engine is gone: it ends what is open and expects a new handshake."""
        if self.outputs is not None:
            self.outputs.send([ENGINE_DEAD])

    def close(self, linger_s: float = LINGER_S) -> None:
        """Close everything; what was sent may take `linger_s` to arrive."""
        self.state = State.IDLE
        self._close_socket(linger_s)
        if self.outputs is not None:
            self.outputs.close(linger_s)
            self.outputs = None

    def _open(self, kind: int, hwm: int, max_message_bytes: int | None = None) -> ZmqSocket:
        socket = self._socket = self._sockets.create(kind, hwm=hwm, max_message_bytes=max_message_bytes)
        socket.set(zmq.IDENTITY, identity_of(self._index))
        return socket

    def _close_socket(self, linger_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ingress is not None:
            self._ingress.pause()
            self._ingress = None
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None
        if self._socket is not None:
            self._socket.close(linger=int(linger_s * 1000))
            self._socket = None

    def _send(self, socket: ZmqSocket, message: bytes) -> None:
        with contextlib.suppress(zmq.Again):  # the connection has gone: its end will be noticed
            socket.send(message, zmq.NOBLOCK)
        if self._ingress is not None:  # sending may have taken the event that says that something came
            self._ingress.pause()
            self._ingress.resume()

    def _on_handshake_peers(self, peers: int) -> None:
        if peers:
            self._greet()
        elif self.state is State.ANSWERED:
            self.state = State.DIALLING

    def _check(self) -> None:
        """Greet a gateway whose coming and going was too quick to be noticed."""
        self._timer = self._loop.call_later(CHECK_S, self._check)
        if self._monitor is not None and self._monitor.peers and self._monitor.connects != self._greeted:
            self._greet()

    def _greet(self) -> None:
        """Send HELLO, once a connection: what an earlier one was told died with it."""
        if self._socket is None or self._monitor is None:
            return
        self._greeted = self._monitor.connects
        self.state = State.DIALLING
        logger.info("rank %d: the gateway listens at %s; sent HELLO", self._index, self._address)
        self._send(self._socket, self._hello)

    def _on_handshake_message(self, frames: list[Buffer], nbytes: int) -> None:
        if self.state is State.DIALLING:
            self.state = State.ANSWERED
            self._on_init(bytes(frames[-1]))

    def _on_input_peers(self, peers: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not peers:
            self._lose()

    def _expire(self) -> None:
        self._timer = None
        self._lose()

    def _lose(self) -> None:
        self.close(0)
        self._on_lost()
