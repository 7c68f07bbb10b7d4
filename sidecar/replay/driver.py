"""The load driver: sends shots when they are due and notes when they were sent and seen.

One thread. Latency counts from the time a request was due, not from the time it could be sent, so that
a target that stalls cannot hide it (coordinated omission).
"""

from __future__ import annotations

import gc
import heapq
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from sidecar.errors import TransportError
from sidecar.replay.decode import MessageKind
from sidecar.replay.pacing import Pacer
from sidecar.replay.results import Results
from sidecar.replay.rewrite import abort_frames
from sidecar.replay.targets import Target
from sidecar.replay.workload import BATCH, Shot, Workload
from sidecar.wire.framing import Framing

_NS: Final = 1_000_000_000
_LOOK_EVERY: Final = 32
_WAIT_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Options:
    """How to send. Times in ns, None for no limit.

    `pacer` None sends as fast as the target takes; `concurrency` is the most requests unanswered at a
    time. `abort_rate` of the requests are aborted, each after a time drawn evenly from 0 to
    `abort_after_ns`. The first `warmup` requests, and those of the first `warmup_ns`, are sent but not
    measured. `timeout_s` is how long nothing may move before the run is given up.
    """

    pacer: Pacer | None = None
    concurrency: int | None = None
    duration_ns: int | None = None
    warmup: int = 0
    warmup_ns: int = 0
    abort_rate: float = 0.0
    abort_after_ns: int = 50_000_000
    abort_framing: Framing = Framing.NATIVE
    seed: int = 0
    timeout_s: float = 10.0

    @property
    def free_running(self) -> bool:
        """Whether nothing is to be done between two messages."""
        return self.pacer is None and self.concurrency is None and not self.abort_rate


