"""A message between its receipt and its hand-over, and the places where it can be meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from enum import Enum, auto
from time import perf_counter

from sidecar.outcome import Envelope, Lap, Outcome
from sidecar.wire.msgpack import Buffer


class Stage(Enum):
    """Where a held message is."""

    GATED = auto()
    """Behind a control message that waits."""

    WAITING = auto()
    """Behind an earlier request with the same rid."""

    WORKING = auto()
    """In the pool, or before it."""

    READY = auto()
    """Processed, until the egress takes it."""

    BULK = auto()
    """Processed and large: until the egress is through with other large ones."""

    DONE = auto()
    """Handed over, dropped or cancelled."""


class Held:
    """One held message. `nbytes` are the bytes that it counts for, `sequence` is its place in the order of receipt.

    `committed` says that it was about to be handed over when the egress refused it: it is the next one
    to go, and for everybody but the egress it has gone. `sent` counts those of its messages that went.
    `lane` is its rid, or for a request without one a lane of its own. `ahead` says that it counts among the
    large ones that were begun in the pool and have not gone.
    """

    __slots__ = (
        "ahead",
        "committed",
        "envelope",
        "future",
        "lane",
        "laps",
        "nbytes",
        "outcome",
        "sent",
        "sequence",
        "stage",
    )

    def __init__(self, envelope: Envelope, nbytes: int, sequence: int) -> None:
        self.envelope = envelope
        self.nbytes = nbytes
        self.sequence = sequence
        self.lane: str | int = envelope.rid if envelope.rid is not None else sequence
        self.stage = Stage.READY
        self.outcome: Outcome | None = None
        self.ahead = False
        self.committed = False
        self.sent = 0
        self.future: Future[None] | None = None
        self.laps: list[tuple[str, float]] = []

    def start_laps(self) -> Lap:
        """What a stage's end is told to, from now on; each lap is kept in `laps`."""
        since = perf_counter()

        def lap(stage: str) -> None:
            nonlocal since
            now = perf_counter()
            self.laps.append((stage, now - since))
            since = now

        return lap

    @property
    def rest(self) -> Sequence[Sequence[Buffer]]:
        """The messages that are still to be sent."""
        return self.outcome.messages[self.sent :] if self.outcome is not None else ()
