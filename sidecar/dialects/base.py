"""What a dialect is. A new one is a module with an implementation and a line in `pipeline.DIALECTS`."""

from __future__ import annotations

from typing import Protocol

from sidecar.context import Context
from sidecar.outcome import Envelope, Lap, Outcome
from sidecar.wire.framing import Message


class Dialect(Protocol):
    """One encoding of generate requests.

    The three steps are pure. `read` is cheap and runs on the event loop; `process` may run anywhere.
    """

    name: str
    """The label value of `dialect` in metrics."""

    def recognises(self, message: Message) -> bool:
        """Whether a message is this dialect's, by its first bytes."""
        ...

    def read(self, message: Message, nbytes: int, context: Context) -> Envelope:
        """The envelope of a message that `recognises` has accepted.

        Never raises: what is wrong is kept in the envelope, and a message whose rid cannot be read is
        UNREADABLE.
        """
        ...

    def process(self, envelope: Envelope, context: Context, lap: Lap) -> Outcome:
        """Admit and materialize a request that could be read. Raises `Rejection`."""
        ...

    def reject(self, envelope: Envelope, reason: str, error: str, context: Context) -> Outcome:
        """The outcome of a refused request: its answer, in a form that the engine decodes."""
        ...
