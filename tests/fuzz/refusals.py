"""How long a refusal takes and how much memory it wants, for every hostile message."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Final, NamedTuple

from sidecar.pipeline import run
from sidecar.wire.framing import Framing
from tests.build import context_of, policy
from tests.hostile import HOSTILE, Hostile, Segments

REFUSAL_S: Final = 0.010
"""A claim of elements that are not there is refused in this time."""

REFUSAL_BYTES: Final = 2 << 20
"""... and with less memory than this. An unpacker takes 1 MiB for its buffer, whatever it is fed."""

REPEATS: Final = 5


class Refusal(NamedTuple):
    """The cost of one refusal: processor time, and the most that was allocated on the way."""

    name: str
    seconds: float
    peak: int

    @property
    def bounded(self) -> bool:
        """Whether it is no claim, or is refused as claims must be."""
        return "claim" not in self.name or (self.seconds < REFUSAL_S and self.peak < REFUSAL_BYTES)


def measure_refusals() -> list[Refusal]:
    """The costs of all hostile messages in both framings, the slowest first."""
    costs = [
        measure(hostile, framing)
        for hostile in HOSTILE
        for framing in Framing
        if framing is Framing.NATIVE or not hostile.native_only
    ]
    return sorted(costs, key=lambda cost: -cost.seconds)


def measure(hostile: Hostile, framing: Framing) -> Refusal:
    """The least time of a few, and the memory of another one."""
    message = hostile.frames(framing)

    def prepared() -> Callable[[], object]:
        rules = context_of(hostile.spec, policy(framing, **hostile.rules), probe=Segments(hostile.segments))
        for before in hostile.before(framing):
            run(before, rules)
        return lambda: run(message, rules)

    seconds = []
    for _ in range(REPEATS):
        refuse = prepared()
        start = time.thread_time()
        refuse()
        seconds.append(time.thread_time() - start)
    refuse = prepared()
    tracemalloc.start()
    refuse()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return Refusal(f"{hostile.name} ({framing})", min(seconds), peak)
