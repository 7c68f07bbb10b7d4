"""What came in and what becomes of it: the values that the pure core hands to the shell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias

from sidecar.admission.memory import Content
from sidecar.errors import Reason, Rejection
from sidecar.wire.framing import Message
from sidecar.wire.msgpack import Buffer
from sidecar.wire.tokenspeed import Modality

Lap: TypeAlias = Callable[[str], None]
"""Called with a stage's name when the stage ends, so that a caller with a clock can time it."""


def no_lap(stage: str) -> None:
    """A lap that nobody times."""


class Kind(StrEnum):
    """What a message is. The values are label values of `sidecar_messages_received_total`."""

    GENERATE = "generate"
    ABORT = "abort"
    CONTROL = "control"
    UNREADABLE = "unreadable"


class Result(StrEnum):
    """What becomes of a message. The values are label values of `sidecar_requests_total`."""

    FORWARDED = "forwarded"
    REJECTED = "rejected"
    DROPPED = "dropped"


NO_DIALECT: Final = "tokenspeed"
"""The dialect under which a message is counted that no dialect recognises: an array is TokenSpeed's."""


@dataclass(slots=True)
class Envelope:
    """A message whose first bytes have been read.

    `rid` is the request id of a GENERATE, `rids` are those of an ABORT (none for an abort of all).
    `slow` says that processing it takes long enough to leave the event loop alone with it. `rejection`
    is what reading it has already found; `content` is what the dialect keeps between its two steps.
    """

    kind: Kind
    message: Message
    nbytes: int
    dialect: str = NO_DIALECT
    rid: str | None = None
    rids: tuple[str, ...] = ()
    slow: bool = False
    rejection: Rejection | None = None
    content: Any = None


@dataclass(slots=True)
class MediaNote:
    """What was done to one item, for people who look: `inspect`, `demo`, a debug log."""

    ordinal: int
    modality: Modality
    tokens: int
    hash: int | None
    pad_value: int | None
    hashed: bool


@dataclass(slots=True)
class Outcome:
    """What becomes of a message.

    `messages` are the messages to send, each a list of frames; most often one. `contents` and
    `segments` are what must be remembered when it is handed over, `unlink` names the segments that a
    refusal has orphaned. `dropped_rids` counts the part of an abort list that could not be used.
    """

    kind: Kind
    result: Result
    dialect: str = NO_DIALECT
    rid: str | None = None
    rids: tuple[str, ...] = ()
    messages: Sequence[Sequence[Buffer]] = ()
    reason: Reason | None = None
    message: str = ""
    contents: Sequence[Content] = ()
    segments: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unlink: Sequence[str] = ()
    media: Sequence[MediaNote] = ()
    substituted: int = 0
    delta: int | None = None
    delta_without_positions: bool = False
    envelope: Envelope | None = None