class Driver:
    """One run. `progress` is called now and then with the messages sent so far."""

    def __init__(
        self,
        target: Target,
        options: Options,
        stopped: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = lambda sent: None,
    ) -> None:
        self.results = Results()
        self.sent = 0
        self.aborts = 0
        self.unseen = 0
        self._target = target
        self._options = options
        self._stopped = stopped
        self._progress = progress
        self._waiting: dict[str, int] = {}
        self._aborts: list[tuple[int, str]] = []
        self._random = random.Random(options.seed)
        self._start = 0
        self._moved = 0

    def run(self, shots: Iterable[Shot]) -> Results:
        """Send everything, then wait until it has been taken and, where the target observes, seen.

        Raises `TransportError` if the target takes or shows nothing for `timeout_s`; what was measured
        until then is in `results` all the same.
        """
        self._target.open(self._options.timeout_s)
        gc.collect()
        gc.freeze()  # a collection that walks a million preloaded messages would show as latency
        self._start = self._moved = time.perf_counter_ns()
        self.results.facts["started"] = time.time()
        try:
            try:
                if self._options.free_running and not self._target.observes:
                    self._flood(shots)
                else:
                    self._send_all(shots)
            finally:
                sending_ns = time.perf_counter_ns() - self._start
            self._settle()
        finally:
            gc.unfreeze()
            self.results.facts |= self._facts(sending_ns)
            self.results.count_from(self._start)
        return self.results

    def _facts(self, sending_ns: int) -> dict[str, Any]:
        return {
            "messages": self.sent,
            "aborts": self.aborts,
            "sending_s": sending_ns / _NS,
            "achieved_rate": max(self.sent - 1, 0) / max(sending_ns / _NS, 1e-9),  # n messages have n - 1 distances
            "observed": self._target.observes,
            "unseen": self.unseen,
        }

    def _send_all(self, shots: Iterable[Shot]) -> None:
        options, start = self._options, self._start
        pacer, send, clock = options.pacer, self._target.send, time.perf_counter_ns
        busy = self._target.observes or options.abort_rate > 0
        end = None if options.duration_ns is None else start + options.duration_ns
        number = 0
        for shot in shots:
            if pacer is not None:
                due = start + pacer(number, shot.mono_ns)
                if end is not None and due >= end:
                    return
                if not self._idle_until(due):
                    return
            if options.concurrency is not None and shot.kind is MessageKind.GENERATE:
                self._await_room(options.concurrency)
            if pacer is None:
                due = clock()
            if number % _LOOK_EVERY == 0:
                if self._stopped() or (end is not None and clock() >= end):
                    return
                self._progress(number)
                if pacer is None and busy:
                    self._look()
            if not send(shot.frames):
                self._push(shot)
            now = clock()
            number += 1
            self.sent = number
            if shot.kind is MessageKind.GENERATE:
                self._note(shot, due, now)
        self._progress(number)

    def _flood(self, shots: Iterable[Shot]) -> None:
        """`_send_all` without anything between two messages. A message is due when the one before it has been
        sent; the warm-up ends with a batch."""
        clock = time.perf_counter_ns
        end = None if self._options.duration_ns is None else self._start + self._options.duration_ns
        for batch in shots.batches() if isinstance(shots, Workload) else batched(iter(shots)):
            times = [clock()]
            if self._stopped() or (end is not None and times[0] >= end):
                return
            while len(times) <= len(batch):
                begun = len(times) - 1
                self._target.send_many(batch[begun:] if begun else batch, times)
                self.sent += len(times) - 1 - begun
                if len(times) <= len(batch):
                    self._push(batch[len(times) - 1])
                    self.sent += 1
                    times.append(clock())
            self._progress(self.sent)
            if times[-1] - self._start >= self._options.warmup_ns and self.sent > self._options.warmup:
                self._note_batch(batch, times)

    def _note_batch(self, batch: Sequence[Shot], times: list[int]) -> None:
        due, sent = times[:-1], times[1:]
        if any(shot.kind is not MessageKind.GENERATE for shot in batch):
            kept = [i for i, shot in enumerate(batch) if shot.kind is MessageKind.GENERATE]
            batch, due, sent = [batch[i] for i in kept], [due[i] for i in kept], [sent[i] for i in kept]
        self.results.extend([shot.about for shot in batch], due, sent)

    def _note(self, shot: Shot, due: int, now: int) -> None:
        options, rid = self._options, shot.about.rid
        if len(self.results) or (self.sent > options.warmup and now - self._start >= options.warmup_ns):
            self.results.append(due, now, shot.about)
            index = len(self.results) - 1
        else:
            index = -1
        if self._target.observes and rid:
            self._waiting[rid] = index
        if options.abort_rate and rid and self._random.random() < options.abort_rate:
            at = now + int(self._random.random() * options.abort_after_ns)
            heapq.heappush(self._aborts, (at, rid))

    def _push(self, shot: Shot) -> None:
        """Send a message that the target did not take at once."""
        end = time.monotonic() + self._options.timeout_s
        while not self._target.send(shot.frames):
            if self._stopped():
                raise KeyboardInterrupt
            if time.monotonic() >= end:
                raise TransportError(
                    f"the target took {self.sent} messages and then none for {self._options.timeout_s:g} s; "
                    "it has stopped reading, or has left"
                )
            if self._target.observes:
                self._look()
            self._target.wait_writable(0.005 if self._target.observes else _WAIT_S)

    def _idle_until(self, due: int) -> bool:
        """Watch the target until a message is due; False if the run was stopped meanwhile."""
        while (left := due - time.perf_counter_ns()) > 0:
            if self._stopped():
                return False
            if not self._look():
                self._target.wait(min(left, self._until_abort()) / _NS)
        return True

    def _until_abort(self) -> int:
        """The ns until the next abort is due, or until it is time to look whether the run was stopped."""
        longest = int(_WAIT_S * _NS)
        return min(longest, max(self._aborts[0][0] - time.perf_counter_ns(), 0)) if self._aborts else longest

    def _await_room(self, concurrency: int) -> None:
        self._moved = time.perf_counter_ns()
        while len(self._waiting) >= concurrency:
            self._look_or_fail()

    def _settle(self) -> None:
        """Send the aborts that are left, then wait for what has been sent to be taken and seen."""
        while self._aborts and not self._stopped():
            if not self._look():
                self._target.wait(self._until_abort() / _NS)
        self._moved = time.perf_counter_ns()
        try:
            while self._waiting and not self._stopped():
                self._look_or_fail()
        except TransportError:
            self.unseen = len(self._waiting)
            self._target.finish(0)  # says so, if the reason is that they have not even been taken
            raise
        self._target.finish(self._options.timeout_s)

    def _look_or_fail(self) -> None:
        if self._look():
            self._moved = time.perf_counter_ns()
            return
        self._target.wait(0.02)
        if time.perf_counter_ns() - self._moved > self._options.timeout_s * _NS:
            raise TransportError(
                f"{len(self._waiting)} of {self.sent} messages were sent and not seen again; nothing has come "
                f"for {self._options.timeout_s:g} s"
            )

    def _look(self) -> bool:
        """Note what was seen, send the aborts that are due; whether anything was seen."""
        if self._aborts:
            self._send_aborts()
        found = self._target.seen()
        now = time.perf_counter_ns()
        any_seen = False
        for rid, final, outcome in found:
            any_seen = True
            index = self._waiting.get(rid)
            if index is None:
                continue
            if final:
                del self._waiting[rid]
            if index >= 0:
                if self.results.first[index] < 0:
                    self.results.first[index] = now
                if final:
                    self.results.done[index] = now
                    self.results.outcome[index] = outcome
        return any_seen

    def _send_aborts(self) -> None:
        now = time.perf_counter_ns()
        while self._aborts and self._aborts[0][0] <= now:
            _, rid = heapq.heappop(self._aborts)
            if not self._target.send(abort_frames(rid, self._options.abort_framing)):
                heapq.heappush(self._aborts, (now, rid))
                return
            self.aborts += 1
            index = self._waiting.pop(rid, -1)
            if index >= 0:  # it may yet be seen or not; nobody waits for it any more
                self.results.outcome[index] = "aborted"


def batched(shots: Iterator[Shot]) -> Iterator[Sequence[Shot]]:
    """Shots in batches."""
    while batch := tuple(islice(shots, BATCH)):
        yield batch
