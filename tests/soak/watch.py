"""Watching a sidecar from outside while something is done to it."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from tests.e2e.harness import Metrics, Sidecar


class Watch:
    """Scrapes at `rate` a second on a thread, and keeps the worst of what it sees.

    `balances` counts scrapes whose identity was off by more than what may have moved while the scrape
    was rendered: counters are read one after the other.
    """

    def __init__(self, sidecar: Sidecar, rate: float = 20.0) -> None:
        self.scrapes = 0
        self.slowest = 0.0
        self.peak_rss = 0
        self.peak_inflight = 0.0
        self._sidecar = sidecar
        self._period = 1 / rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            before = time.monotonic()
            metrics = self._sidecar.metrics()
            took = time.monotonic() - before
            self.scrapes += 1
            self.slowest = max(self.slowest, took)
            self.peak_rss = max(self.peak_rss, self._sidecar.rss())
            self.peak_inflight = max(self.peak_inflight, metrics["sidecar_inflight_bytes"])
            self._stop.wait(max(self._period - took, 0.0))


def settled(sidecar: Sidecar, received: int, timeout: float = 60.0) -> Metrics:
    """The metrics once so much has been received and nothing is in flight."""
    deadline = time.monotonic() + timeout
    while True:
        metrics = sidecar.metrics()
        if metrics.received >= received and metrics["sidecar_inflight_requests"] == 0:
            return metrics
        assert time.monotonic() < deadline, f"{metrics.received} of {received} received"
        time.sleep(0.05)
