"""The sidecar's sockets, opened as the settings say: options, addresses, CURVE, and what to undo at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import zmq

from sidecar.errors import TransportError
from sidecar.settings import Security
from sidecar.transport import curve
from sidecar.transport.endpoints import is_tcp
from sidecar.transport.ipc import SCHEME, IpcListener

ZmqSocket = zmq.Socket[bytes]

IO_THREADS: Final = 2
_RECEIVERS: Final = 1 << 0  # sets of libzmq's threads, a bit each
_SENDERS: Final = 1 << 1
_RECONNECT_MS: Final = 50
_RECONNECT_MAX_MS: Final = 1000
_KEEPALIVE_IDLE_S: Final = 30
_KEEPALIVE_INTERVAL_S: Final = 10
_KEEPALIVE_PROBES: Final = 3


class Sockets:
    """Opens sockets of one ZMQ context, and closes what is beside them: listeners, keys, the context.

    Must be used inside a running event loop if a bound TCP socket asks for CURVE.
    """

    def __init__(self, security: Security) -> None:
        self.context: zmq.Context[ZmqSocket] = zmq.Context(IO_THREADS)
        self._security = security
        self._listeners: list[IpcListener] = []
        self._gatekeeper: curve.Gatekeeper | None = None
        file = security.secret_key_file
        self._keys = curve.load(Path(file)) if file is not None else None

    def create(self, kind: int, *, hwm: int, max_message_bytes: int | None = None) -> ZmqSocket:
        """A socket of the context, neither bound nor connected.

        `hwm` bounds what libzmq queues either way, in messages. A peer that sends a frame larger than
        `max_message_bytes` is cut off. With `IMMEDIATE` nothing queues for a peer that is not there.
        libzmq has a thread for what comes and one for what leaves: 12 MB images pass 1.5 times as fast as
        with one for both. TCP peers are probed by the kernel only: a ZMTP heartbeat would cut off an engine that is
        merely paused, and lose what its pipe holds.
        """
        socket = self.context.socket(kind)
        options: list[tuple[int, int]] = [
            (zmq.AFFINITY, _SENDERS if kind in (zmq.PUSH, zmq.ROUTER) else _RECEIVERS),
            (zmq.LINGER, 0),
            (zmq.SNDHWM, hwm),
            (zmq.RCVHWM, hwm),
            (zmq.IMMEDIATE, 1),
            (zmq.RECONNECT_IVL, _RECONNECT_MS),
            (zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS),
            (zmq.TCP_KEEPALIVE, 1),
            (zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_IDLE_S),
            (zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_INTERVAL_S),
            (zmq.TCP_KEEPALIVE_CNT, _KEEPALIVE_PROBES),
        ]
        for option, value in options:
            socket.set(option, value)
        if max_message_bytes is not None:
            socket.set(zmq.MAXMSGSIZE, max_message_bytes)
        return socket

    def bind(self, socket: ZmqSocket, address: str) -> None:
        """Bind, with the rules of `IpcListener` or, over TCP, with CURVE if a key is configured.

        Raises `TransportError`.
        """
        if address.startswith(SCHEME):
            listener = IpcListener(address.removeprefix(SCHEME), self._security.socket_mode)
            self._listeners.append(listener)
            listener.attach(socket)
            return
        if self._keys is not None:
            self._guard()
            curve.serve_curve(socket, self._keys)
        _allow_ipv6(socket, address)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise TransportError(f"cannot bind {address}: {error}") from error

    def connect(self, socket: ZmqSocket, address: str, server_key: str | None = None) -> None:
        """Connect, now or as soon as somebody listens there. Raises `TransportError` for a name unknown."""
        if server_key is not None and self._keys is not None and is_tcp(address):
            curve.use_curve(socket, self._keys, server_key)
        _allow_ipv6(socket, address)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            raise TransportError(f"cannot connect to {address}: {error}") from error

    def attach(self, socket: ZmqSocket, bind: str | None, connect: str | None, server_key: str | None = None) -> None:
        """Bind or connect, whichever address is given."""
        if bind is not None:
            self.bind(socket, bind)
        elif connect is not None:
            self.connect(socket, connect, server_key)

    def unlist(self) -> None:
        """Remove the files of our ipc sockets: nobody new finds us, who is connected stays so."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def close(self) -> None:
        """End the context, once all its sockets are closed: waits for as long as they linger."""
        if self._gatekeeper is not None:
            self._gatekeeper.stop()
            self._gatekeeper = None
        self.context.term()
        self.unlist()

    def destroy(self) -> None:
        """Close whatever is open, for a start that failed."""
        if self._gatekeeper is not None:
            self._gatekeeper.stop()
        self.context.destroy(linger=0)
        self.unlist()

    def _guard(self) -> None:
        if self._gatekeeper is None:
            self._gatekeeper = curve.Gatekeeper(self.context, self._security.allowed_client_keys)
            self._gatekeeper.start()


def _allow_ipv6(socket: ZmqSocket, address: str) -> None:
    """Only where an IPv6 address asks for it: libzmq tries one address of a name, and would try that one."""
    if is_tcp(address) and "[" in address:
        socket.set(zmq.IPV6, 1)
