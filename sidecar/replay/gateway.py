"""The frontend's side of relay mode: the three sockets that a gateway binds, and the handshake on them.

The sidecar dials as an engine would. Requests leave typed on the input ROUTER, in turn to the ranks that
have registered; a request is over when an output names a finished reason for it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgpack
import zmq

from sidecar.errors import TransportError
from sidecar.replay.decode import MessageKind, Undecodable, peek, unpack
from sidecar.replay.endpoint import attach, new_socket
from sidecar.replay.targets import COPY_BELOW, Seen, wait_readable
from sidecar.replay.workload import Shot
from sidecar.wire.framing import Framing
from sidecar.wire.handshake import HandshakeError, handshake_address, read_status, worker_addresses
from sidecar.wire.msgpack import Buffer
from sidecar.wire.outputs import read_outputs
from sidecar.wire.tokenspeed import ENGINE_DEAD

_RECEIVE_AT_ONCE: Final = 256


class GatewayTarget:
    """Stands in for the gateway of one engine with `ranks` data-parallel ranks.

    `address` is a worker URL `ipc:///path`, whose handshake port and sockets are computed as a gateway
    does, or the handshake's own address; then the other sockets are bound in a folder of their own.
    """

    observes = True

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, *, ranks: int = 1, hwm: int = 1000
    ) -> None:
        self.note = ""
        self.ready: dict[bytes, Any] = {}
        self._ranks = ranks
        self._owner: dict[str, bytes] = {}
        self._turn = 0
        self._dead = False
        self._folder = tempfile.TemporaryDirectory(prefix="sidecar-gateway-")
        own = Path(self._folder.name)
        sockets = worker_addresses(address)
        self._input_address = sockets.input if sockets else f"ipc://{own}/in.sock"
        self._output_address = sockets.output if sockets else f"ipc://{own}/out.sock"
        self._address = handshake_address(address)
        self._handshake = new_socket(context, zmq.ROUTER, hwm=hwm)
        self._input = new_socket(context, zmq.ROUTER, hwm=hwm)
        self._output = new_socket(context, zmq.PULL, hwm=hwm)
        try:
            for socket in (self._handshake, self._input):
                socket.set(zmq.ROUTER_HANDOVER, 1)
                socket.set(zmq.ROUTER_MANDATORY, 1)
            attach(self._handshake, bind=self._address)
            attach(self._input, bind=self._input_address)
            attach(self._output, bind=self._output_address)
        except BaseException:
            self.close()
            raise

    def open(self, timeout_s: float) -> None:
        """Wait until every rank has registered with its ready message."""
        end = time.monotonic() + timeout_s
        poller = zmq.Poller()
        poller.register(self._handshake, zmq.POLLIN)
        poller.register(self._input, zmq.POLLIN)
        while len(self.ready) < self._ranks:
            left = end - time.monotonic()
            if left <= 0:
                raise TransportError(
                    f"{len(self.ready)} of {self._ranks} ranks have registered at {self._address} after "
                    f"{timeout_s:g} s; set relay.frontend_handshake of the sidecar to this address"
                )
            events = dict(poller.poll(int(left * 1000) + 1))
            if self._handshake in events:
                self._greet(*self._handshake.recv_multipart())
            if self._input in events:
                identity, *message = self._input.recv_multipart()
                try:
                    self.ready[identity] = unpack(message[-1])
                except Undecodable as error:
                    raise TransportError(f"rank {identity.hex()} sent a ready message that is {error}") from None

    def _greet(self, identity: bytes, *message: bytes) -> None:
        try:
            status = read_status(message[-1])
        except HandshakeError as error:
            raise TransportError(f"handshake with rank {identity.hex()}: {error}") from None
        if status == "HELLO":
            addresses = {
                "inputs": [self._input_address],
                "outputs": [self._output_address],
                "coordinator_input": None,
                "coordinator_output": None,
            }
            self._handshake.send_multipart([identity, msgpack.packb({"addresses": addresses, "parallel_config": {}})])

    def send(self, frames: Sequence[Buffer]) -> bool:
        identity = self._rank_of(frames)
        try:
            copy = sum(map(len, frames)) < COPY_BELOW
            self._input.send_multipart([identity, *frames], zmq.NOBLOCK, copy=copy)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        return True

    def send_many(self, shots: Sequence[Shot], times: list[int]) -> None:
        for shot in shots:
            if not self.send(shot.frames):
                return
            times.append(time.perf_counter_ns())

    def _rank_of(self, frames: Sequence[Buffer]) -> bytes:
        """The rank for a message: the next one for a request, for an abort the one that has the request."""
        envelope = peek(frames, Framing.TYPED)
        ranks = list(self.ready)
        if len(ranks) == 1:
            return ranks[0]
        if envelope.kind is not MessageKind.GENERATE:
            return self._owner.get(envelope.rid, ranks[0])
        self._turn += 1
        return self._owner.setdefault(envelope.rid, ranks[self._turn % len(ranks)])

    def seen(self) -> Iterable[Seen]:
        if self._dead:
            raise TransportError("the engine says that it is dead (ENGINE_CORE_DEAD)")
        found: list[Seen] = []
        for _ in range(_RECEIVE_AT_ONCE):
            try:
                frames = self._output.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if frames[-1] == ENGINE_DEAD:
                self._dead = True  # what came before it counts; whoever looks again is told
                break
            outputs = read_outputs(frames[-1])
            if outputs is None:
                raise TransportError(f"an output of {len(frames[-1])} bytes is no BatchTokenIDOutSlim")
            reasons = _reasons(frames[-1])
            for rid, reason in zip(outputs.rids, reasons, strict=True):
                if reason:
                    self._owner.pop(rid, None)
                found.append(Seen(rid, bool(reason), reason))
        return found

    def wait(self, timeout_s: float) -> None:
        wait_readable(self._output, timeout_s)

    def wait_writable(self, timeout_s: float) -> None:
        time.sleep(min(timeout_s, 0.001))  # a mandatory ROUTER is always "writable"

    def finish(self, timeout_s: float) -> None:
        """Nothing to do: the outputs tell what has been taken."""

    def close(self) -> None:
        for socket in (self._handshake, self._input, self._output):
            socket.close(linger=1000)
        self._folder.cleanup()


def _reasons(payload: bytes) -> list[str]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(payload)
    unpacker.read_array_header()
    for _ in range(3):
        unpacker.skip()
    reasons: list[str] = unpacker.unpack()
    return reasons
