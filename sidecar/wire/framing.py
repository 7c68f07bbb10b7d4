"""Native and typed framing: which frame is the payload, what kind of message it is, and the way back.

native  `[payload, *aux]`; the payload's shape and tag say what it is
typed   `[type byte, payload, *aux]`; 00 is ADD, 01 is ABORT with a list of rids, others are the peers' own
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.errors import Reason, Rejection
from sidecar.wire.msgpack import SIZE, Buffer, pack_str, read_str, skip
from sidecar.wire.tokenspeed import GENERATE_TAG

TYPE_ADD: Final = b"\x00"
TYPE_ABORT: Final = b"\x01"

_MAX_TAG_BYTES: Final = 64
_TAG: Final = pack_str(GENERATE_TAG)


class Framing(StrEnum):
    """How a message is laid out in frames."""

    NATIVE = "native"
    TYPED = "typed"


class Kind(StrEnum):
    """What a message is, as far as its first bytes tell."""

    ADD = "add"
    ABORT_LIST = "abort_list"
    CONTROL = "control"
    OPAQUE = "opaque"


class Message(NamedTuple):
    """A received message, split.

    ADD: a generate request of some dialect. ABORT_LIST: the typed ABORT. CONTROL: any other tagged
    native payload, AbortReq included. OPAQUE: a typed message of a type that only the peers know.
    `frames` are the frames as they came.
    """

    kind: Kind
    payload: Buffer
    aux: Sequence[Buffer]
    frames: Sequence[Buffer]


def split(frames: Sequence[Buffer], framing: Framing) -> Message:
    """Split a message's frames.

    Raises `Rejection(malformed_request)` for a message that is too short to have a payload. A native
    payload is an ADD unless it is an array whose first element is another dialect's tag: what cannot be
    read is left to the dialects, which say what is wrong with it.
    """
    if framing is Framing.TYPED:
        if len(frames) < 2:
            raise Rejection(
                Reason.MALFORMED_REQUEST, f"a typed message has a type and a payload; {len(frames)} frames came"
            )
        head = frames[0]
        if head == TYPE_ADD:
            return Message(Kind.ADD, frames[1], frames[2:], frames)
        if head == TYPE_ABORT:
            return Message(Kind.ABORT_LIST, frames[1], frames[2:], frames)
        return Message(Kind.OPAQUE, frames[1], frames[2:], frames)
    if not frames:
        raise Rejection(Reason.MALFORMED_REQUEST, "a message without a frame")
    return Message(Kind.ADD, frames[0], frames[1:], frames)


def is_generate(payload: Buffer) -> bool:
    """Whether a payload surely begins as a generate request does: most do, and need no closer look."""
    return payload[1 : 1 + len(_TAG)] == _TAG or (payload[3 : 3 + len(_TAG)] == _TAG and payload[0] == 0xDC)


def read_tag(payload: Buffer) -> str | None:
    """The tag of a tagged array: its first element, if that is a short string. None if there is none."""
    end = len(payload)
    if not end:
        return None
    lead = payload[0]
    pos = 1 if 0x90 <= lead <= 0x9F else 3 if lead == 0xDC else 5 if lead == 0xDD else end
    if pos >= end:
        return None
    size = SIZE[payload[pos]]
    try:
        after = pos + size if size else skip(payload, pos, min(end, pos + _MAX_TAG_BYTES))
    except Rejection:
        return None
    return read_str(payload, pos, after) if after <= end else None


def unedited(message: Message, arrived: Framing, leaves: Framing) -> Sequence[Buffer]:
    """The frames of a generate request in which nothing was edited: the very ones that came, unless the
    framing differs."""
    return message.frames if arrived is leaves else join_add(leaves, message.payload, message.aux)


def join_add(framing: Framing, payload: Buffer, aux: Sequence[Buffer]) -> list[Buffer]:
    """The frames of a generate request."""
    return [TYPE_ADD, payload, *aux] if framing is Framing.TYPED else [payload, *aux]
