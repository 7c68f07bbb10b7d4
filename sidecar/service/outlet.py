"""Where messages leave to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sidecar.wire.msgpack import Buffer


class Outlet(Protocol):
    """What lanes lead to. `Egress` is one."""

    def takes(self, nbytes: int) -> bool:
        """Whether a message of this size would be taken now; if not, `flush` is called when it is worth a try."""
        ...

    def send(self, frames: Sequence[Buffer], nbytes: int) -> bool:
        """Hand a message over and release `nbytes` later, or say that it is not taken."""
        ...

    def send_each(self, messages: Sequence[Sequence[Buffer]]) -> int:
        """`send` for small messages in their order, up to the first that is not taken: how many come before it."""
        ...
