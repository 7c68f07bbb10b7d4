"""What the status page and the probes show: the state of the process as plain JSON values."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sidecar.observability.catalog import OUTCOMES
from sidecar.observability.collector import value_of
from sidecar.observability.metrics import Histogram, Metrics

SHOWN_RID: Final = 8
"""Characters of a rid that the page shows: enough to search the log, too few to take it over."""

SHOWN_MESSAGE: Final = 300


@dataclass(frozen=True, slots=True)
class Health:
    """The answer to the probes. `reasons` say, a sentence each, why it is not live or not ready."""

    live: bool = True
    ready: bool = True
    reasons: tuple[str, ...] = ()


class Refusal(NamedTuple):
    """One refused request, redacted. `time` is Unix time in seconds."""

    time: float
    rid: str
    reason: str
    message: str


class RecentRefusals:
    """The last few refusals. Written by the event loop, read by the admin thread."""

    def __init__(self, length: int = 12) -> None:
        self._kept: deque[Refusal] = deque(maxlen=length)

    def add(self, rid: str | None, reason: str, message: str) -> None:
        """Keep a refusal; the oldest one makes room. Costs about 1 us."""
        self._kept.append(
            Refusal(time.time(), _shorten(rid or "", SHOWN_RID), reason, _shorten(message, SHOWN_MESSAGE))
        )

    def latest(self) -> list[Refusal]:
        """The newest first."""
        return list(reversed(self._kept.copy()))


class Setting(NamedTuple):
    """A key of the configuration in effect; `settings.describe` yields rows of this form."""

    key: str
    value: str
    origin: str
    doc: str


_PRIVATE: Final = ("secret", "password", "token_file")


class Status:
    """Everything that the status page shows.

    `facts` are the banner's rows. `health` is called for every probe, on the admin thread.
    """

    def __init__(
        self,
        metrics: Metrics,
        health: Callable[[], Health],
        *,
        refusals: RecentRefusals | None = None,
        facts: Mapping[str, str] | None = None,
        configuration: Iterable[tuple[str, str, str, str]] = (),
    ) -> None:
        self.metrics = metrics
        self.health = health
        self._refusals = refusals or RecentRefusals()
        self._facts = dict(facts or {})
        self._configuration = [Setting(*row) for row in configuration]
        self._started = time.time()

    def probe(self, *, ready: bool) -> tuple[int, dict[str, Any]]:
        """Status code and body of `/readyz` or `/healthz`."""
        health = self.health()
        fine = health.ready and health.live if ready else health.live
        word = ("ready" if ready else "live") if fine else ("not ready" if ready else "not live")
        return (200 if fine else 503), {"status": word, "reasons": [] if fine else list(health.reasons)}

    def snapshot(self) -> dict[str, Any]:
        """The numbers that move. Counters are totals: the page takes the differences."""
        metrics, health = self.metrics.snapshot(), self.health()
        now = time.time()
        return {
            "time": now,
            "uptime_seconds": now - self._started,
            "health": {"live": health.live, "ready": health.ready, "reasons": list(health.reasons)},
            "engine": {
                "connected": bool(value_of(metrics.engine_connected)),
                "connects": metrics.engine_connects,
                "disconnects": metrics.engine_disconnects,
                "stalled_seconds": value_of(metrics.egress_stalled_seconds),
            },
            "inflight": {
                "requests": value_of(metrics.inflight_requests),
                "requests_limit": value_of(metrics.inflight_requests_limit),
                "bytes": value_of(metrics.inflight_bytes),
                "bytes_limit": value_of(metrics.inflight_bytes_limit),
            },
            "pool": {
                "threads": value_of(metrics.pool_threads),
                "active": value_of(metrics.pool_active),
                "queued": value_of(metrics.pool_queued),
            },
            "totals": {
                "received_bytes": metrics.received_bytes,
                "sent_bytes": metrics.sent_bytes,
                "backpressure_seconds": value_of(metrics.backpressure_seconds),
                "delta_without_positions": metrics.delta_without_positions,
                "quarantined": value_of(metrics.quarantined_messages),
                "log_suppressed": value_of(metrics.log_suppressed),
            },
            "received": dict(metrics.received),
            "outcomes": {
                outcome: sum(count for (_, name), count in metrics.requests.items() if name == outcome)
                for outcome in OUTCOMES
            },
            "rejected": {str(reason): count for reason, count in metrics.rejected.items() if count},
            "media_items": dict(metrics.media_items),
            "media_tokens": dict(metrics.media_tokens),
            "stages": {stage: _distribution(histogram) for stage, histogram in metrics.stages.items()},
            "loop_lag": _distribution(metrics.loop_lag),
            "refusals": [refusal._asdict() for refusal in self._refusals.latest()],
        }

    def configuration(self) -> dict[str, Any]:
        """What does not move: the banner, the build, the configuration in effect without its secrets."""
        return {
            "build": dict(self.metrics.build),
            "facts": self._facts,
            "configuration": [_redact(setting)._asdict() for setting in self._configuration],
        }


def _distribution(histogram: Histogram) -> dict[str, Sequence[float]]:
    return {"bounds": histogram.bounds, "counts": list(histogram.counts)}


def _redact(setting: Setting) -> Setting:
    if setting.value != "-" and any(word in setting.key for word in _PRIVATE):
        return setting._replace(value="(set)")
    return setting


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "…"
