"""Alive, ready, standing still: what the probes answer and when."""

from __future__ import annotations

import asyncio
import time

from sidecar.observability.metrics import Metrics
from sidecar.service import vitals
from sidecar.service.vitals import Vitals
from tests.service.loops import Run
from tests.transport.test_monitor import until


class Subject:
    """Vitals of something whose numbers the test sets."""

    def __init__(self, stall_timeout_s: float = 0.1) -> None:
        self.moved = 0
        self.waits = False
        self.metrics = Metrics()
        self.vitals = Vitals(
            self.metrics.loop_lag,
            moved=lambda: self.moved,
            waits=lambda: self.waits,
            stall_timeout_s=stall_timeout_s,
        )
        self.vitals.engines = 1

    @property
    def reasons(self) -> str:
        return " ".join(self.vitals.health().reasons)


def test_idle_is_ready_however_long(run: Run) -> None:
    async def body() -> None:
        subject = Subject()
        await asyncio.sleep(0.3)
        assert subject.vitals.health().ready
        assert subject.vitals.stalled_s == 0
        subject.waits = True  # standing still counts from now, not from the last move
        await asyncio.sleep(0.05)
        assert subject.vitals.health().ready
        subject.vitals.close()

    run(body())


def test_standing_still_while_something_waits(run: Run) -> None:
    async def body() -> None:
        subject = Subject()
        subject.waits = True
        await until(lambda: "nothing has moved" in subject.reasons)
        assert not subject.vitals.health().ready
        assert subject.vitals.health().live
        subject.moved += 1
        await until(lambda: subject.vitals.health().ready)
        subject.vitals.close()

    run(body())


def test_moving_slowly_is_not_standing_still(run: Run) -> None:
    async def body() -> None:
        subject = Subject(0.2)
        subject.waits = True
        for _ in range(10):
            await asyncio.sleep(0.05)
            subject.moved += 1
            assert subject.vitals.health().ready
        subject.vitals.close()

    run(body())


def test_other_reasons(run: Run) -> None:
    async def body() -> None:
        subject = Subject()
        subject.vitals.engines = 0
        assert "no engine" in subject.reasons
        subject.vitals.engines = 1
        subject.vitals.draining = True
        assert "draining" in subject.reasons
        subject.vitals.close()

    run(body())


def test_a_loop_that_does_not_run_is_not_alive(run: Run, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    async def body() -> None:
        subject = Subject()
        await asyncio.sleep(0.05)
        monkeypatch.setattr(vitals, "STUCK_S", 0.1)
        time.sleep(0.15)
        assert not subject.vitals.health().live
        assert not subject.vitals.health().ready
        await asyncio.sleep(0.05)
        assert subject.vitals.health().live
        assert sum(subject.metrics.loop_lag.counts[6:]) == 1  # one late timer, above 50 ms, not a burst of them
        subject.vitals.close()

    run(body())
