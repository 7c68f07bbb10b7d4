"""The orderly end: read what is there, finish it, deliver it, and write down what nobody takes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from sidecar.context import Context
from sidecar.outcome import Outcome, Result
from sidecar.service.held import Held
from sidecar.service.lanes import Lanes
from sidecar.service.ledger import Ledger
from sidecar.service.spill import Spill
from sidecar.transport.flow import FlowControl
from sidecar.transport.ingress import Ingress

SETTLE_S: Final = 0.25
"""The ingress counts as read when nothing has come for this long."""

_STEP_S: Final = 0.01
_SPILL_BYTES_PER_S: Final = 500e6
_RESERVE_S: Final = 0.5
"""What writing down and closing take, beside the bytes."""

logger = logging.getLogger(__name__)


class Drain:
    """Ends the flow of messages within `grace_s` seconds from its construction.

    The ingress is never unbound: that would lose what arrives afterwards. It is read until nothing has
    come for `SETTLE_S`; producers that never pause are read for half of the time, and what they send
    later is left to them and to libzmq.
    """

    def __init__(
        self,
        ingress: Ingress,
        lanes: Lanes,
        ledger: Ledger,
        flow: FlowControl,
        context: Context,
        *,
        grace_s: float,
        spill_dir: Path | None,
    ) -> None:
        self.spill = Spill(spill_dir, context) if spill_dir is not None else None
        self._ingress = ingress
        self._lanes = lanes
        self._ledger = ledger
        self._flow = flow
        self._grace_s = grace_s
        self._settle_s = min(SETTLE_S, grace_s / 4)
        self._clock = asyncio.get_running_loop().time
        self._started = self._quiet_since = self._clock()
        self._seen = ingress.messages

    @property
    def left_s(self) -> float:
        """What is left of the grace period, in seconds."""
        return max(self._started + self._grace_s - self._clock(), 0.0)

    async def run(self) -> int:
        """Drain. Returns how many messages were neither delivered nor written down."""
        await self._deliver()
        if self.spill is None:
            self._ingress.pause()
            lost = self._lanes.surrender()
            if lost:
                logger.error("%d messages are lost: nobody took them, and shutdown.spill_dir is not set", len(lost))
            return len(lost)
        with self.spill:
            return await self._write_down(self.spill)

    async def _deliver(self) -> None:
        """Read on and send on, until nothing comes and nothing is held, or until time runs out."""
        while not (self._settled() and not self._lanes.held):
            reserve = _RESERVE_S
            if self.spill is not None:
                reserve += self._flow.bytes / _SPILL_BYTES_PER_S
            if self.left_s <= min(reserve, self._grace_s / 2):
                return
            if self.left_s <= self._grace_s / 2 and not self._settled() and not self._flow.paused:
                self._ingress.pause()
            await asyncio.sleep(_STEP_S)

    def _settled(self) -> bool:
        """Whether the ingress has been silent for long enough. One that is not read proves nothing."""
        now = self._clock()
        if self._ingress.messages != self._seen or self._flow.paused:
            self._seen, self._quiet_since = self._ingress.messages, now
        return now - self._quiet_since >= self._settle_s

    async def _write_down(self, spill: Spill) -> int:
        """Spill what is held, and what the bound on held messages had kept us from reading."""
        while True:
            held = self._lanes.surrender()
            was_full = self._flow.paused
            try:
                await self._write(spill, held)
            except OSError as error:
                lost = self._lanes.held
                logger.error("%d messages are lost: cannot write %s: %s", lost, spill.path, error.strerror or error)
                return lost
            if not was_full:
                break
            await asyncio.sleep(self._settle_s)
        self._ingress.pause()
        held = self._lanes.surrender()
        await self._write(spill, held)
        if spill.messages:
            logger.warning(
                "%d undelivered messages are in %s; deliver them with `sidecar replay`", spill.messages, spill.path
            )
        return 0

    async def _write(self, spill: Spill, held: list[Held]) -> None:
        """Write on a thread, book on the loop."""
        loop = asyncio.get_running_loop()
        written = spill.write(held)
        while pair := await loop.run_in_executor(None, next, written, None):
            self._book(*pair)

    def _book(self, held: Held, outcome: Outcome) -> None:
        if outcome.result is Result.DROPPED:
            self._ledger.dropped(held.envelope, outcome)
        else:
            self._ledger.spilled(held.envelope, len(outcome.rids))
        self._lanes.let_go(held)
