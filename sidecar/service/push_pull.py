"""Push-pull mode: the line between a frontend's PUSH and a scheduler's PULL."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import zmq

from sidecar.service.drain import Drain
from sidecar.service.lanes import Lanes
from sidecar.service.line import Parts
from sidecar.transport.egress import Egress
from sidecar.transport.ingress import Ingress
from sidecar.transport.monitor import PeerMonitor
from sidecar.transport.sockets import IO_THREADS
from sidecar.transport.threads import IoThreads

MIN_LINGER_S: Final = 0.1

logger = logging.getLogger(__name__)


class PushPull:
    """A `Line` of one ingress, one set of lanes and one egress."""

    def __init__(self, parts: Parts) -> None:
        settings, sockets, flow = parts.settings, parts.sockets, parts.flow
        self._parts = parts
        self._drain: Drain | None = None
        push = sockets.create(zmq.PUSH, hwm=settings.egress.hwm)
        pull = sockets.create(zmq.PULL, hwm=settings.ingress.hwm, max_message_bytes=settings.limits.message_bytes)
        self.monitor = PeerMonitor(push, self._on_peers)
        self.egress = Egress(push, self._on_writable, flow.give)
        self.lanes = Lanes(parts.context, parts.ledger, flow, self.egress, parts.pool)
        threads = IoThreads(IO_THREADS)
        self.ingress = Ingress(pull, self.lanes.take, self.lanes.end_batch, threads.put_receiving_second)
        security = settings.security
        try:
            sockets.attach(push, settings.egress.bind, settings.egress.connect, security.egress_server_key)
            sockets.attach(pull, settings.ingress.bind, settings.ingress.connect, security.ingress_server_key)
        except BaseException:
            self.close()
            raise

    @property
    def engines(self) -> int:
        """Engines that are connected now."""
        return self.monitor.peers

    @property
    def connects(self) -> int:
        """How often one has connected."""
        return self.monitor.connects

    @property
    def disconnects(self) -> int:
        """How often one has gone away."""
        return self.monitor.disconnects

    @property
    def moved(self) -> int:
        """A number that changes whenever something has moved."""
        return self._parts.ledger.moved + self.egress.releases

    @property
    def waits(self) -> bool:
        """Whether something waits to be moved."""
        return self.lanes.held > 0 or self.egress.leased > 0

    @property
    def inflight(self) -> int:
        """Requests between receipt and hand-over."""
        return self.lanes.inflight

    @property
    def tasks(self) -> int:
        """Tasks in the pool, running or queued."""
        return self.lanes.tasks

    @property
    def spilled(self) -> tuple[int, int]:
        """Messages that were written to disk at the end, and their bytes."""
        spill = self._drain.spill if self._drain is not None else None
        return (spill.messages, spill.bytes) if spill is not None else (0, 0)

    def set_reading(self, reading: bool) -> None:
        """Take messages, or leave them where they are."""
        if reading:
            self.ingress.resume()
        else:
            self.ingress.pause()

    async def drain(self) -> int:
        """Deliver what is held within the grace period, or write it down. Returns how many messages are lost."""
        parts = self._parts
        settings = parts.settings.shutdown
        self._drain = Drain(
            self.ingress,
            self.lanes,
            parts.ledger,
            parts.flow,
            parts.context,
            grace_s=settings.grace_s,
            spill_dir=Path(settings.spill_dir) if settings.spill_dir is not None else None,
        )
        return await self._drain.run()

    def close(self) -> None:
        """Close the sockets. What libzmq was handed may take what is left of the grace period to arrive."""
        self.ingress.close()
        self.monitor.close()
        self.egress.close(max(self._drain.left_s if self._drain is not None else 0.0, MIN_LINGER_S))

    def _on_writable(self) -> None:
        self.lanes.flush()

    def _on_peers(self, peers: int) -> None:
        logger.info("engines connected: %d", peers)
        self._parts.on_engines()
