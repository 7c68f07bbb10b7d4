"""The numbers of the running process, as plain Python objects.

Only the event loop's thread writes them; pool threads hand their numbers over. The admin thread
renders a `snapshot` of them (`collector`), so counting costs no lock: a counter takes 20 to 60 ns,
an observation 100 ns, all that one request counts about 1 us. The label sets are closed: a value
that the catalog does not name is a `KeyError` where it is counted, never a new series.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from copy import copy
from importlib.metadata import version as version_of
from platform import python_version
from typing import Final

from sidecar import __version__
from sidecar.observability import catalog

Number = int | float
Source = Number | Callable[[], Number]
"""A number, or what gives it: called on the admin thread, so it may only read a number or a length."""


class Histogram:
    """Counts by upper bound. `counts` has one place more than `bounds`, for what is larger than all."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds: Final = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count a duration, or several of which each took so long."""
        self.counts[bisect_left(self.bounds, seconds)] += count
        self.sum += seconds * count


class Metrics:
    """One attribute a metric of the catalog; what each means stands there.

    Counters are incremented in place (`metrics.received["generate"] += 1`). A `Source` may be set to
    a number or, once, to a function that reads one (`metrics.inflight_bytes = lambda: gate.bytes`).
    """

    at_rest: Callable[[Callable[[], Metrics]], Metrics] = staticmethod(lambda take: take())
    """Calls a function while nothing is being counted: the service has its event loop do it."""

    def __init__(self) -> None:
        self.received = dict.fromkeys(catalog.KINDS, 0)
        self.requests = {(dialect, outcome): 0 for dialect in catalog.DIALECTS for outcome in catalog.OUTCOMES}
        self.rejected = dict.fromkeys(catalog.REASONS, 0)
        self.aborts = dict.fromkeys(catalog.ABORT_OUTCOMES, 0)
        self.control = dict.fromkeys(catalog.CONTROL_OUTCOMES, 0)
        self.received_bytes = 0
        self.sent_bytes = 0
        self.media_items = dict.fromkeys(catalog.MODALITIES, 0)
        self.media_tokens = dict.fromkeys(catalog.MODALITIES, 0)

        self.stages = {stage: Histogram(catalog.STAGE_BOUNDS) for stage in catalog.STAGES}
        self.loop_lag = Histogram(catalog.LAG_BOUNDS)

        self.inflight_requests: Source = 0
        self.inflight_bytes: Source = 0
        self.inflight_requests_limit: Source = 0
        self.inflight_bytes_limit: Source = 0
        self.backpressure_seconds: Source = 0.0
        self.remembered_rids: Source = 0
        self.remembered_hashes: Source = 0
        self.pool_threads: Source = 0
        self.pool_active: Source = 0
        self.pool_queued: Source = 0

        self.engine_connected: Source = 0
        self.engine_connects = 0
        self.engine_disconnects = 0
        self.egress_stalled_seconds: Source = 0.0
        self.ready: Source = 0
        self.relayed_outputs = 0
        self.relayed_output_bytes = 0

        self.mrope_devices = dict.fromkeys(catalog.DEVICES, 0)
        self.mrope_fills = dict.fromkeys(catalog.DEVICES, 0)
        self.delta_without_positions = 0

        self.quarantined_messages: Source = 0
        self.quarantined_bytes: Source = 0
        self.quarantine_skipped: Source = 0
        self.spilled_messages: Source = 0
        self.spilled_bytes: Source = 0
        self.spill_recordings: Source = 0
        self.unlinked_segments = 0

        self.taps: Source = 0
        self.tap_dropped: Source = 0
        self.log_suppressed: Source = 0

        self.build = {
            "version": __version__,
            "python": python_version(),
            "pyzmq": version_of("pyzmq"),
            "uvloop": version_of("uvloop"),
        }

    def snapshot(self) -> Metrics:
        """The counters and what is in flight as they were at one moment, so that they add up.

        Other sources and the histograms are those of this object. From any thread.
        """
        return self.at_rest(self._copy)

    def _copy(self) -> Metrics:
        copied = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict) and name != "stages":
                setattr(copied, name, value.copy())
        for name in ("inflight_requests", "inflight_bytes"):
            source: Source = getattr(self, name)
            setattr(copied, name, source() if callable(source) else source)
        return copied
