"""The socket that engines dial first, bound as the gateway binds its own."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

import zmq

from sidecar.transport.ingress import Ingress
from sidecar.transport.sockets import Sockets
from sidecar.wire.handshake import HELLO, HandshakeError, identity_of, index_of, read_status
from sidecar.wire.msgpack import Buffer

_HWM = 64
_MAX_BYTES = 1 << 20

logger = logging.getLogger(__name__)


class EngineHandshake:
    """Takes HELLO and READY of every rank, and sends INIT when it is told to.

    `on_hello(index, message)` and `on_ready(index, message)` are called with the rank and its message.
    """

    def __init__(
        self,
        sockets: Sockets,
        address: str,
        on_hello: Callable[[int, bytes], None],
        on_ready: Callable[[int, bytes], None],
    ) -> None:
        self._on_hello = on_hello
        self._on_ready = on_ready
        self._socket = sockets.create(zmq.ROUTER, hwm=_HWM, max_message_bytes=_MAX_BYTES)
        self._socket.set(zmq.ROUTER_HANDOVER, 1)
        self._ingress = Ingress(self._socket, self._on_message)
        sockets.bind(self._socket, address)
        self._ingress.resume()

    def send_init(self, index: int, message: bytes) -> None:
        """Answer a rank's HELLO. If it has left meanwhile, nothing happens: it will say HELLO again."""
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart([identity_of(index), message], zmq.NOBLOCK)
        self._ingress.pause()  # sending may have taken the event that says that something came
        self._ingress.resume()

    def close(self) -> None:
        """Close the socket."""
        self._ingress.close()

    def _on_message(self, frames: list[Buffer], nbytes: int) -> None:
        index = index_of(frames[0])
        if index is None or len(frames) < 2:
            logger.warning("a peer that is no engine speaks on the engine's handshake: identity %s", frames[0].hex())
            return
        message = bytes(frames[-1])
        try:
            status = read_status(message)
        except HandshakeError as error:
            logger.warning("rank %d: %s", index, error)
            return
        if status == HELLO:
            self._on_hello(index, message)
        else:
            self._on_ready(index, message)
