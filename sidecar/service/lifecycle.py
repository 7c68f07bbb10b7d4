"""The process from start to drain: one line of messages, and what counts, watches and shows it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from sidecar.context import Context
from sidecar.errors import TransportError
from sidecar.observability.admin import AdminServer
from sidecar.observability.metrics import Metrics
from sidecar.observability.status import Status
from sidecar.service.fills import Fills
from sidecar.service.garbage import IdleCollector
from sidecar.service.ledger import Ledger
from sidecar.service.line import Line, Parts
from sidecar.service.push_pull import PushPull
from sidecar.service.quarantine import Quarantine
from sidecar.service.relay import Relay
from sidecar.service.signals import StopSignals
from sidecar.service.spill import count_recordings
from sidecar.service.taps import Taps
from sidecar.service.vitals import Vitals
from sidecar.settings import Settings
from sidecar.transport.flow import FlowControl
from sidecar.transport.sockets import Sockets

MAX_POOL_THREADS: Final = 8
SWITCH_S: Final = 0.0005
"""How long a busy thread keeps the interpreter from the event loop. Beside two threads that only compute,
a timer came 13 ms late at Python's 5 ms, 0.7 ms late at this."""

SCRAPE_WAIT_S: Final = 0.1
"""A scrape waits so long for a moment between two messages, then does without."""


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
        policy = context.policy
        self.taps = Taps(self._sockets.context, policy.ingress_framing, policy.egress_framing)
        self.ledger = Ledger(self.metrics, context.probe, self._quarantine.keep, self.taps)
        self.flow = FlowControl(settings.limits.inflight_bytes, settings.limits.inflight_requests, time.monotonic)
        self._pool = ThreadPoolExecutor(pool_threads(), "work")
        with ExitStack() as undo:  # of a start that fails: descriptors leave the event loop before they are closed
            undo.callback(self._pool.shutdown)
            undo.callback(self._sockets.destroy)
            self.line = self._open_line()
            undo.callback(self.line.close)
            self.vitals = Vitals(
                self.metrics.loop_lag,
                moved=lambda: self.line.moved,
                waits=lambda: self.line.waits,
                stall_timeout_s=settings.egress.stall_timeout_s,
            )
            undo.callback(self.vitals.close)
            self._wire_metrics()
            status = Status(
                self.metrics,
                self.vitals.health,
                refusals=self.ledger.refusals,
                facts=facts,
                configuration=configuration,
            )
            self.admin = AdminServer(settings.admin.bind, status)
            self.admin.on_post("/tap", self.taps.post)
            self.admin.on_delete("/tap", self.taps.delete)
            undo.pop_all()

    async def run(self) -> None:
        """Serve until a signal, then drain. Raises `TransportError` if messages were lost in doing so."""
        with StopSignals(self._sockets.unlist) as signals:
            self.start()
            await signals.received.wait()
            await self.stop()

    def start(self) -> None:
        """Read from now on, engine or not."""
        self.admin.start()
        self.line.set_reading(True)
        sys.setswitchinterval(SWITCH_S)
        self._garbage = IdleCollector(lambda: not self.line.waits)
        logger.info("ready for messages", extra={"admin": self.admin.url})

    async def stop(self) -> None:
        """Drain and close everything. Raises `TransportError` if messages were lost."""
        self.vitals.draining = True
        lost = await self.line.drain()
        await self._close()
        self._summarize(lost)
        if lost:
            raise TransportError(
                f"{lost} messages were neither delivered nor written down; set shutdown.spill_dir to a folder"
            )

    def _open_line(self) -> Line:
        parts = Parts(
            self._settings,
            self._context,
            self._sockets,
            self.flow,
            self._pool,
            self.ledger,
            self.metrics,
            self._on_engines,
        )
        self.flow.on_change = self._on_pressure
        return Relay(parts) if self._settings.mode == "relay" else PushPull(parts)

    def _on_pressure(self, full: bool) -> None:
        self.line.set_reading(not full)

    def _on_engines(self) -> None:
        self.vitals.engines = self.line.engines
        self.metrics.engine_connects = self.line.connects
        self.metrics.engine_disconnects = self.line.disconnects

    def _wire_metrics(self) -> None:
        """Give the metrics that are read rather than counted their sources."""
        metrics, flow, context = self.metrics, self.flow, self._context
        metrics.at_rest = _between_messages(asyncio.get_running_loop())
        metrics.inflight_requests = lambda: self.line.inflight
        metrics.inflight_bytes = lambda: flow.bytes
        metrics.inflight_requests_limit = flow.max_messages
        metrics.inflight_bytes_limit = flow.max_bytes
        metrics.backpressure_seconds = lambda: flow.paused_seconds
        metrics.remembered_rids = lambda: len(context.rids)
        metrics.remembered_hashes = lambda: len(context.contents)
        metrics.pool_threads = threads = pool_threads()
        metrics.pool_active = lambda: min(self.line.tasks, threads)
        metrics.pool_queued = lambda: max(self.line.tasks - threads, 0)
        metrics.engine_connected = lambda: int(self.vitals.engines > 0)
        metrics.egress_stalled_seconds = lambda: self.vitals.stalled_s
        metrics.ready = lambda: int(self.vitals.health().ready)
        metrics.quarantined_messages = lambda: self._quarantine.messages
        metrics.quarantined_bytes = lambda: self._quarantine.bytes
        metrics.quarantine_skipped = lambda: self._quarantine.skipped
        if isinstance(context.fill, Fills):
            metrics.mrope_devices, metrics.mrope_fills = context.fill.devices, context.fill.counts
        metrics.taps = lambda: len(self.taps)
        metrics.tap_dropped = lambda: self.taps.dropped
        metrics.log_suppressed = lambda: self.ledger.log.suppressed
        spill_dir = self._settings.shutdown.spill_dir
        folder = Path(spill_dir) if spill_dir is not None else None
        metrics.spill_recordings = lambda: count_recordings(folder)
        metrics.spilled_messages = lambda: self.line.spilled[0]
        metrics.spilled_bytes = lambda: self.line.spilled[1]

    async def _close(self) -> None:
        """Close in the order in which things need each other. Waits for what libzmq still delivers."""
        self.line.close()
        self.taps.close()
        self.vitals.close()
        self._garbage.close()
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


def _between_messages(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], Metrics]], Metrics]:
    """Runs a function on the event loop for another thread, or on that thread if the loop has no time."""

    def take(function: Callable[[], Metrics]) -> Metrics:
        taken: Future[Metrics] = Future()
        try:
            loop.call_soon_threadsafe(lambda: taken.set_result(function()))
            return taken.result(SCRAPE_WAIT_S)
        except (RuntimeError, TimeoutError):  # closed, or busy
            return function()

    return take
