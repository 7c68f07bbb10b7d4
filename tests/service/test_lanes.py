"""Order: lanes, gate, aborts, and the books that go with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from sidecar.admission.memory import RidMemory
from sidecar.settings.schema import DEFAULT_CONTROL_TAGS
from sidecar.transport.egress import BULK_BYTES
from sidecar.wire.framing import Framing
from tests.build import context
from tests.service.fakes import Bench
from tests.service.loops import Run
from tests.service.messages import abort, control, settle, slow, text


def case(run: Run, body: Callable[[Bench], Any], **settings: Any) -> None:
    """Run a test's body with a fresh bench, and check the books at the end."""

    async def main() -> None:
        bench = Bench(context(control_tags=frozenset(DEFAULT_CONTROL_TAGS)), **settings)
        result = body(bench)
        if result is not None:
            await result
        assert bench.balanced()

    run(main())


def idle(bench: Bench) -> bool:
    """Whether nothing is held any more, by any of the books."""
    lanes, flow = bench.lanes, bench.flow
    return (lanes.held, lanes.inflight, lanes.working, lanes.tasks, flow.bytes, flow.messages) == (0, 0, 0, 0, 0, 0)


def test_text_passes_at_once(run: Run) -> None:
    def body(bench: Bench) -> None:
        bench.receive(text("a"))
        assert bench.trace == [("add", "a")]
        assert bench.count("forwarded") == 1
        assert idle(bench)

    case(run, body)


def test_text_does_not_wait_for_slow_work(run: Run) -> None:
    async def body(bench: Bench) -> None:
        bench.receive(slow("s"))
        bench.receive(text("a"))
        assert bench.trace == [("add", "a")]
        bench.pool.run_one()
        await settle()
        assert bench.trace == [("add", "a"), ("add", "s")]
        assert idle(bench)

    case(run, body)


def test_same_rid_waits_for_its_turn(run: Run) -> None:
    async def body(bench: Bench) -> None:
        bench.receive(slow("s"))
        bench.receive(text("s"))
        assert bench.trace == []
        bench.pool.run_one()
        await settle()
        assert bench.trace == [("add", "s")]
        assert bench.count("dropped") == 1
        assert [str(outcome.reason) for outcome in bench.kept] == ["duplicate_rid"]
        assert idle(bench)

    case(run, body)


def test_same_rid_in_order_where_duplicates_are_allowed(run: Run) -> None:
    async def main() -> None:
        bench = Bench(context())
        bench.context.rids = RidMemory(0.0)
        bench.receive(slow("s"))
        bench.receive(text("s"))
        bench.receive(text("s", stream=True))
        bench.pool.run_one()
        await settle()
        assert bench.trace == [("add", "s")] * 3
        assert idle(bench)
        assert bench.balanced()

    run(main())


@pytest.mark.parametrize("running", [False, True])
def test_abort_takes_a_request_back_from_the_pool(run: Run, running: bool) -> None:
    async def body(bench: Bench) -> None:
        bench.receive(slow("s"))
        finish = bench.pool.start_one() if running else None
        bench.receive(abort("s"))
        assert bench.count("cancelled") == 1
        assert bench.metrics.aborts["cancelled"] == 1
        assert bench.lanes.inflight == 0
        assert (bench.flow.bytes > 0) is running  # the pool still reads the buffers
        bench.receive(text("s"))
        assert bench.trace == [("add", "s")]
        if finish is not None:
            finish()
        await settle()
        assert bench.trace == [("add", "s")]
        assert idle(bench)

    case(run, body)


def test_abort_takes_all_requests_of_a_rid_back(run: Run) -> None:
    async def body(bench: Bench) -> None:
        bench.receive(slow("s"))
        bench.receive(text("s"))
        bench.receive(slow("s", 1))
        bench.receive(abort("s"))
        while bench.pool.run_one():
            pass
        await settle()
        assert bench.trace == []
        assert bench.count("cancelled") == 3
        assert bench.metrics.aborts["cancelled"] == 1
        assert idle(bench)

    case(run, body)


def test_abort_of_a_live_request_passes_although_a_duplicate_is_slow(run: Run) -> None:
    async def body(bench: Bench) -> None:
        bench.receive(text("s"))
        bench.receive(slow("s"))  # a duplicate: known before any work is spent on it
        assert bench.count("dropped") == 1
        bench.receive(abort("s"))
        assert bench.trace == [("add", "s"), ("abort", "s")]
        assert idle(bench)

    case(run, body)


