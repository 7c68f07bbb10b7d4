"""Slow work: hashing and large positions, in a pool of threads, on large messages no sooner than they can leave.

Whoever floods the line with images that have to be hashed keeps the connection to the engine busy for
longer than the pool. Hashes that are made long before their messages leave take the cores from the
threads that move bytes, and are made for nothing if an abort comes. So no more than `AHEAD` large
messages are between the start of the work on them and their leaving: beside a flood on two cores a
tenth more images pass, and the slowest texts wait a tenth less.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from time import sleep
from typing import Final

from sidecar.context import Context
from sidecar.pipeline import process
from sidecar.service.held import Held, Stage
from sidecar.transport.egress import BULK_BYTES
from sidecar.transport.mailbox import Mailbox

AHEAD: Final = 2
"""One that is worked on while another is sent: a thread hashes twice as fast as a connection takes bytes."""

_REST_S: Final = 1e-6  # the kernel makes it 60 us


def rest() -> None:
    """Let the threads that wait for this core have it, libzmq's most of all.

    A thread that hashes 12 MB in one go keeps them from it for 1.6 ms at a time, since the kernel lets it
    use up its slice: beside a flood of such images the slowest texts took 17 ms, and take 6 with a rest after
    each MB. `sched_yield` would cost less time on an idle machine, but where other programs use all cores
    it gives a whole slice away each time: 20 ms for a hash instead of 2.
    """
    sleep(_REST_S)


class SlowWork:
    """Processes held messages. For the event loop's thread, on which `on_worked(held)` is called after each."""

    def __init__(self, context: Context, pool: Executor, on_worked: Callable[[Held], None]) -> None:
        self.tasks = 0
        """Tasks in the pool, running or queued. What may not begin yet is none."""
        self._context = context
        self._pool = pool
        self._on_worked = on_worked
        self._worked: Mailbox[Held] = Mailbox(self._collect)
        self._large: deque[Held] = deque()  # large, not begun
        self._ahead = 0  # large, begun and not gone

    def take(self, held: Held) -> None:
        """Have a message processed, in the order of the calls among large ones and among small ones."""
        if held.nbytes >= BULK_BYTES:
            self._large.append(held)
            self._begin_large()
        else:
            self._begin(held)

    def cancel(self, held: Held) -> bool:
        """Take a message back. False if a thread has it: `on_worked` follows."""
        if held.future is None:
            if held in self._large:
                self._large.remove(held)
            return True
        cancelled = held.future.cancel()
        self.tasks -= cancelled
        return cancelled

    def gone(self, held: Held) -> None:
        """A message is held no more, whatever has become of it."""
        if held.ahead:
            held.ahead = False
            self._ahead -= 1
            self._begin_large()

    def drop(self) -> None:
        """Begin none of those that wait: all of them are to be cancelled."""
        self._large.clear()

    def _begin_large(self) -> None:
        while self._large and self._ahead < AHEAD:
            held = self._large.popleft()
            held.ahead = True
            self._ahead += 1
            self._begin(held)

    def _begin(self, held: Held) -> None:
        self.tasks += 1
        held.future = self._pool.submit(self._work, held)

    def _work(self, held: Held) -> None:
        """Process a message on a thread of the pool."""
        if held.stage is Stage.WORKING:
            held.outcome = process(held.envelope, self._context, held.start_laps())
        self._worked.put(held)

    def _collect(self, worked: deque[Held]) -> None:
        while worked:
            held = worked.popleft()
            self.tasks -= 1
            self._on_worked(held)
