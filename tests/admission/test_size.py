"""The size of a message."""

from __future__ import annotations

import pytest

from sidecar.admission.policy import Limits
from sidecar.admission.size import check_size
from sidecar.errors import Reason, Rejection
from sidecar.wire.framing import Framing, split


def test_bytes_and_frames_at_their_limits() -> None:
    message = split([b"x" * 10, b"y", b"z"], Framing.NATIVE)
    check_size(message, 12, Limits(message_bytes=12, frames=3))
    for limits, name in ((Limits(message_bytes=11), "limits.message_bytes"), (Limits(frames=2), "limits.frames")):
        with pytest.raises(Rejection, match=name) as caught:
            check_size(message, 12, limits)
        assert caught.value.reason is Reason.TOO_LARGE
