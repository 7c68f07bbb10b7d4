"""Large messages are worked on no sooner than they can leave, and nobody waits for that but they."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sidecar.service.slow_work import AHEAD
from sidecar.transport.egress import BULK_BYTES
from tests.build import context
from tests.service.fakes import Bench
from tests.service.loops import Run
from tests.service.messages import abort, settle, slow, text

LARGE = bytes(BULK_BYTES)
RIDS = [f"r{index}" for index in range(AHEAD + 3)]


def case(run: Run, body: Callable[[Bench], Any]) -> None:
    """Run a test's body on a bench whose egress takes no large message yet, and check the books at the end."""

    async def main() -> None:
        bench = Bench(context())
        bench.egress.pacing = True
        await body(bench)
        bench.egress.pacing = False
        bench.lanes.flush()
        while bench.lanes.held:
            bench.pool.run_one()
            await settle()
        assert bench.balanced()
        assert (bench.lanes.working, bench.lanes.tasks, bench.flow.bytes, bench.flow.messages) == (0, 0, 0, 0)

    run(main())


async def work(bench: Bench) -> int:
    """Have the pool do all that it was given; how much that was."""
    count = 0
    while bench.pool.run_one():
        count += 1
        await settle()
    return count


def test_no_more_is_begun_than_can_soon_leave(run: Run) -> None:
    async def body(bench: Bench) -> None:
        for rid in RIDS:
            bench.receive(slow(rid), LARGE)
        assert bench.lanes.tasks == AHEAD
        assert await work(bench) == AHEAD
        assert bench.lanes.tasks == 0
        assert bench.lanes.held == len(RIDS)
        bench.egress.pacing = False
        bench.lanes.flush()  # those that are ready leave, and as many are begun
        assert bench.trace == [("add", rid) for rid in RIDS[:AHEAD]]
        assert bench.lanes.tasks == AHEAD
        await work(bench)
        assert bench.trace == [("add", rid) for rid in RIDS]

    case(run, body)


def test_small_slow_work_waits_for_no_large_one(run: Run) -> None:
    async def body(bench: Bench) -> None:
        for rid in RIDS:
            bench.receive(slow(rid), LARGE)
        bench.receive(slow("small"))
        assert bench.lanes.tasks == AHEAD + 1
        await work(bench)
        assert bench.trace == [("add", "small")]

    case(run, body)


def test_large_messages_without_slow_work_keep_nobody_from_beginning(run: Run) -> None:
    async def body(bench: Bench) -> None:
        for rid in RIDS:
            bench.receive(text(rid), LARGE)
        bench.receive(slow("s"), LARGE)
        assert bench.lanes.tasks == 1

    case(run, body)


@pytest.mark.parametrize("running", [False, True])
def test_an_abort_makes_room_for_the_next(run: Run, running: bool) -> None:
    async def body(bench: Bench) -> None:
        for rid in RIDS:
            bench.receive(slow(rid), LARGE)
        finish = bench.pool.start_one() if running else None
        bench.receive(abort(RIDS[0]))
        bench.receive(abort(RIDS[-1]))  # not begun
        assert bench.count("cancelled") == 2
        assert bench.lanes.tasks == AHEAD
        if finish is not None:
            assert len(bench.pool.queued) == AHEAD - 1  # its thread still reads the first
            finish()
            await settle()
        assert await work(bench) == AHEAD
        bench.egress.pacing = False
        bench.lanes.flush()
        await work(bench)
        assert bench.trace == [("add", rid) for rid in RIDS[1:-1]]

    case(run, body)


def test_a_refused_message_makes_room_for_the_next(run: Run) -> None:
    async def body(bench: Bench) -> None:
        for rid in [*RIDS, *RIDS]:
            bench.receive(slow(rid), LARGE)
        bench.egress.pacing = False
        bench.lanes.flush()
        await work(bench)
        assert bench.trace == [("add", rid) for rid in RIDS]
        assert bench.count("dropped") == len(RIDS)

    case(run, body)


def test_what_is_surrendered_begins_no_more_and_what_comes_after_it_does(run: Run) -> None:
    async def body(bench: Bench) -> None:
        for rid in RIDS:
            bench.receive(slow(rid), LARGE)
        for held in bench.lanes.surrender():
            bench.ledger.spilled(held.envelope, 1)
            bench.lanes.let_go(held)
        assert await work(bench) == 0
        assert bench.trace == []
        bench.egress.pacing = False  # another engine
        for rid in RIDS:
            bench.receive(slow(rid), LARGE)
        assert await work(bench) == len(RIDS)
        assert bench.trace == [("add", rid) for rid in RIDS]

    case(run, body)
