"""Which requests an engine has: handed over, and their last output not yet seen. Relay mode only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Final

from sidecar.outcome import Envelope, Kind, Outcome
from sidecar.service.ledger import Ledger
from sidecar.wire.outputs import Outputs

ENDED_WINDOW_S: Final = 30.0
"""How long a rid that was aborted is taken to be live in the engine, which sends no last output for it."""


class OpenRequests:
    """The rids of one rank, in the order of their hand-over.

    A rid is open until its last output, or until it is ended without the engine: aborted by the client,
    or answered from here. Then it is live in the engine until the engine has noticed. `on_free(rid)` is
    called when the engine has let go of a rid.
    """

    def __init__(self, on_free: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._on_free = on_free
        self._clock = clock
        self._open: dict[str, None] = {}
        self._ended: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, rid: str) -> None:
        """The engine has been given this request."""
        self._open[rid] = None

    def end(self, rids: Iterable[str]) -> None:
        """These are over for everybody but the engine, which has been or will be told to abort them."""
        now = self._clock()
        for rid in rids:
            if rid in self._open:
                del self._open[rid]
                self._ended[rid] = now

    def end_all(self) -> list[str]:
        """`end` all that are open, and return them."""
        rids = list(self._open)
        self.end(rids)
        return rids

    def clear(self) -> list[str]:
        """The engine is gone, and all that it had is free. Returns what was open."""
        rids = list(self._open)
        for rid in (*rids, *self._ended):
            self._on_free(rid)
        self._open.clear()
        self._ended.clear()
        return rids

    def observe(self, outputs: Outputs) -> list[str]:
        """Take a batch of outputs into account. Returns the rids in it that nobody waits for.

        Those are requests of an earlier life of this process, or of an earlier gateway. They count as
        ended from now on, so that each is returned once.
        """
        for rid in outputs.finished:
            if rid in self._open:
                del self._open[rid]
                self._on_free(rid)
            elif self._ended.pop(rid, None) is not None:
                self._on_free(rid)
        strangers = []
        for rid in outputs.rids:
            if rid not in self._open and rid not in self._ended and rid not in outputs.finished:
                self._ended[rid] = self._clock()
                strangers.append(rid)
        return strangers

    def expire(self) -> None:
        """Free what was ended so long ago that the engine has surely let go of it."""
        due = self._clock() - ENDED_WINDOW_S
        # Collected first: looking for the first entry after each deletion passes over all deleted ones.
        aged = list(takewhile(lambda rid: self._ended[rid] <= due, self._ended))
        for rid in aged:
            del self._ended[rid]
            self._on_free(rid)


class RankLedger(Ledger):
    """The ledger of one rank: it counts into the same metrics, and keeps the rank's open requests.

    `requests` is None where outputs are not observed: then nobody would see them end.
    """

    def __init__(self, shared: Ledger, requests: OpenRequests | None) -> None:
        super().__init__(shared._metrics, shared._probe, shared._keep, shared.taps)
        self.log = shared.log
        self.refusals = shared.refusals
        self._requests = requests

    def handed_over(self, outcome: Outcome, nbytes: int) -> None:
        """Book a message whose `nbytes` were given to libzmq."""
        super().handed_over(outcome, nbytes)
        requests = self._requests
        if requests is None:
            return
        if outcome.kind is Kind.GENERATE:
            if outcome.rid is not None:
                requests.add(outcome.rid)
        elif outcome.kind is Kind.ABORT:
            requests.end(outcome.rids)

    def passed(self, rids: Sequence[str], received: int, left: int, read_s: float, sent_s: float) -> None:
        """Book requests that went the short way."""
        super().passed(rids, received, left, read_s, sent_s)
        if self._requests is not None:
            for rid in rids:
                self._requests.add(rid)

    def answered(self, envelope: Envelope) -> None:
        """Book a request whose terminal output was sent from here."""
        self.moved += 1
        self._metrics.requests[envelope.dialect, "answered"] += 1
