"""Garbage collection at moments that suit: old objects are looked at when nothing is held.

Python's collector looks at the young containers after 700 allocations (20 us), and now and then at all
that have survived. With 4,000 messages waiting for an engine these are 45,000, and one run stopped the
event loop for 24 ms, to find nothing: reference counts free what passes here. Only exceptions leave
cycles behind, those of refused requests for instance. When nothing is held, few are left to look at.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

TICK_S: Final = 0.1
YOUNG: Final = 700
NEVER: Final = 1 << 30

DUE: Final = 10
"""Collections of young objects after which the survivors are looked at, when nothing is held."""

OVERDUE: Final = 2_000
"""And after which it can wait no longer: 1.4 million containers may have survived."""

FULL_EVERY: Final = 100
"""Every so many times, those that have survived this as well are looked at too."""


class IdleCollector:
    """Times the collector on the running event loop, until it is closed.

    What is alive when it is made is never looked at again: it lives as long as the process. `idle()`
    says whether nothing is held.
    """

    def __init__(self, idle: Callable[[], bool]) -> None:
        self.collections = 0
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._thresholds = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, NEVER, NEVER)
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def close(self) -> None:
        """Give the collector back."""
        self._timer.cancel()
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        young = gc.get_count()[1]
        if young >= OVERDUE or (young >= DUE and self._idle()):
            self.collections += 1
            gc.collect(1 if self.collections % FULL_EVERY else 2)
