"""Relay mode: every rank of an engine between it and its gateway, and the handshake that both begin with."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from sidecar.errors import TransportError
from sidecar.service.line import Parts
from sidecar.service.rank import Rank, Shared
from sidecar.transport.relay.handshake import EngineHandshake
from sidecar.transport.relay.memory import Memory

CHECK_S: Final = 0.25
_STEP_S: Final = 0.01

logger = logging.getLogger(__name__)


class Relay:
    """The line of relay mode. Opens its sockets at once; ranks appear with their engine's HELLO.

    A rank that an earlier process has served is there from the start: its engine, if it is still
    alive, connects again by itself and says nothing.
    """

    def __init__(self, parts: Parts) -> None:
        settings = parts.settings
        assert settings.relay.engine_handshake is not None
        folder = Path(settings.relay.socket_dir)
        self._loop = asyncio.get_running_loop()
        self._handshake = EngineHandshake(
            parts.sockets, settings.relay.engine_handshake, self._on_hello, self._on_ready
        )
        memory = Memory(folder)
        self._shared = Shared(
            **{name: getattr(parts, name) for name in Parts.__dataclass_fields__},
            memory=memory,
            send_init=self._handshake.send_init,
        )
        self._grace_s = settings.shutdown.grace_s
        self._ranks: dict[int, Rank] = {}
        for index, remembered in memory.load().items():
            logger.info("rank %d: an earlier process has served it; waiting for its engine", index)
            self._ranks[index] = Rank(index, self._shared, remembered)
        self._timer = self._loop.call_later(CHECK_S, self._check)

    @property
    def engines(self) -> int:
        """Ranks whose input connection is there."""
        return sum(rank.engine.up for rank in self._ranks.values())

    @property
    def connects(self) -> int:
        """How often an engine's rank has connected."""
        return sum(rank.engine.monitor.connects for rank in self._ranks.values())

    @property
    def disconnects(self) -> int:
        """How often an engine's rank has gone away."""
        return sum(rank.engine.monitor.disconnects for rank in self._ranks.values())

    @property
    def moved(self) -> int:
        """A number that changes with everything that moves."""
        ranks = self._ranks.values()
        return sum(rank.ledger.moved + rank.outputs + rank.engine.egress.releases for rank in ranks)

    @property
    def waits(self) -> bool:
        """Whether something waits to be moved."""
        return any(rank.lanes.held or rank.engine.egress.leased for rank in self._ranks.values())

    @property
    def inflight(self) -> int:
        """Requests between receipt and hand-over."""
        return sum(rank.lanes.inflight for rank in self._ranks.values())

    @property
    def tasks(self) -> int:
        """Tasks of all ranks in the pool, running or queued."""
        return sum(rank.lanes.tasks for rank in self._ranks.values())

    @property
    def spilled(self) -> tuple[int, int]:
        """Nothing is ever written down: what cannot be delivered is answered."""
        return 0, 0

    def set_reading(self, reading: bool) -> None:
        """Take requests, or leave them where they are."""
        self._shared.reading = reading
        for rank in self._ranks.values():
            rank.set_reading(reading)

    async def drain(self) -> int:
        """Let the engine finish what it has, for the grace period; end the rest from here.

        New requests are answered at once. Returns 0: every request is answered.
        """
        self._shared.draining = True
        deadline = self._loop.time() + self._grace_s
        while self._busy() and self._loop.time() < deadline:
            await asyncio.sleep(_STEP_S)
        for rank in self._ranks.values():
            rank.finish()
        return 0

    def close(self) -> None:
        """Close all sockets; the last words may take a moment to arrive."""
        self._timer.cancel()
        self._handshake.close()
        for rank in self._ranks.values():
            rank.close()

    def _busy(self) -> bool:
        return any(rank.lanes.held or rank.requests for rank in self._ranks.values())

    def _on_hello(self, index: int, message: bytes) -> None:
        rank = self._rank(index)
        if rank is not None:
            rank.hello(message)

    def _on_ready(self, index: int, message: bytes) -> None:
        rank = self._ranks.get(index)
        if rank is not None:
            rank.ready(message)

    def _rank(self, index: int) -> Rank | None:
        rank = self._ranks.get(index)
        if rank is None:
            try:
                rank = self._ranks[index] = Rank(index, self._shared)
            except TransportError as error:
                logger.error("rank %d: %s; its engine gets no INIT", index, error)
        return rank

    def _check(self) -> None:
        self._timer = self._loop.call_later(CHECK_S, self._check)
        for rank in self._ranks.values():
            rank.check()
