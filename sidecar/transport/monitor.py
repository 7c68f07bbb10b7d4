"""How many peers a socket has, from libzmq's own events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import zmq
from zmq.utils.monitor import parse_monitor_message

_OPENED: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED
_EVENTS: Final = _OPENED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class PeerMonitor:
    """Counts the peers of a bound or connected socket: those whose ZMTP handshake has succeeded.

    A peer that only opens a connection (a port scanner, a health check, a client with the wrong key)
    is none. libzmq does not say whose handshake it was that succeeded; it is taken to be that of the
    newest connection without one, as a real peer's follows within milliseconds. `on_change(peers)` is
    called on the event loop.
    """

    def __init__(self, socket: zmq.Socket[Any], on_change: Callable[[int], None]) -> None:
        self.connects = 0
        self.disconnects = 0
        self._strangers: dict[int, None] = {}  # file descriptors in the order of their opening
        self._peers: set[int] = set()
        self._on_change = on_change
        self._socket = socket
        self._monitor: zmq.Socket[bytes] | None = socket.get_monitor_socket(_EVENTS)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._monitor.fileno(), self._drain)
        self._loop.call_soon(self._drain)

    @property
    def peers(self) -> int:
        """How many are connected now."""
        return len(self._peers)

    def close(self) -> None:
        """Stop watching. Must be called before the watched socket is closed. Safe to call twice."""
        if self._monitor is None:
            return
        self._loop.remove_reader(self._monitor.fileno())
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._monitor = None

    def _drain(self) -> None:
        before = self.peers
        while self._monitor is not None:
            try:
                frames = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:  # Again: that was all; anything else: the socket is gone
                break
            event = parse_monitor_message(frames)
            self.observe(event["event"], event["value"])
        if self.peers != before:
            self._on_change(self.peers)

    def observe(self, event: int, descriptor: int) -> None:
        """Take one event into account."""
        if event & _OPENED:
            self._strangers[descriptor] = None
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED and self._strangers:
            self._peers.add(self._strangers.popitem()[0])
            self.connects += 1
        elif event == zmq.EVENT_DISCONNECTED:
            self._strangers.pop(descriptor, None)
            if descriptor in self._peers:
                self._peers.remove(descriptor)
                self.disconnects += 1
