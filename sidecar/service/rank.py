"""One rank of an engine in relay mode: which of its two peers is there, and what is open between them.

    gateway ──requests──► lanes ──► engine
    gateway ◄───────────outputs──── engine

When the engine is gone, or takes nothing for too long, what is open gets its last output from here and
the gateway is told that the engine is dead. When the gateway is gone, the engine is told to abort what
is open. Either way the rank begins anew with what is left: one handshake with the gateway a life.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import zmq

from sidecar.admission.control import encode_abort_list
from sidecar.errors import TransportError
from sidecar.outcome import Envelope, Kind
from sidecar.pipeline import open_message
from sidecar.service.lanes import Lanes
from sidecar.service.line import Parts
from sidecar.service.open_requests import OpenRequests, RankLedger
from sidecar.transport.relay.engine import EngineLink
from sidecar.transport.relay.gateway import LINGER_S, GatewayLink, State
from sidecar.transport.relay.memory import Introduction, Memory, Remembered
from sidecar.wire import handshake
from sidecar.wire.framing import TYPE_ABORT
from sidecar.wire.handshake import Addresses, HandshakeError
from sidecar.wire.msgpack import Buffer
from sidecar.wire.outputs import abort_outputs, read_outputs
from sidecar.wire.tokenspeed import ENGINE_DEAD

BURY_S = 1.0
"""A gateway that waits for a handshake answers HELLO within milliseconds."""

REDIAL_S = 1.0
"""Between two handshakes when the gateway's part in one could not be used."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Shared(Parts):
    """What the ranks of a relay have in common. `send_init(index, message)` answers an engine's HELLO."""

    memory: Memory
    send_init: Callable[[int, bytes], None]
    reading: bool = False
    draining: bool = False


