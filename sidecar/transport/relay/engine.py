"""One rank of the engine, served as the gateway would: its requests out, its outputs in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import zmq

from sidecar.transport.egress import Egress
from sidecar.transport.ingress import Handler, Ingress
from sidecar.transport.ipc import SCHEME
from sidecar.transport.monitor import PeerMonitor
from sidecar.transport.relay.outputs import OUTPUT_HWM
from sidecar.transport.sockets import Sockets, ZmqSocket
from sidecar.wire.handshake import Addresses, identity_of
from sidecar.wire.msgpack import Buffer

SETTLE_STEP_S: Final = 0.01
SETTLE_S: Final = 0.5
"""The last outputs of an engine that has ended are waited for, but no longer than this."""

_RETRY_S: Final = 0.005
_NOBLOCK: Final = int(zmq.NOBLOCK)

logger = logging.getLogger(__name__)


class RankEgress(Egress):
    """Sends to the one peer of a ROUTER socket by its identity, and reads the little that it says.

    With ROUTER_MANDATORY a send without a peer or to a full pipe is refused instead of lost. `on_message`
    takes what the peer sends: its ready message.
    """

    def __init__(
        self,
        socket: zmq.Socket[Any],
        identity: bytes,
        on_message: Callable[[bytes], None],
        on_writable: Callable[[], None],
        on_release: Callable[[int], None],
    ) -> None:
        super().__init__(socket, on_writable, on_release)
        self._identity = identity
        self._on_message = on_message
        self._loop.add_reader(self._descriptor, self._on_readable)

    def send(self, frames: Sequence[Buffer], nbytes: int) -> bool:
        """`Egress.send`; also refused while the peer is not there."""
        try:
            sent = super().send((self._identity, *frames), nbytes)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._wait()
            sent = False
        self._loop.call_soon(self._on_readable)  # sending may have taken the event that says that something came
        return sent

    def close(self, linger_s: float) -> None:
        """Close the socket."""
        if not self._closed:
            self._loop.remove_reader(self._descriptor)
        super().close(linger_s)

    def _wait(self) -> None:
        if not self._waiting and not self._closed:
            self._waiting = True
            # Not at once: a ROUTER with another peer calls itself writable whatever ours takes.
            self._loop.call_later(_RETRY_S, self._on_event)

    def _stop_waiting(self) -> None:
        self._waiting = False

    def _on_readable(self) -> None:
        while not self._closed:
            try:
                identity, *frames = self._socket.recv_multipart(_NOBLOCK)
            except zmq.Again:
                break
            if identity == self._identity and frames:
                self._on_message(frames[-1])
            else:
                logger.warning("a peer with the identity %s sent something on the socket of another", identity.hex())
        self._on_event()


class EngineLink:
    """A rank's input socket and, if its outputs are observed, its output socket.

    `on_up()` and `on_down()` say that its input connection is there or gone; when it is gone, its last
    outputs have been passed on. `on_registration(message)` takes its ready message.
    """

    def __init__(
        self,
        sockets: Sockets,
        index: int,
        folder: str,
        *,
        hwm: int,
        observe: bool,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
        on_registration: Callable[[bytes], None],
        on_output: Handler,
        on_writable: Callable[[], None],
        on_release: Callable[[int], None],
    ) -> None:
        self._on_up = on_up
        self._on_down = on_down
        self._loop = asyncio.get_running_loop()
        self._settling: asyncio.TimerHandle | None = None
        self.up = False
        self.input_address = f"{SCHEME}{folder}/rank-{index}-in.sock"
        self.output_address: str | None = None
        router = sockets.create(zmq.ROUTER, hwm=hwm)
        router.set(zmq.ROUTER_MANDATORY, 1)
        router.set(zmq.ROUTER_HANDOVER, 1)
        self.monitor = PeerMonitor(router, self._on_input_peers)
        self.egress = RankEgress(router, identity_of(index), on_registration, on_writable, on_release)
        sockets.bind(router, self.input_address)
        self._output: Ingress | None = None
        self._output_monitor: PeerMonitor | None = None
        if observe:
            self.output_address = f"{SCHEME}{folder}/rank-{index}-out.sock"
            pull: ZmqSocket = sockets.create(zmq.PULL, hwm=OUTPUT_HWM)
            self._output_monitor = PeerMonitor(pull, lambda peers: None)
            self._output = Ingress(pull, on_output)
            sockets.bind(pull, self.output_address)
            self._output.resume()

    def settle_now(self) -> None:
        """Wait no longer for outputs of an engine that has ended."""
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
            self._on_down()

    def addresses(self, gateway: Addresses) -> Addresses:
        """What the engine is told instead of the gateway's own addresses."""
        return Addresses(self.input_address, self.output_address or gateway.output)

    def set_reading(self, reading: bool) -> None:
        """Take outputs, or leave them where they are."""
        if self._output is not None:
            if reading:
                self._output.resume()
            else:
                self._output.pause()

    def close(self, linger_s: float) -> None:
        """Close the sockets; libzmq goes on delivering what it was handed for at most `linger_s`."""
        if self._settling is not None:
            self._settling.cancel()
        self.monitor.close()
        self.egress.close(linger_s)
        if self._output_monitor is not None:
            self._output_monitor.close()
        if self._output is not None:
            self._output.close()

    def _on_input_peers(self, peers: int) -> None:
        if peers and not self.up:
            self.up = True
            self._on_up()
        elif not peers and self.up:
            self.up = False
            self._settle(self._loop.time() + SETTLE_S)

    def _settle(self, deadline: float) -> None:
        """Wait for the end of the outputs: what an engine sent before its death has still been sent."""
        self._settling = None
        output, monitor = self._output, self._output_monitor
        settled = output is None or monitor is None or (output.empty and not monitor.peers)
        if settled or self._loop.time() >= deadline:
            self._on_down()
        else:
            self._settling = self._loop.call_later(SETTLE_STEP_S, self._settle, deadline)
