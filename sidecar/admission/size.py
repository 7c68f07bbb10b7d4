"""The rule about a message's size."""

from __future__ import annotations

from sidecar.admission.policy import Limits
from sidecar.errors import Reason, Rejection
from sidecar.wire.framing import Message


def check_size(message: Message, nbytes: int, limits: Limits) -> None:
    """`too_large`: more bytes or more frames than a message may have."""
    if nbytes > limits.message_bytes:
        raise Rejection(
            Reason.TOO_LARGE,
            f"the message has {nbytes} bytes; the limit is {limits.message_bytes} (limits.message_bytes)",
        )
    if len(message.frames) > limits.frames:
        raise Rejection(
            Reason.TOO_LARGE,
            f"the message has {len(message.frames)} frames; the limit is {limits.frames} (limits.frames)",
        )
