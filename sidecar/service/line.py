"""What the two modes have in common: a line of sockets with a frontend at one end and an engine at the other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from sidecar.context import Context
from sidecar.observability.metrics import Metrics
from sidecar.service.ledger import Ledger
from sidecar.settings import Settings
from sidecar.transport.flow import FlowControl
from sidecar.transport.sockets import Sockets


@dataclass(slots=True)
class Parts:
    """What a line is built from. `on_engines()` is to be called when an engine has come or gone."""

    settings: Settings
    context: Context
    sockets: Sockets
    flow: FlowControl
    pool: Executor
    ledger: Ledger
    metrics: Metrics
    on_engines: Callable[[], None]


class Line(Protocol):
    """Takes messages at one end and hands them over at the other; reads when it is told to."""

    @property
    def engines(self) -> int:
        """Engines that are connected now."""

    @property
    def connects(self) -> int:
        """How often one has connected."""

    @property
    def disconnects(self) -> int:
        """How often one has gone away."""

    @property
    def moved(self) -> int:
        """A number that changes whenever something has moved."""

    @property
    def waits(self) -> bool:
        """Whether something waits to be moved."""

    @property
    def inflight(self) -> int:
        """Requests between receipt and hand-over."""

    @property
    def tasks(self) -> int:
        """Tasks in the pool, running or queued."""

    @property
    def spilled(self) -> tuple[int, int]:
        """Messages that were written to disk at the end, and their bytes."""

    def set_reading(self, reading: bool) -> None:
        """Take messages, or leave them where they are."""

    async def drain(self) -> int:
        """End the flow within the grace period. Returns how many messages are lost."""

    def close(self) -> None:
        """Close the sockets. What libzmq was handed may take what is left of the grace period to arrive."""
