"""Order under any interleaving: an engine watches what leaves, whatever comes, works and blocks when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.settings.schema import DEFAULT_CONTROL_TAGS
from sidecar.transport.egress import BULK_BYTES
from sidecar.wire.msgpack import Buffer
from sidecar.wire.tokenspeed import GENERATE_TAG, Request
from tests.build import context
from tests.service.fakes import Bench
from tests.service.messages import slow, text

BULK = bytes(BULK_BYTES)
FIRST = 1000
RIDS = ("a", "b", "c")

OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(("text", "slow", "bulk", "slow bulk", "abort")), st.sampled_from(RIDS)),
    st.tuples(
        st.sampled_from(("control", "work", "start", "finish", "block", "unblock", "pace", "yield")), st.just("")
    ),
)


def stamp(payload: bytes, number: int) -> bytes:
    """The message with its number where it can be told from others of its rid: a request's last id."""
    fields = msgpack.unpackb(payload, strict_map_key=False)
    if fields[0] == GENERATE_TAG:
        fields[Request.INPUT_IDS][-1] = FIRST + number
    else:
        fields[2] = str(number)
    return msgpack.packb(fields)


def stamp_of(payload: Buffer) -> int:
    """The number that `stamp` gave."""
    fields = msgpack.unpackb(payload, strict_map_key=False)
    if fields[0] == GENERATE_TAG:
        return int(fields[Request.INPUT_IDS][-1]) - FIRST
    return int(fields[2])


class Watch:
    """What came, what was taken back, and what the engine must therefore never see."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.came: dict[int, tuple[str, str]] = {}
        self.forbidden: set[int] = set()

    def receive(self, what: str, rid: str) -> None:
        number = len(self.came)
        self.came[number] = (what, rid)
        if what == "abort":
            gone = {index for _, index in self.seen()}
            for queue in (self.bench.lanes._ready, self.bench.lanes._bulk):
                if queue and queue[0].committed:
                    gone.add(stamp_of(queue[0].envelope.message.payload))
            self.forbidden |= {
                index
                for index, (kind, other) in self.came.items()
                if other == rid and kind not in ("abort", "control") and index not in gone
            }
            payload = msgpack.packb(["AbortReq", rid, None])
        elif what == "control":
            payload = msgpack.packb(["FlushCacheReqInput", None, None])
        else:
            payload = slow(rid) if what.startswith("slow") else text(rid)
        self.bench.receive(stamp(payload, number), *([BULK] if what.endswith("bulk") else []))

    def seen(self) -> list[tuple[str, int]]:
        """What left, as (kind, number)."""
        found = []
        for payload, *_ in self.bench.egress.sent:
            fields = msgpack.unpackb(payload, strict_map_key=False)
            found.append((fields[0], stamp_of(payload)))
        return found

    def check(self) -> None:
        order = [number for _, number in self.seen()]
        assert len(set(order)) == len(order)
        assert not self.forbidden.intersection(order)
        for rid in RIDS:
            own = [number for number in order if self.came[number][1] == rid]
            assert own == sorted(own)
            assert sum(self.came[number][0] != "abort" for number in own) <= 1
        for place, number in enumerate(order):
            if self.came[number][0] == "control":
                assert all(earlier < number for earlier in order[:place])
                assert all(later > number for later in order[place:][1:])
        assert self.bench.balanced()


@settings(max_examples=150, deadline=None)
@given(st.lists(OPERATIONS, max_size=40))
def test_no_interleaving_breaks_the_order(operations: list[tuple[str, str]]) -> None:
    async def main() -> None:
        bench = Bench(context(control_tags=frozenset(DEFAULT_CONTROL_TAGS)))
        watch = Watch(bench)
        running: list[Callable[[], None]] = []
        for what, rid in operations:
            match what:
                case "work":
                    bench.pool.run_one()
                case "start":
                    finish = bench.pool.start_one()
                    if finish is not None:
                        running.append(finish)
                case "finish":
                    if running:
                        running.pop()()
                case "block":
                    bench.egress.room = 0
                case "unblock":
                    bench.egress.pacing = False
                    bench.unblock()
                case "pace":
                    bench.egress.pacing = True
                case "yield":
                    await asyncio.sleep(0)
                case _:
                    watch.receive(what, rid)
            watch.check()
        bench.egress.pacing = False
        bench.unblock()
        for finish in running:
            finish()
        while bench.lanes.held:
            bench.pool.run_one()
            await asyncio.sleep(0)
            watch.check()
        lanes, flow = bench.lanes, bench.flow
        assert (lanes.inflight, lanes.working, lanes.tasks, flow.bytes, flow.messages) == (0, 0, 0, 0, 0)
        assert not lanes._lanes
        assert not lanes._gate

    run(main())


def run(main: Any) -> None:
    """On asyncio: what is tested here is the order, which no loop decides."""
    asyncio.run(main)
