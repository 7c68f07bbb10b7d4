"""Is it alive, is it ready, does anything move: watched by one timer on the event loop, asked from any thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from sidecar.observability.metrics import Histogram
from sidecar.observability.status import Health

TICK_S: Final = 0.02
STUCK_S: Final = 30.0
"""An event loop that has not run a timer for this long is not alive."""


class Vitals:
    """The loop's lag, progress towards the engine, and the answers to the probes.

    `moved()` is a number that changes whenever a message comes to its end, `waits()` says whether
    anything is held. Standing still is only counted while something waits: an idle sidecar is ready.
    """

    def __init__(
        self,
        lag: Histogram,
        *,
        moved: Callable[[], int],
        waits: Callable[[], bool],
        stall_timeout_s: float,
    ) -> None:
        self.engines = 0
        """Connected engines."""
        self.draining = False
        self._lag = lag
        self._moved = moved
        self._waits = waits
        self._stall_timeout_s = stall_timeout_s
        self._loop = asyncio.get_running_loop()
        self._seen = moved()
        self._moved_at = self._ticked_at = self._loop.time()
        self._waiting = False
        self._due = self._loop.time() + TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)

    @property
    def stalled_s(self) -> float:
        """How long nothing has moved although something waits, in seconds; 0 if nothing waits."""
        return max(self._loop.time() - self._moved_at, 0.0) if self._waiting else 0.0

    def health(self) -> Health:
        """What the probes answer. From any thread."""
        live = self._loop.time() - self._ticked_at < STUCK_S
        reasons = []
        if not live:
            reasons.append(f"the event loop has not run for {STUCK_S:g} s")
        if self.draining:
            reasons.append("draining: the process is about to end")
        if not self.engines:
            reasons.append("no engine is connected")
        stalled = self.stalled_s
        if stalled >= self._stall_timeout_s:
            reasons.append(f"messages wait, and nothing has moved for {stalled:.0f} s (egress.stall_timeout_s)")
        return Health(live=live, ready=not reasons, reasons=tuple(reasons))

    def close(self) -> None:
        """Stop the timer."""
        self._timer.cancel()

    def _tick(self) -> None:
        now = self._loop.time()
        self._lag.observe(max(now - self._due, 0.0))
        self._ticked_at = now
        moved, waits = self._moved(), self._waits()
        if moved != self._seen or not (waits and self._waiting):
            self._moved_at = now
        self._seen, self._waiting = moved, waits
        # From now on, not from when it was due: a late timer must not be followed by a burst of them.
        self._due = now + TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)