def test_abort_of_nobody_passes(run: Run) -> None:
    def body(bench: Bench) -> None:
        bench.receive(abort("unknown"))
        bench.receive(abort(""))
        assert bench.trace == [("abort", "unknown"), ("abort", "")]
        assert bench.metrics.aborts["forwarded"] == 2

    case(run, body)


def test_abort_takes_back_what_the_egress_has_not_taken(run: Run) -> None:
    def body(bench: Bench) -> None:
        bench.receive(text("first"))
        bench.receive(text("a"))
        bench.receive(text("b"))
        bench.receive(abort("a"))
        assert bench.count("cancelled") == 1
        bench.receive(text("a", stream=True))
        bench.unblock()
        assert bench.trace == [("add", "first"), ("add", "b"), ("add", "a")]
        assert idle(bench)

    case(run, body, room=0)


@pytest.mark.parametrize("first", [text, slow])
def test_abort_takes_back_the_request_that_is_next_to_leave(run: Run, first: Callable[..., bytes]) -> None:
    def body(bench: Bench) -> None:
        bench.receive(first("head"))
        bench.pool.run_one()
        bench.receive(abort("head"))
        bench.receive(text("next"))
        assert bench.count("cancelled") == 1
        assert bench.metrics.aborts["cancelled"] == 1
        bench.receive(text("head", stream=True))
        bench.unblock()
        assert bench.trace == [("add", "next"), ("add", "head")]
        assert bench.count("forwarded") == 2

    case(run, body, room=0)


def test_control_waits_for_all_before_it_and_holds_all_behind_it(run: Run) -> None:
    async def body(bench: Bench) -> None:
        bench.receive(slow("s"))
        bench.receive(control())
        bench.receive(text("behind"))
        bench.receive(slow("t", 1))
        bench.receive(control("GetInternalStateReq"))
        bench.receive(text("last"))
        assert bench.trace == []
        bench.pool.run_one()
        await settle()
        assert bench.trace == [("add", "s"), ("control", "FlushCacheReqInput"), ("add", "behind")]
        bench.pool.run_one()
        await settle()
        assert bench.trace[3:] == [("add", "t"), ("control", "GetInternalStateReq"), ("add", "last")]
        assert bench.metrics.control["forwarded"] == 2
        assert idle(bench)

    case(run, body)


def test_an_abort_reaches_through_the_gate(run: Run) -> None:
    async def body(bench: Bench) -> None:
        bench.receive(slow("s"))
        bench.receive(control())
        bench.receive(text("behind"))
        bench.receive(abort("behind"))
        bench.receive(abort("elsewhere"))
        bench.receive(abort("s"))  # the barrier waited for this one alone
        assert bench.trace == [("control", "FlushCacheReqInput"), ("abort", "elsewhere")]
        assert bench.count("cancelled") == 2
        while bench.pool.run_one():
            pass
        await settle()
        assert idle(bench)

    case(run, body)


def test_what_may_not_pass_is_dropped_without_waiting(run: Run) -> None:
    async def body(bench: Bench) -> None:
        bench.receive(slow("s"))
        bench.receive(control("UpdateWeightFromDiskReqInput"))
        bench.receive(b"\xc1")
        bench.receive(msgpack.packb(["AbortReq", 7]))
        assert bench.metrics.control["dropped"] == 1
        assert bench.metrics.aborts["dropped"] == 1
        assert bench.metrics.received["unreadable"] == 1
        assert bench.count("dropped") == 1
        assert len(bench.kept) == 3
        bench.pool.run_one()
        await settle()
        assert idle(bench)

    case(run, body)


def test_a_refused_request_is_handed_over_and_counted_as_such(run: Run) -> None:
    def body(bench: Bench) -> None:
        bench.receive(msgpack.packb(["TokenizedGenerateReqInput", "bad", None, None, []]))
        assert bench.trace == [("rejected", "bad")]
        assert bench.count("rejected") == 1
        assert bench.metrics.rejected["malformed_request"] == 1
        assert idle(bench)

    case(run, body)


def test_typed_abort_list_is_split(run: Run) -> None:
    async def main() -> None:
        bench = Bench(context(framing=Framing.TYPED))
        bench.receive(b"\x00", slow("s"))
        bench.receive(b"\x01", msgpack.packb(["s", "x", "s", "y"]))
        assert bench.trace == [("abort", "x"), ("abort", "y")]
        assert bench.metrics.aborts == {"forwarded": 2, "cancelled": 1, "spilled": 0, "dropped": 0}
        while bench.pool.run_one():
            pass
        await settle()
        assert idle(bench)
        assert bench.balanced()

    run(main())


