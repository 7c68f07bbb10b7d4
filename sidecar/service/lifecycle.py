"""Push-pull mode: one process between a frontend's PUSH and a scheduler's PULL, from start to drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import zmq

from sidecar.context import Context
from sidecar.errors import TransportError
from sidecar.observability.admin import AdminServer
from sidecar.observability.metrics import Metrics
from sidecar.observability.status import Status
from sidecar.service.drain import Drain
from sidecar.service.lanes import Lanes
from sidecar.service.ledger import Ledger
from sidecar.service.quarantine import Quarantine
from sidecar.service.signals import StopSignals
from sidecar.service.spill import count_recordings
from sidecar.service.vitals import Vitals
from sidecar.settings import Settings
from sidecar.transport.egress import Egress
from sidecar.transport.flow import FlowControl
from sidecar.transport.ingress import Ingress
from sidecar.transport.monitor import PeerMonitor
from sidecar.transport.sockets import Sockets

MAX_POOL_THREADS: Final = 8
MIN_LINGER_S: Final = 0.1

logger = logging.getLogger(__name__)


def pool_threads() -> int:
    """Threads for slow work: hashing leaves the interpreter to others, the rest of it does not."""
    return min(max(len(os.sched_getaffinity(0)), 2), MAX_POOL_THREADS)


class Service:
    """Everything that runs while messages pass. Made and used on one running event loop."""

    def __init__(
        self,
        settings: Settings,
        context: Context,
        *,
        facts: Mapping[str, str] | None = None,
        configuration: Iterable[tuple[str, str, str, str]] = (),
    ) -> None:
        self.metrics = Metrics()
        self._settings = settings
        self._context = context
        self._sockets = Sockets(settings.security)
        folder = settings.quarantine.dir
        self._quarantine = Quarantine(
            Path(folder) if folder is not None else None, settings.quarantine.max_bytes, context.policy.ingress_framing
        )
        self.ledger = Ledger(self.metrics, context.probe, self._quarantine.keep)
        self.flow = FlowControl(settings.limits.inflight_bytes, settings.limits.inflight_requests, time.monotonic)
        self._pool = ThreadPoolExecutor(pool_threads(), "work")
        self._drain: Drain | None = None
        try:
            self._open_sockets()
            self.vitals = Vitals(
                self.metrics.loop_lag,
                moved=lambda: self.ledger.moved + self.egress.releases,
                waits=lambda: self.lanes.held > 0 or self.egress.leased > 0,
                stall_timeout_s=settings.egress.stall_timeout_s,
            )
            self._wire_metrics()
            status = Status(
                self.metrics,
                self.vitals.health,
                refusals=self.ledger.refusals,
                facts=facts,
                configuration=configuration,
            )
            self.admin = AdminServer(settings.admin.bind, status)
        except BaseException:
            self._sockets.destroy()
            raise

    async def run(self) -> None:
        """Serve until a signal, then drain. Raises `TransportError` if messages were lost in doing so."""
        with StopSignals(self._sockets.unlist) as signals:
            self.start()
            await signals.received.wait()
            await self.stop()

    def start(self) -> None:
        """Read from now on, engine or not."""
        self.admin.start()
        self.ingress.resume()
        gc.collect()
        gc.freeze()  # what was made to start lives as long as the process: no collection has to look at it
        logger.info("ready for messages", extra={"admin": self.admin.url})

    async def stop(self) -> None:
        """Drain and close everything. Raises `TransportError` if messages were lost."""
        self.vitals.draining = True
        settings = self._settings.shutdown
        spill_dir = Path(settings.spill_dir) if settings.spill_dir is not None else None
        self._drain = Drain(
            self.ingress,
            self.lanes,
            self.ledger,
            self.flow,
            self._context,
            grace_s=settings.grace_s,
            spill_dir=spill_dir,
        )
        lost = await self._drain.run()
        await self._close(max(self._drain.left_s, MIN_LINGER_S))
        self._summarize(lost)
        if lost:
            raise TransportError(
                f"{lost} messages were neither delivered nor written down; set shutdown.spill_dir to a folder"
            )

    def _open_sockets(self) -> None:
        settings, sockets = self._settings, self._sockets
        self._push = sockets.create(zmq.PUSH, hwm=settings.egress.hwm)
        self._pull = sockets.create(zmq.PULL, hwm=settings.ingress.hwm, max_message_bytes=settings.limits.message_bytes)
        self.monitor = PeerMonitor(self._push, self._on_peers)
        self.egress = Egress(self._push, self._on_writable, self.flow.give)
        self.lanes = Lanes(self._context, self.ledger, self.flow, self.egress.send, self._pool)
        self.ingress = Ingress(self._pull, self.lanes.receive)
        self.flow.on_change = self._on_pressure
        security = settings.security
        sockets.attach(self._push, settings.egress.bind, settings.egress.connect, security.egress_server_key)
        sockets.attach(self._pull, settings.ingress.bind, settings.ingress.connect, security.ingress_server_key)

    def _on_writable(self) -> None:
        self.lanes.flush()

    def _on_pressure(self, full: bool) -> None:
        if full:
            self.ingress.pause()
        else:
            self.ingress.resume()

    def _on_peers(self, peers: int) -> None:
        logger.info("engines connected: %d", peers)
        self.vitals.engines = peers
        self.metrics.engine_connects = self.monitor.connects
        self.metrics.engine_disconnects = self.monitor.disconnects

    def _wire_metrics(self) -> None:
        """Give the metrics that are read rather than counted their sources."""
        metrics, flow, context = self.metrics, self.flow, self._context
        metrics.inflight_requests = lambda: self.lanes.inflight
        metrics.inflight_bytes = lambda: flow.bytes
        metrics.inflight_requests_limit = flow.max_messages
        metrics.inflight_bytes_limit = flow.max_bytes
        metrics.backpressure_seconds = lambda: flow.paused_seconds
        metrics.remembered_rids = lambda: len(context.rids)
        metrics.remembered_hashes = lambda: len(context.contents)
        metrics.pool_threads = threads = pool_threads()
        metrics.pool_active = lambda: min(self.lanes.tasks, threads)
        metrics.pool_queued = lambda: max(self.lanes.tasks - threads, 0)
        metrics.engine_connected = lambda: int(self.vitals.engines > 0)
        metrics.egress_stalled_seconds = lambda: self.vitals.stalled_s
        metrics.ready = lambda: int(self.vitals.health().ready)
        metrics.quarantined_messages = lambda: self._quarantine.messages
        metrics.quarantined_bytes = lambda: self._quarantine.bytes
        metrics.quarantine_skipped = lambda: self._quarantine.skipped
        metrics.log_suppressed = lambda: self.ledger.log.suppressed
        spill_dir = self._settings.shutdown.spill_dir
        folder = Path(spill_dir) if spill_dir is not None else None
        metrics.spill_recordings = lambda: count_recordings(folder)
        metrics.spilled_messages = lambda: self._spilled("messages")
        metrics.spilled_bytes = lambda: self._spilled("bytes")

    def _spilled(self, what: str) -> int:
        spill = self._drain.spill if self._drain is not None else None
        return getattr(spill, what) if spill is not None else 0

    async def _close(self, linger_s: float) -> None:
        """Close in the order in which things need each other. Waits for what libzmq still delivers."""
        self.ingress.close()
        self.monitor.close()
        self.egress.close(linger_s)
        self.vitals.close()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._sockets.close)
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._quarantine.close()
        await loop.run_in_executor(None, self.admin.close)

    def _summarize(self, lost: int) -> None:
        metrics = self.metrics
        outcomes: dict[str, int] = {}
        for (_, outcome), count in metrics.requests.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
        received = metrics.received["generate"] + metrics.received["unreadable"]
        fields = {name: count for name, count in outcomes.items() if count} | ({"lost": lost} if lost else {})
        logger.info("ended", extra={"received": received, **fields})
