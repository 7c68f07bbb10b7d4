"""The engine's outputs on their way to the gateway: in order, as they came, and never waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from sidecar.transport.egress import Egress
from sidecar.transport.sockets import ZmqSocket
from sidecar.wire.msgpack import Buffer

OUTPUT_HWM: Final = 1000
"""libzmq's own default, which engines and gateways use for outputs."""


class OutputQueue:
    """A PUSH socket and what it does not take yet.

    `on_pressure(True)` asks for no more until `on_pressure(False)`; what comes nevertheless is kept.
    """

    def __init__(self, socket: ZmqSocket, on_pressure: Callable[[bool], None]) -> None:
        self._egress = Egress(socket, self._flush, _forget)
        self._on_pressure = on_pressure
        self._waiting: deque[Sequence[Buffer]] = deque()

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send a message, behind those that wait."""
        if self._waiting:
            self._waiting.append(frames)
        elif not self._egress.send(frames, 0):
            self._waiting.append(frames)
            self._on_pressure(True)

    def close(self, linger_s: float) -> None:
        """Close the socket; libzmq goes on delivering what it was handed for at most `linger_s`."""
        was_full = bool(self._waiting)
        self._waiting.clear()
        self._egress.close(linger_s)
        if was_full:
            self._on_pressure(False)

    def _flush(self) -> None:
        while self._waiting:
            if not self._egress.send(self._waiting[0], 0):
                return
            self._waiting.popleft()
        self._on_pressure(False)


def _forget(nbytes: int) -> None:
    """Outputs are small and not accounted for."""
