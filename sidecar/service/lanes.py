"""The order of messages: one lane a rid, a pool for slow work, and control messages as barriers.

    received ─┬─ nothing in its way ────────────────────────────► egress
              ├─ slow ──► pool ──────────────────┐      ┌► ready ─► egress
              ├─ rid still held ──► its lane ────┼──────┤
              └─ control waits ──► gate ─────────┘      └► bulk ──► egress, one at a time

What is promised: ADD and ABORT of one rid leave in the order in which they came, and never an ADD
after its ABORT; a control message leaves after everything that came before it and before everything
that came after; a request that needs no slow work waits for nobody else's. An ABORT that finds its
request still held takes it back, and neither leaves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Executor
from time import perf_counter
from typing import Final

from sidecar.context import Context
from sidecar.outcome import Envelope, Kind, Outcome, Result
from sidecar.pipeline import commit, narrow_abort, open_message, process, withdraw
from sidecar.service.held import Held, Stage
from sidecar.service.ledger import Ledger
from sidecar.service.outlet import Outlet
from sidecar.service.short_way import Processed, Short, ShortWay
from sidecar.service.slow_work import SlowWork
from sidecar.transport.egress import BULK_BYTES, REFERENCE_BYTES
from sidecar.transport.flow import FlowControl
from sidecar.wire.msgpack import Buffer

FLUSH_MESSAGES: Final = 1024
FLUSH_S: Final = 0.001
"""The loop is given to others after so many messages or so much time of sending what had waited."""

_GENERATE: Final = Kind.GENERATE
_DROPPED: Final = Result.DROPPED


class Lanes:
    """Takes received messages, in order, on the event loop's thread; processes, commits, sends and books each."""

    def __init__(self, context: Context, ledger: Ledger, flow: FlowControl, egress: Outlet, pool: Executor) -> None:
        self._context = context
        self._short_way = ShortWay(context, ledger, egress)
        self._express = self._short_way.express
        self._ledger = ledger
        self._flow = flow
        self._egress = egress
        self._send = egress.send
        self._slow_work = SlowWork(context, pool, self._on_worked)
        self._loop = asyncio.get_running_loop()
        self._sequence = 0
        self._held = 0
        self._inflight = 0
        self._taken: deque[Short | Processed] = deque()  # small, and nothing in their way
        self._lanes: dict[str | int, deque[Held]] = {}
        self._ready: deque[Held] = deque()
        self._bulk: deque[Held] = deque()
        self._gate: deque[Held] = deque()
        self._controls = 0
        self._aborting: dict[str, int] = {}  # rids of the aborts in `_ready`, and how many name them
        self._behind = 0  # requests that a control message would have to wait for: WAITING, WORKING and BULK
        self._next: deque[Held] = deque()  # WAITING, and now the first of their lanes
        self._moving = False
        self._flushing: asyncio.Handle | None = None

    @property
    def held(self) -> int:
        """Messages of all kinds that are received and not yet handed over, dropped or cancelled."""
        return self._held + len(self._taken)

    @property
    def inflight(self) -> int:
        """Requests that are booked as received, and not yet as anything else."""
        return self._inflight + sum(not entry[0] for entry in self._taken)

    @property
    def tasks(self) -> int:
        """Tasks in the pool, running or queued."""
        return self._slow_work.tasks

    @property
    def working(self) -> int:
        """Requests in the pool, and those behind them in their lanes."""
        return self._behind

    def receive(self, frames: list[Buffer], nbytes: int) -> None:
        """Take a message and let it leave if it can. Never blocks, never raises for what a message holds."""
        self.take(frames, nbytes)
        self.end_batch()

    def take(self, frames: list[Buffer], nbytes: int) -> None:
        """`receive` for one message of several: the small ones leave with `end_batch`, which must follow.

        A message that is sent alone wakes libzmq's thread, the kernel and the engine for itself, which costs
        8 us more than one that is sent with others.
        """
        tries = nbytes < REFERENCE_BYTES and not self._held and not self._ledger.taps.active
        if tries:
            taken = self._taken
            passage = self._express(frames, nbytes) if taken else self._short_way.read_first(frames, nbytes)
            if passage is not None:
                taken.append((True, passage, frames, nbytes))
                return
        envelope = self._open(frames, nbytes, short=not tries)
        if self._held or envelope.slow or envelope.kind is not _GENERATE or nbytes >= REFERENCE_BYTES:
            self.end_batch()
            self._go(envelope, nbytes)
        else:
            self._taken.append((False, envelope, process(envelope, self._context, self._ledger.lap), nbytes))

    def end_batch(self) -> None:
        """Hand over what `take` has left, in order."""
        taken = self._taken
        while taken:
            if not self._held:
                self._short_way.hand_over(taken)
            if not taken:
                return
            first = taken.popleft()
            if first[0]:  # the short way ends here: its rid is live, or the egress takes nothing
                _, _, frames, nbytes = first
                self._go(self._open(frames, nbytes), nbytes)
            else:
                _, envelope, outcome, nbytes = first
                self._ledger.start()
                self._pass(envelope, outcome, nbytes)

    def _open(self, frames: list[Buffer], nbytes: int, *, short: bool = True) -> Envelope:
        ledger = self._ledger
        ledger.start()
        envelope = open_message(frames, self._context, nbytes, short=short)
        ledger.received(envelope, nbytes)
        ledger.lap("parse")
        return envelope

    def _go(self, envelope: Envelope, nbytes: int) -> None:
        """Let a message leave if nothing is in its way, now that all before it have had their turn."""
        if self._held or envelope.slow:
            self._order(envelope, nbytes)
        else:
            self._pass(envelope, process(envelope, self._context, self._ledger.lap), nbytes)

    def flush(self) -> None:
        """Send what is ready, for as long as the egress takes it; to be called when it does."""
        self._flushing = None
        deadline = perf_counter() + FLUSH_S
        for _ in range(FLUSH_MESSAGES):
            bulk_left = self._send_first(self._bulk)
            if not self._send_first(self._ready) and not bulk_left:
                return
            if perf_counter() > deadline:
                break
        if self._flushing is None:
            self._flushing = self._loop.call_soon(self.flush)

    def surrender(self) -> list[Held]:
        """Everything that is held, in the order of receipt. None of it will be sent; see `let_go`."""
        lanes = [held for lane in self._lanes.values() for held in lane]
        others = [held for held in (*self._ready, *self._bulk, *self._gate) if held.envelope.kind is not _GENERATE]
        self._slow_work.drop()
        self._ready.clear()
        self._aborting.clear()
        self._bulk.clear()
        self._gate.clear()
        self._next.clear()
        return sorted(lanes + others, key=lambda held: held.sequence)

    def let_go(self, held: Held) -> None:
        """Take a surrendered message off the books, in the step that books what has become of it."""
        self._discard(held)

    def _pass(self, envelope: Envelope, outcome: Outcome, nbytes: int) -> None:
        """Hand over a processed message, behind what is held; hold it if the egress does not take it."""
        ledger = self._ledger
        if self._held or outcome.contents or nbytes >= REFERENCE_BYTES or len(outcome.messages) != 1:
            if outcome.result is _DROPPED:
                ledger.dropped(envelope, outcome)
            else:
                self._to_egress(self._hold(envelope, nbytes), outcome)
            return
        # Small: nothing of it is kept here once it is sent, so there is nothing to account for.
        outcome = commit(outcome, self._context)
        if outcome.result is _DROPPED:
            ledger.dropped(envelope, outcome)
            return
        frames = outcome.messages[0]
        if self._send(frames, 0):
            ledger.lap("send")
            ledger.handed_over(outcome, nbytes if frames is envelope.message.frames else sum(map(len, frames)))
            return
        held = self._hold(envelope, nbytes)
        held.outcome = outcome
        withdraw(outcome, self._context)
        self._get_ready(held)

    def _order(self, envelope: Envelope, nbytes: int) -> None:
        """Find the place of a message that something may be in the way of."""
        kind = envelope.kind
        if kind is Kind.ABORT and envelope.rids:
            self._abort(envelope, nbytes)
        elif kind is Kind.UNREADABLE or (envelope.rejection is not None and kind is not _GENERATE):
            self._ledger.dropped(envelope, process(envelope, self._context))
        elif self._gate or (kind is not _GENERATE and self._behind):
            held = self._hold(envelope, nbytes)
            held.stage = Stage.GATED
            self._gate.append(held)
        else:
            self._dispatch(envelope, nbytes, None)

    def _dispatch(self, envelope: Envelope, nbytes: int, held: Held | None) -> None:
        """Process a message now, or have it processed. `held` is it, if it has waited."""
        rid = envelope.rid
        lane = self._lanes.get(rid) if rid is not None else None
        if lane and lane[0] is not held:
            held = held or self._hold(envelope, nbytes)
            held.stage = Stage.WAITING
            self._behind += 1
            return
        if envelope.slow and rid is not None and not self._context.rids.is_live(rid, self._context.now()):
            held = held or self._hold(envelope, nbytes)
            held.stage = Stage.WORKING
            self._behind += 1
            self._slow_work.take(held)
            return
        self._ledger.start()
        outcome = held.outcome if held is not None else None
        if outcome is None:
            outcome = process(envelope, self._context, self._ledger.lap)
        if held is None and not self._ready:
            self._pass(envelope, outcome, nbytes)
        else:
            self._to_egress(held or self._hold(envelope, nbytes), outcome)

    def _to_egress(self, held: Held, outcome: Outcome) -> None:
        """Hand a processed message over, behind those that are ready already."""
        held.outcome, held.stage = outcome, Stage.READY
        size = sum(sum(map(len, frames)) for frames in outcome.messages)
        if size > held.nbytes:  # computed positions are larger than the prompt that they are for
            self._flow.take(size - held.nbytes, 0)
            held.nbytes = size
        # Nothing may leave around a control message, nor around an abort of its own rid.
        if held.nbytes >= BULK_BYTES and not self._controls and held.lane not in self._aborting:
            held.stage = Stage.BULK
            self._behind += 1
            self._bulk.append(held)
            queue = self._bulk
        else:
            self._get_ready(held)
            queue = self._ready
        if queue[0] is held:
            self._send_first(queue)

    def _get_ready(self, held: Held) -> None:
        self._ready.append(held)
        if held.envelope.kind is Kind.ABORT:
            for rid in held.envelope.rids:
                self._aborting[rid] = self._aborting.get(rid, 0) + 1

    def _send_first(self, queue: deque[Held]) -> bool:
        """Hand over the first of a queue. False if there is none, or if it is not taken."""
        if not queue:
            return False
        held = queue[0]
        if not (held.committed or self._egress.takes(held.nbytes)) or not self._hand_over(held):
            return False
        queue.popleft()
        self._finish(held)
        return True

    def _hand_over(self, held: Held) -> bool:
        """Commit, send and book. False if the egress takes nothing (more) now: the message keeps its turn."""
        outcome = held.outcome
        assert outcome is not None
        if not held.committed:
            outcome = held.outcome = commit(outcome, self._context)
            held.committed = True
        if outcome.result is _DROPPED:
            self._ledger.dropped(held.envelope, outcome)
            self._flow.give(held.nbytes)
            return True
        self._ledger.start()
        messages = outcome.messages
        last = len(messages) - 1
        while held.sent <= last:
            if not self._send(messages[held.sent], held.nbytes if held.sent == last else 0):
                return False
            held.sent += 1
        if not messages:
            self._flow.give(held.nbytes)
        self._ledger.lap("send")
        self._ledger.handed_over(outcome, sum(sum(map(len, frames)) for frames in messages))
        return True

    def _hold(self, envelope: Envelope, nbytes: int) -> Held:
        self._sequence += 1
        held = Held(envelope, nbytes, self._sequence)
        self._held += 1
        self._flow.take(nbytes)
        if envelope.kind is _GENERATE:
            self._inflight += 1
            self._lanes.setdefault(held.lane, deque()).append(held)
        elif envelope.kind is Kind.CONTROL:
            self._controls += 1
        return held

    def _finish(self, held: Held) -> None:
        """A message has left: what it was in the way of goes on. Its bytes are whoever's who has them now."""
        if held.stage is Stage.BULK:
            self._behind -= 1
        elif held.envelope.kind is Kind.ABORT:
            for rid in held.envelope.rids:
                count = self._aborting.pop(rid) - 1
                if count:
                    self._aborting[rid] = count
        held.stage = Stage.DONE
        self._held -= 1
        self._flow.give(0, 1)
        self._slow_work.gone(held)
        if held.envelope.kind is _GENERATE:
            self._inflight -= 1
            self._leave_lane(held)
        elif held.envelope.kind is Kind.CONTROL:
            self._controls -= 1
        self._move()

    def _leave_lane(self, held: Held) -> None:
        lane = self._lanes[held.lane]
        lane.remove(held)
        if not lane:
            del self._lanes[held.lane]
        elif lane[0].stage is Stage.WAITING:
            self._next.append(lane[0])

    def _move(self) -> None:
        """Dispatch what waits for nobody any more: the next in its lane, and what the gate lets through.

        A batch at a time. Until its turn comes a message stays where it is, so that none overtakes it.
        """
        if self._moving:
            return
        self._moving = True
        deadline = perf_counter() + FLUSH_S
        while True:
            if self._next:
                held = self._next.popleft()
                if held.stage is not Stage.WAITING:
                    continue
                self._behind -= 1
            elif self._gate and (self._gate[0].envelope.kind is _GENERATE or not self._behind):
                held = self._gate.popleft()
            else:
                break
            self._dispatch(held.envelope, held.nbytes, held)
            if perf_counter() > deadline:
                self._loop.call_soon(self._move)
                break
        self._moving = False

    def _abort(self, envelope: Envelope, nbytes: int) -> None:
        """Take back the requests that are still held, and pass on the aborts of all others."""
        passing: list[str] = []
        taken_back = 0
        leader: Held | None = None
        for rid in dict.fromkeys(envelope.rids):
            lane = self._lanes.get(rid)
            if lane is None:
                passing.append(rid)
                continue
            if lane[0].committed:
                leader = lane[0]
                passing.append(rid)
            else:
                taken_back += 1
            for held in [held for held in lane if not held.committed]:
                self._cancel(held)
        if taken_back:
            self._ledger.aborts_cancelled(taken_back)
            if not passing:
                self._move()
                return
            outcome = narrow_abort(envelope, passing, self._context)
        else:
            outcome = process(envelope, self._context)
        if self._gate:
            held = self._hold(envelope, nbytes)
            held.stage, held.outcome = Stage.GATED, outcome
            self._gate.append(held)
        elif leader is not None and leader.stage is Stage.BULK:
            held = self._hold(envelope, nbytes)
            held.stage, held.outcome = Stage.BULK, outcome
            self._behind += 1
            self._bulk.append(held)
        elif self._ready:
            self._to_egress(self._hold(envelope, nbytes), outcome)
        else:
            self._pass(envelope, outcome, nbytes)
        self._move()

    def _cancel(self, held: Held) -> None:
        """Take a request back: it will not be handed over, and its rid is free at once."""
        if held.stage is Stage.READY:
            self._ready.remove(held)
        elif held.stage is Stage.BULK:
            self._bulk.remove(held)
        elif held.stage is Stage.GATED:
            self._gate.remove(held)
        self._discard(held)
        self._ledger.cancelled(held.envelope)

    def _discard(self, held: Held) -> None:
        """Let go of a message that will not leave."""
        stage, held.stage = held.stage, Stage.DONE
        if stage in (Stage.WAITING, Stage.WORKING, Stage.BULK):
            self._behind -= 1
        if held.envelope.kind is _GENERATE:
            self._inflight -= 1
            self._leave_lane(held)
        elif held.envelope.kind is Kind.CONTROL:
            self._controls -= 1
        if stage is not Stage.WORKING or self._slow_work.cancel(held):
            self._release(held)
        # Otherwise a pool thread is reading it: it stays in memory, and so in the books, until that is through.

    def _release(self, held: Held) -> None:
        self._held -= 1
        self._flow.give(held.nbytes, 1)
        self._slow_work.gone(held)

    def _on_worked(self, held: Held) -> None:
        """Go on with a request that the pool has processed."""
        if held.stage is not Stage.WORKING:
            self._release(held)
            return
        self._behind -= 1
        self._ledger.worked(held.laps)
        assert held.outcome is not None
        self._to_egress(held, held.outcome)
        self._move()
