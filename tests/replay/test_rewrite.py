"""Other rids, other framings."""

from __future__ import annotations

import msgpack
import pytest

from sidecar.replay.decode import peek
from sidecar.replay.rewrite import abort_frames, reframe, rename
from sidecar.wire.framing import Framing
from tests.build import frames, request

NATIVE, TYPED = Framing.NATIVE, Framing.TYPED
ADD = [*frames(request("rid")), b"aux 1", b"aux 2"]
CONTROL = [msgpack.packb(["FlushCacheReqInput", None, None])]


@pytest.mark.parametrize(
    ("message", "source", "target", "result"),
    [
        (ADD, NATIVE, NATIVE, [ADD]),
        (ADD, NATIVE, TYPED, [[b"\x00", *ADD]]),
        ([b"\x00", *ADD], TYPED, NATIVE, [ADD]),
        ([msgpack.packb(["AbortReq", "a", None])], NATIVE, TYPED, [[b"\x01", msgpack.packb(["a"])]]),
        ([b"\x01", msgpack.packb(["a", "b"])], TYPED, NATIVE, [abort_frames("a", NATIVE), abort_frames("b", NATIVE)]),
        ([b"\x01", msgpack.packb([])], TYPED, NATIVE, []),
        (CONTROL, NATIVE, TYPED, []),
        ([b"\x05", b"x"], TYPED, NATIVE, []),
        ([b"garbage"], NATIVE, TYPED, [[b"\x00", b"garbage"]]),
    ],
)
def test_reframing(message: list[bytes], source: Framing, target: Framing, result: list[list[bytes]]) -> None:
    assert [list(frames_) for frames_ in reframe(message, source, target)] == result


def test_a_new_ending_changes_the_rid_and_nothing_else() -> None:
    renamed = rename(ADD, NATIVE, peek(ADD, NATIVE), ".2")
    assert renamed[1:] == ADD[1:]
    before, after = msgpack.unpackb(ADD[0]), msgpack.unpackb(renamed[0])
    assert after[1] == "rid.2"
    assert [*after[:1], "rid", *after[2:]] == before


def test_a_long_rid_changes_its_header() -> None:
    message = frames(request("r" * 31))
    assert peek(rename(message, NATIVE, peek(message, NATIVE), "!" * 300), NATIVE).rid == "r" * 31 + "!" * 300


def test_aborts_follow_their_requests() -> None:
    for message, framing in ((abort_frames("a", NATIVE), NATIVE), ([b"\x01", msgpack.packb(["a", "b"])], TYPED)):
        rids = peek(rename(message, framing, peek(message, framing), ".2"), framing).rids
        assert rids == tuple(rid + ".2" for rid in peek(message, framing).rids)


def test_what_has_no_rid_stays() -> None:
    assert rename(CONTROL, NATIVE, peek(CONTROL, NATIVE), ".2") == CONTROL
    preprocessed = [msgpack.packb({"token_ids": [1], "request_id": "r", "model": "m"})]
    renamed = rename(preprocessed, NATIVE, peek(preprocessed, NATIVE), ".2")
    assert msgpack.unpackb(renamed[0]) == {"token_ids": [1], "request_id": "r.2", "model": "m"}
