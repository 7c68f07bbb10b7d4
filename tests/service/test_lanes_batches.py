"""Several messages of one batch: small ones leave at its end, in the order in which they came."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.settings.schema import DEFAULT_CONTROL_TAGS
from sidecar.transport.egress import REFERENCE_BYTES
from tests.build import context
from tests.service.fakes import Bench
from tests.service.loops import Run
from tests.service.messages import abort, control, slow, text
from tests.service.test_lanes import case, idle


def take(bench: Bench, *messages: bytes) -> None:
    """Messages of a batch that has not ended."""
    for message in messages:
        bench.lanes.take([message], len(message))


def adds(*rids: str) -> list[tuple[str, str]]:
    return [("add", rid) for rid in rids]


def test_small_messages_leave_when_the_batch_ends(run: Run) -> None:
    def body(bench: Bench) -> None:
        take(bench, text("a"), text("b"), text("c"))
        assert bench.trace == []
        assert (bench.lanes.held, bench.lanes.inflight) == (3, 1)  # those that went the short way are booked later
        assert bench.balanced()
        bench.lanes.end_batch()
        assert bench.trace == adds("a", "b", "c")
        assert bench.count("forwarded") == 3
        assert idle(bench)

    case(run, body)


@pytest.mark.parametrize("other", ["large", "abort", "slow"])
def test_what_is_not_a_small_request_leaves_behind_those_before_it(run: Run, other: str) -> None:
    def body(bench: Bench) -> None:
        take(bench, text("a"))
        if other == "large":
            take(bench, text("b", input_text="x" * REFERENCE_BYTES))
        elif other == "abort":
            take(bench, abort("a"))
        else:
            take(bench, slow("b"))
        take(bench, text("c"))
        bench.lanes.end_batch()
        middle = {"large": adds("b"), "abort": [("abort", "a")], "slow": []}[other]
        assert bench.trace == [*adds("a"), *middle, *adds("c")]
        bench.pool.run_one()

    case(run, body)


def test_what_the_egress_does_not_take_is_held_in_order(run: Run) -> None:
    def body(bench: Bench) -> None:
        take(bench, text("a"), text("b"), text("c"))
        bench.lanes.end_batch()
        assert bench.trace == adds("a")
        assert (bench.lanes.held, bench.lanes.inflight) == (2, 2)
        assert bench.balanced()
        bench.unblock()
        assert bench.trace == adds("a", "b", "c")
        assert idle(bench)

    case(run, body, room=1)


def test_an_abort_takes_back_what_the_egress_has_not_taken(run: Run) -> None:
    def body(bench: Bench) -> None:
        take(bench, text("a"), text("b"), text("c"), abort("c"))
        bench.unblock()
        assert bench.trace == adds("a", "b")
        assert bench.count("cancelled") == 1
        assert idle(bench)

    case(run, body, room=1)


def test_a_rid_that_comes_twice_in_a_batch_is_a_duplicate(run: Run) -> None:
    def body(bench: Bench) -> None:
        take(bench, text("a"), text("a"), text("b"))
        bench.lanes.end_batch()
        assert bench.trace == adds("a", "b")
        assert bench.count("dropped") == 1

    case(run, body)


def test_the_short_way_is_in_all_books(run: Run) -> None:
    def body(bench: Bench) -> None:
        messages = [text(rid) for rid in "abcd"]
        take(bench, *messages)
        bench.lanes.end_batch()
        metrics = bench.metrics
        assert bench.trace == adds(*"abcd")
        assert (metrics.received["generate"], bench.count("forwarded"), bench.ledger.moved) == (4, 4, 4)
        assert metrics.received_bytes == sum(map(len, messages))
        assert metrics.sent_bytes == sum(len(message[0]) for message in bench.egress.sent)
        assert [sum(metrics.stages[stage].counts) for stage in ("parse", "send")] == [4, 4]
        assert metrics.stages["parse"].sum > 0

    case(run, body)


def test_the_short_way_ends_where_the_egress_takes_nothing(run: Run) -> None:
    def body(bench: Bench) -> None:
        take(bench, *(text(rid) for rid in "abcdb"))
        bench.lanes.end_batch()
        assert bench.trace == adds("a", "b")
        assert (bench.lanes.held, bench.lanes.inflight) == (3, 3)
        bench.receive(abort("c"))  # withdrawn, so that it can be taken back
        bench.unblock()
        assert bench.trace == adds("a", "b", "d")
        assert (bench.count("cancelled"), bench.count("dropped")) == (1, 1)
        assert idle(bench)

    case(run, body, room=2)


def test_who_taps_sees_every_message(run: Run) -> None:
    class Watcher:
        active = True

        def __init__(self) -> None:
            self.offered = 0

        def offer(self, *_: object) -> None:
            self.offered += 1

    def body(bench: Bench) -> None:
        bench.receive(text("a"))
        watcher = Watcher()
        bench.ledger.taps = watcher  # type: ignore[assignment]
        take(bench, text("b"), text("c"))
        bench.lanes.end_batch()
        assert watcher.offered == 4

    case(run, body)


MESSAGES = {
    "text": text,
    "large": lambda rid: text(rid, input_text="x" * REFERENCE_BYTES),
    "slow": slow,
    "abort": abort,
    "control": lambda rid: control(),
}
BATCH = st.lists(st.tuples(st.sampled_from(sorted(MESSAGES)), st.sampled_from("abc")), max_size=6)
BETWEEN = st.sampled_from(("work", "room 0", "room 2", "room 9"))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(BATCH, BETWEEN), max_size=8))
def test_batches_change_nothing_of_what_leaves(batches: list[tuple[list[tuple[str, str]], str]]) -> None:
    async def main() -> None:
        one_by_one, in_batches = (Bench(context(control_tags=frozenset(DEFAULT_CONTROL_TAGS))) for _ in range(2))
        for batch, between in batches:
            for kind, rid in batch:
                one_by_one.receive(MESSAGES[kind](rid))
                take(in_batches, MESSAGES[kind](rid))
                assert in_batches.balanced()
            in_batches.lanes.end_batch()
            for bench in (one_by_one, in_batches):
                if between == "work":
                    bench.pool.run_one()
                else:
                    bench.unblock(int(between.removeprefix("room ")))
            await asyncio.sleep(0)
            assert in_batches.trace == one_by_one.trace
        for bench in (one_by_one, in_batches):  # a duplicate behind a full egress is booked sooner in a batch
            for _ in range(2):
                while bench.pool.run_one():
                    await asyncio.sleep(0)
                bench.unblock()
                for _ in range(5):
                    await asyncio.sleep(0)
        assert in_batches.trace == one_by_one.trace
        assert in_batches.metrics.requests == one_by_one.metrics.requests
        assert (in_batches.lanes.held, in_batches.lanes.inflight) == (0, 0)

    asyncio.run(main())