def test_typed_abort_list_becomes_native_aborts(run: Run) -> None:
    async def main() -> None:
        bench = Bench(context(ingress_framing=Framing.TYPED), room=2)
        bench.receive(b"\x01", msgpack.packb([f"r{i}" for i in range(5)]))
        assert len(bench.egress.sent) == 2
        assert bench.flow.messages == 1
        bench.receive(b"\x01", msgpack.packb([]))
        bench.unblock()
        assert bench.trace == [("abort", f"r{i}") for i in range(5)]
        assert idle(bench)

    run(main())


def test_a_long_lane_and_a_long_gate_do_not_recurse(run: Run) -> None:
    async def body(bench: Bench) -> None:
        bench.receive(slow("s"))
        for _ in range(3000):
            bench.receive(text("s"))
        bench.receive(control())
        for index in range(3000):
            bench.receive(text(f"t{index}"))
        bench.pool.run_one()
        for _ in range(20_000):
            await settle()
            if not bench.lanes.held:
                break
        assert bench.trace[:3] == [("add", "s"), ("control", "FlushCacheReqInput"), ("add", "t0")]
        assert len(bench.trace) == 3002
        assert bench.count("dropped") == 3000
        assert idle(bench)

    case(run, body)


def test_flush_goes_on_in_batches(run: Run) -> None:
    async def body(bench: Bench) -> None:
        for index in range(500):
            bench.receive(text(f"t{index}"))
        bench.unblock()
        assert len(bench.egress.sent) < 500  # others had their turn
        for _ in range(100):
            await settle()
        assert bench.trace == [("add", f"t{index}") for index in range(500)]
        assert idle(bench)

    case(run, body, room=0)


def test_small_messages_pass_large_ones_that_wait(run: Run) -> None:
    async def body(bench: Bench) -> None:
        bench.egress.pacing = True
        bench.receive(text("big"), bytes(BULK_BYTES))
        bench.receive(text("bigger"), bytes(BULK_BYTES))
        bench.receive(text("small"))
        bench.receive(control())  # waits for all of them
        bench.receive(abort("bigger"))
        bench.receive(text("behind"))
        assert bench.trace == [("add", "small")]
        assert bench.count("cancelled") == 1
        bench.egress.pacing = False
        bench.lanes.flush()
        await settle()
        assert bench.trace[1:] == [("add", "big"), ("control", "FlushCacheReqInput"), ("add", "behind")]
        assert idle(bench)

    case(run, body)


def test_a_large_request_does_not_pass_an_abort_of_its_own_rid(run: Run) -> None:
    async def body(bench: Bench) -> None:
        bench.egress.room = 0
        bench.receive(text("first"))
        bench.receive(abort("again"))  # of an earlier life of the rid
        bench.receive(text("again"), bytes(BULK_BYTES))
        bench.unblock()
        await settle()
        assert bench.trace == [("add", "first"), ("abort", "again"), ("add", "again")]
        assert idle(bench)

    case(run, body)


def test_requests_without_a_rid_are_held_and_leave_like_all_others(run: Run) -> None:
    async def body(bench: Bench) -> None:
        bench.egress.room = 0
        nameless = msgpack.packb({"token_ids": [1, 2, 3]})
        for _ in range(3):
            bench.receive(nameless)
        assert bench.lanes.inflight == 3
        bench.unblock()
        await settle()
        assert [bytes(frames[0]) for frames in bench.egress.sent] == [nameless] * 3
        assert bench.count("forwarded") == 3
        assert idle(bench)

    case(run, body)


def test_computed_positions_count_as_held(run: Run) -> None:
    async def body(bench: Bench) -> None:
        bench.receive(text("head"))
        bench.receive(slow("s"))
        before = bench.flow.bytes
        bench.pool.run_one()
        await settle()
        assert bench.flow.bytes > before
        bench.unblock()
        assert idle(bench)

    case(run, body, room=0)


def test_surrendered_messages_keep_their_order_and_their_books(run: Run) -> None:
    async def body(bench: Bench) -> None:
        bench.receive(text("head"))
        bench.receive(slow("s"))
        bench.receive(abort("elsewhere"))
        bench.receive(control())
        bench.receive(text("behind"))
        finish = bench.pool.start_one()
        assert finish is not None
        held = bench.lanes.surrender()
        kinds = [(str(message.envelope.kind), message.envelope.rid) for message in held]
        assert kinds == [
            ("generate", "head"),
            ("generate", "s"),
            ("abort", None),
            ("control", None),
            ("generate", "behind"),
        ]
        for message in held:
            bench.ledger.spilled(message.envelope, 1)
            bench.lanes.let_go(message)
            assert bench.balanced()
        finish()
        await settle()
        assert bench.trace == []
        assert idle(bench)

    case(run, body, room=0)