class Rank:
    """A rank, from its first HELLO or from what was remembered of it, to the end of the process.

    Raises `TransportError` if its sockets cannot be bound.
    """

    def __init__(self, index: int, shared: Shared, remembered: Remembered | None = None) -> None:
        settings, context = shared.settings, shared.context
        self._index = index
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        observe = settings.relay.observe_outputs
        self.requests = OpenRequests(context.rids.finish, context.now) if observe else None
        self.ledger = RankLedger(shared.ledger, self.requests)
        self.outputs = 0
        self.engine = EngineLink(
            shared.sockets,
            index,
            settings.relay.socket_dir,
            hwm=settings.egress.hwm,
            observe=observe,
            on_up=self._on_engine_up,
            on_down=self._on_engine_down,
            on_registration=self._on_registration,
            on_output=self._on_output,
            on_writable=self._on_writable,
            on_release=shared.flow.give,
        )
        self.gateway = GatewayLink(
            shared.sockets,
            index,
            handshake.handshake_address(settings.relay.frontend_handshake or ""),
            hwm=settings.ingress.hwm,
            max_message_bytes=settings.limits.message_bytes,
            on_init=self._on_init,
            on_request=self._on_request,
            on_lost=self._on_gateway_lost,
            on_pressure=lambda full: self.engine.set_reading(not full),
        )
        self.lanes = Lanes(context, self.ledger, shared.flow, self.engine.egress, shared.pool)
        self._introduction = remembered.introduction if remembered is not None else Introduction(b"", b"", b"")
        self._addresses: Addresses | None = None
        self._waiting_hello: bytes | None = None
        self._aborts: list[str] = []
        self._stalled = False
        self._progress: tuple[int, int, int] = (0, 0, 0)
        self._progress_at = self._loop.time()
        self._buried: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        if remembered is not None:
            self._bury_later(remembered.attached)

    def hello(self, message: bytes) -> None:
        """An engine introduces itself as this rank."""
        self.engine.settle_now()
        if self.engine.up:
            self._waiting_hello = message
            logger.warning(
                "rank %d: another engine says HELLO while one is still connected as this rank; it gets no INIT "
                "until that one is gone. Two engines with one index?",
                self._index,
            )
            return
        logger.info("rank %d: the engine says HELLO", self._index)
        self._introduction = Introduction(message, b"", b"")
        self._remember(None)
        self.gateway.dial(message)

    def ready(self, message: bytes) -> None:
        """The engine has taken the INIT."""
        self._introduction = replace(self._introduction, ready=message)
        self._remember(None)

    def set_reading(self, reading: bool) -> None:
        """Take requests from the gateway, or leave them where they are."""
        self.gateway.set_reading(reading)

    def check(self) -> None:
        """Look for a standstill; to be called a few times a second."""
        if self.requests is not None:
            self.requests.expire()
        now = self._loop.time()
        egress = self.engine.egress
        progress = (self.ledger.moved, egress.releases, self.outputs)
        waits = self.lanes.held and (egress.blocked or egress.leased)
        if progress != self._progress or not waits or not self.engine.up:
            self._progress, self._progress_at = progress, now
        elif not self._stalled and now - self._progress_at >= self._shared.settings.egress.stall_timeout_s:
            self._stalled = True
            self._end(f"has taken nothing for {now - self._progress_at:.0f} s (egress.stall_timeout_s)")

    def finish(self) -> None:
        """End what is still open, and tell both peers; the process is about to end."""
        self._end("is being left alone: the sidecar ends")

    def close(self) -> None:
        """Close the sockets; the last words may take a moment to arrive."""
        if self._timer is not None:
            self._timer.cancel()
        self.gateway.close()
        self.engine.close(LINGER_S)

    # The engine

    def _on_engine_up(self) -> None:
        self._shared.on_engines()
        if self._introduction.registration and self.gateway.state is State.IDLE:
            logger.info("rank %d: the engine is connected again", self._index)
            self.gateway.dial(self._introduction.hello)

    def _on_registration(self, message: bytes) -> None:
        try:
            length = handshake.read_max_model_len(message)
        except HandshakeError as error:
            logger.error("rank %d: %s; the engine is not taken to the gateway", self._index, error)
            return
        self._introduction = replace(self._introduction, registration=message)
        self._remember(None)
        self._learn_length(length)
        if self.gateway.state is State.ANSWERED:
            self._attach()

    def _learn_length(self, length: int | None) -> None:
        context = self._shared.context
        known = [n for n in (length, self._shared.settings.engine.max_model_len) if n is not None]
        context.policy = replace(context.policy, max_model_len=min(known, default=None))

    def _on_output(self, frames: list[Buffer], nbytes: int) -> None:
        self.outputs += 1
        metrics = self._shared.metrics
        metrics.relayed_outputs += 1
        metrics.relayed_output_bytes += nbytes
        if len(frames) == 1 and frames[0] == ENGINE_DEAD:
            self._end("says that it ends")
            return
        if self.gateway.outputs is not None:
            self.gateway.outputs.send(frames)
        outputs = read_outputs(frames[0])
        if outputs is not None and self.requests is not None:
            strangers = self.requests.observe(outputs)
            if strangers:
                self._abort(strangers)

    def _on_writable(self) -> None:
        self._send_aborts()
        if self._aborts:
            return
        if self._stalled:
            self._stalled = False
            logger.info("rank %d: the engine takes messages again", self._index)
            self.gateway.dial(self._introduction.hello)
        self.lanes.flush()

    def _on_engine_down(self) -> None:
        self._shared.on_engines()
        self._stalled = False
        self._aborts.clear()
        if self.gateway.state is State.ATTACHED or self.lanes.held:
            self._end("is gone")
        if self.requests is not None:
            self.requests.clear()
        self._introduction = Introduction(b"", b"", b"")
        self._shared.memory.forget(self._index)
        self.gateway.close()
        if self._waiting_hello is not None:
            hello, self._waiting_hello = self._waiting_hello, None
            self.hello(hello)

    def _abort(self, rids: list[str]) -> None:
        self._aborts += rids
        self._send_aborts()

    def _send_aborts(self) -> None:
        if self._aborts and self.engine.egress.send([TYPE_ABORT, encode_abort_list(self._aborts)], 0):
            self._aborts = []

    # The gateway

    def _on_init(self, message: bytes) -> None:
        self._buried = None
        try:
            self._addresses = handshake.read_addresses(message)
            if self._introduction.registration:
                self._attach()
            else:
                replacement = self.engine.addresses(self._addresses)
                self._shared.send_init(self._index, handshake.replace_addresses(message, replacement))
        except HandshakeError as error:
            logger.error("rank %d: %s", self._index, error)
            self.gateway.close()
            self._timer = self._loop.call_later(REDIAL_S, self._redial)

    def _redial(self) -> None:
        if self.gateway.state is State.IDLE and self._introduction.hello:
            self.gateway.dial(self._introduction.hello)

    def _attach(self) -> None:
        introduction, addresses = self._introduction, self._addresses
        assert addresses is not None
        registration = introduction.registration
        self.gateway.send_status(introduction.ready or handshake.merge(introduction.hello, {"status": handshake.READY}))
        self._remember(addresses.output)
        self.gateway.attach(addresses, handshake.merge(registration, self._overrides(registration)))
        self.gateway.set_reading(self._shared.reading)
        logger.info("rank %d: between the engine and the gateway at %s", self._index, addresses.input)

    def _overrides(self, registration: bytes) -> dict[str, Any]:
        overrides = self._shared.settings.relay.ready_overrides
        if overrides != "auto":
            return dict(overrides)
        uses_mrope = self._shared.context.spec.mrope_family is not None
        if uses_mrope and not handshake.has_key(registration, handshake.MROPE_POSITIONS):
            return {handshake.MROPE_POSITIONS: False}
        return {}

    def _on_request(self, frames: list[Buffer], nbytes: int) -> None:
        if not self._shared.draining:
            self.lanes.receive(frames, nbytes)
            return
        context = self._shared.context
        envelope = open_message(frames, context)
        rid = envelope.rid
        if envelope.kind is not Kind.GENERATE or rid is None or context.rids.is_live(rid, context.now()):
            self.lanes.receive(frames, nbytes)
            return
        self.ledger.received(envelope, nbytes)
        self.ledger.answered(envelope)
        self._answer([rid])

    def _on_gateway_lost(self) -> None:
        cancelled = len(self._take_back(self.ledger.cancelled))
        aborted = 0
        if self.requests is not None:
            rids = self.requests.end_all()
            aborted = len(rids)
            self._abort(rids)
        logger.warning(
            "rank %d: the gateway is gone; %d requests are aborted in the engine, %d that it did not have yet are "
            "dropped; dialling the gateway until it is back",
            self._index,
            aborted,
            cancelled,
        )
        self._remember(None)
        if self.engine.up:
            self.gateway.dial(self._introduction.hello)
            if self._addresses is not None:  # it may have closed nothing but this connection, and wait for its like
                self._bury_later(self._addresses.output)

    def _bury_later(self, address: str | None) -> None:
        """`_bury`, unless the gateway answers HELLO. `address` is its output socket, None if it is not attached."""
        self._buried = address
        self._timer = self._loop.call_later(BURY_S, self._resurrect)

    def _resurrect(self) -> None:
        """Go on where an earlier connection has ended, if neither peer has done so by now."""
        if self._buried is not None:
            self._bury(self._buried)
        if not self._introduction.registration:  # the engine may wait for an INIT since then
            self._redial()

    def _bury(self, address: str) -> None:
        """Tell the gateway of an end that it may not have noticed, such as that of a process that was killed.

        It would refuse new requests, never end those that were open, and never answer HELLO.
        """
        self._buried = None
        logger.info("rank %d: telling the gateway that its earlier connection is dead", self._index)
        socket = self._shared.sockets.create(zmq.PUSH, hwm=1)
        socket.set(zmq.IMMEDIATE, 0)
        socket.set(zmq.RECONNECT_IVL, -1)  # now or never: a gateway that binds later has nothing to be told
        try:
            self._shared.sockets.connect(socket, address)
            socket.send(ENGINE_DEAD, zmq.NOBLOCK)
        except (TransportError, zmq.ZMQError) as error:
            logger.warning("rank %d: %s", self._index, error)
        socket.close(linger=int(BURY_S * 1000))
        self._remember(None)

    # The end of what is open

    def _end(self, why: str) -> None:
        """Answer everything that is open, and tell the gateway that the engine is dead."""
        answered = self._take_back(self.ledger.answered)
        if self.requests is not None:
            rids = self.requests.end_all()
            answered += rids
            if self.engine.up:
                self._abort(rids)
        attached = self.gateway.state is State.ATTACHED
        self._answer(answered)
        self.gateway.say_dead()
        self.gateway.close()
        self._remember(None)
        log = logger.warning if attached else logger.info
        log("rank %d: the engine %s; %d open requests are ended from here", self._index, why, len(answered))

    def _take_back(self, book: Callable[[Envelope], None]) -> list[str]:
        """Let go of everything that the engine has not been given, and book each request. Returns their rids."""
        rids = []
        for held in self.lanes.surrender():
            self.lanes.let_go(held)
            envelope = held.envelope
            if envelope.kind is Kind.GENERATE:
                book(envelope)
                if envelope.rid is not None:  # else there is nobody to tell
                    self._shared.context.rids.finish(envelope.rid)
                    rids.append(envelope.rid)
            elif envelope.kind is Kind.ABORT:
                self.ledger.aborts_cancelled(len(envelope.rids))
        return rids

    def _answer(self, rids: list[str]) -> None:
        if rids and self.gateway.outputs is not None:
            self.gateway.outputs.send([abort_outputs(rids, self._index)])

    def _remember(self, attached: str | None) -> None:
        if self._introduction.hello:
            self._shared.memory.save(self._index, Remembered(self._introduction, attached))
