"""Messages changed on their way out again: other rids, another framing, aborts made anew. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgpack

from sidecar.replay.decode import Envelope, MessageKind, peek
from sidecar.wire.framing import TYPE_ABORT, TYPE_ADD, Framing
from sidecar.wire.msgpack import Buffer, pack_str
from sidecar.wire.spans import splice
from sidecar.wire.tokenspeed import ABORT_TAG

Frames: TypeAlias = Sequence[Buffer]


def abort_frames(rid: str, framing: Framing) -> list[Buffer]:
    """An abort of one request."""
    if framing is Framing.TYPED:
        return [TYPE_ABORT, msgpack.packb([rid])]
    return [msgpack.packb([ABORT_TAG, rid, None])]


def reframe(frames: Frames, source: Framing, target: Framing, envelope: Envelope | None = None) -> list[Frames]:
    """The message in another framing: a list of messages, because a native abort names one rid only.

    Empty for a message that the target framing has no form for: a typed one takes no native control
    message, a native one no unknown type. `envelope` is what `peek` found, if it is known already.
    """
    if source is target:
        return [frames]
    envelope = envelope or peek(frames, source)
    if envelope.kind is MessageKind.ABORT:
        if target is Framing.TYPED:
            return [[TYPE_ABORT, msgpack.packb(list(envelope.rids))]]
        return [abort_frames(rid, target) for rid in envelope.rids]
    if envelope.kind is MessageKind.CONTROL:
        return []
    return [[TYPE_ADD, *frames]] if target is Framing.TYPED else [frames[1:]]


def rename(frames: Frames, framing: Framing, envelope: Envelope, suffix: str) -> Frames:
    """The message with `suffix` at the end of each of its rids; every other byte as it was."""
    at = 1 if framing is Framing.TYPED else 0
    if envelope.rid_span != (0, 0):
        start, end = envelope.rid_span
        payload = splice(frames[at], [(start, end, pack_str(envelope.rid + suffix))])
    elif envelope.kind is MessageKind.ABORT:
        payload = msgpack.packb([rid + suffix for rid in envelope.rids])
    else:
        return frames
    return [*frames[:at], payload, *frames[at + 1 :]]
