"""Stand-ins for the pool and the egress, and an engine that tells when a scheduler would have died."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from itertools import takewhile
from typing import Any

import msgpack

from sidecar.context import Context
from sidecar.observability.metrics import Metrics
from sidecar.outcome import Outcome
from sidecar.service.lanes import Lanes
from sidecar.service.ledger import Ledger
from sidecar.transport.egress import BULK_BYTES
from sidecar.transport.flow import FlowControl
from sidecar.wire.msgpack import Buffer


class ManualPool(Executor):
    """Runs a task when it is told to: `start` begins one, `finish` ends it."""

    def __init__(self) -> None:
        self.queued: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.queued.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run_one(self) -> bool:
        """Run the oldest task that has not been cancelled."""
        while self.queued:
            future, task = self.queued.popleft()
            if future.set_running_or_notify_cancel():
                future.set_result(task())
                return True
        return False

    def start_one(self) -> Callable[[], None] | None:
        """Begin the oldest task, so that it cannot be cancelled any more; the answer ends it."""
        while self.queued:
            future, task = self.queued.popleft()
            if future.set_running_or_notify_cancel():
                return lambda: future.set_result(task())
        return None


class FakeEgress:
    """Takes messages while there is room; releases their bytes at once."""

    def __init__(self, release: Callable[[int], None], room: int = 1 << 30) -> None:
        self.room = room
        self.pacing = False
        self.sent: list[list[Buffer]] = []
        self._release = release

    def takes(self, nbytes: int) -> bool:
        return self.room > 0 and (nbytes < BULK_BYTES or not self.pacing)

    def send(self, frames: Sequence[Buffer], nbytes: int) -> bool:
        if self.room <= 0:
            return False
        self.room -= 1
        self.sent.append(list(frames))
        self._release(nbytes)
        return True

    def send_each(self, messages: Sequence[Sequence[Buffer]]) -> int:
        return sum(takewhile(bool, (self.send(frames, 0) for frames in messages)))


class Bench:
    """Lanes with everything around them; `trace` is what the engine saw, as (what, rid or tag)."""

    def __init__(self, context: Context, *, room: int = 1 << 30, max_bytes: int = 1 << 40, max_messages: int = 1 << 20):
        self.now = 0.0
        context.now = lambda: self.now
        self.context = context
        self.metrics = Metrics()
        self.kept: list[Outcome] = []
        self.ledger = Ledger(self.metrics, context.probe, lambda _, outcome: self.kept.append(outcome))
        self.flow = FlowControl(max_bytes, max_messages, lambda: self.now)
        self.egress = FakeEgress(self.flow.give, room)
        self.pool = ManualPool()
        self.lanes = Lanes(context, self.ledger, self.flow, self.egress, self.pool)

    def receive(self, *frames: bytes) -> None:
        """A message arrives."""
        self.lanes.receive(list(frames), sum(map(len, frames)))

    def unblock(self, room: int = 1 << 30) -> None:
        """The engine takes messages again."""
        self.egress.room = room
        self.lanes.flush()

    @property
    def trace(self) -> list[tuple[str, str]]:
        """What left, in order."""
        return [event for message in self.egress.sent for event in read(message)]

    def count(self, outcome: str) -> int:
        """Requests with this outcome."""
        return sum(n for (_, name), n in self.metrics.requests.items() if name == outcome)

    def balanced(self) -> bool:
        """The accounting identity."""
        received = self.metrics.received["generate"] + self.metrics.received["unreadable"]
        return received == sum(self.metrics.requests.values()) + self.lanes.inflight


def read(message: Sequence[Buffer]) -> list[tuple[str, str]]:
    """What a message says to an engine."""
    if bytes(message[0]) == b"\x01":
        return [("abort", rid) for rid in msgpack.unpackb(message[1])]
    payload = message[1] if bytes(message[0]) == b"\x00" else message[0]
    fields = msgpack.unpackb(payload, strict_map_key=False)
    if fields[0] == "TokenizedGenerateReqInput":
        return [("rejected" if len(fields) > 23 and fields[23] else "add", fields[1])]
    return [("abort", fields[1])] if fields[0] == "AbortReq" else [("control", fields[0])]
