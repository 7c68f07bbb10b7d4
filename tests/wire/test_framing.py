"""Framings: which frame is the payload, and the way back."""

from __future__ import annotations

import msgpack
import pytest

from sidecar.errors import Reason, Rejection
from sidecar.wire.framing import Framing, Kind, join_add, read_tag, split, unedited

PAYLOAD = msgpack.packb(["TokenizedGenerateReqInput", "r"])


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ([b"\0", PAYLOAD], Kind.ADD),
        ([b"\1", b"\x90"], Kind.ABORT_LIST),
        ([b"\2", b"x"], Kind.OPAQUE),
        ([b"", b"x"], Kind.OPAQUE),
        ([b"\0\0", PAYLOAD], Kind.OPAQUE),
    ],
)
def test_typed(frames: list[bytes], kind: Kind) -> None:
    for message in (frames, [memoryview(frame) for frame in frames]):
        found = split([*message, b"a", b"b"], Framing.TYPED)
        assert (found.kind, bytes(found.payload), list(found.aux)) == (kind, frames[1], [b"a", b"b"])
        assert list(found.frames) == [*message, b"a", b"b"]


def test_native() -> None:
    found = split([PAYLOAD, b"a"], Framing.NATIVE)
    assert (found.kind, found.payload, list(found.aux)) == (Kind.ADD, PAYLOAD, [b"a"])


@pytest.mark.parametrize(("frames", "framing"), [([], Framing.NATIVE), ([], Framing.TYPED), ([b"\0"], Framing.TYPED)])
def test_too_few_frames(frames: list[bytes], framing: Framing) -> None:
    with pytest.raises(Rejection) as caught:
        split(frames, framing)
    assert caught.value.reason is Reason.MALFORMED_REQUEST


@pytest.mark.parametrize(
    ("payload", "tag"),
    [
        (msgpack.packb(["AbortReq", "r"]), "AbortReq"),
        (b"\xdc\0\1\xa1x", "x"),
        (b"\xdd\0\0\0\1\xd9\1x", "x"),
        (msgpack.packb(["x" * 60]), "x" * 60),
        (msgpack.packb(["x" * 100]), None),
        (b"\x91\xa1\xff", None),
        (b"\x91\5", None),
        (b"\x91", None),
        (b"\x90", None),
        (b"\x91\xa5ab", None),
        (b"", None),
        (b"\x81\xa1a\1", None),
        (b"\xdb\xff\xff\xff\xff", None),
    ],
)
def test_tags(payload: bytes, tag: str | None) -> None:
    assert read_tag(payload) == tag
    assert read_tag(memoryview(payload)) == tag


def test_join() -> None:
    assert join_add(Framing.NATIVE, b"p", [b"a"]) == [b"p", b"a"]
    assert join_add(Framing.TYPED, b"p", [b"a"]) == [b"\0", b"p", b"a"]


def test_an_unedited_message_leaves_as_it_came_or_in_the_other_framing() -> None:
    native = split([PAYLOAD, b"a", b"b"], Framing.NATIVE)
    typed = split([b"\0", PAYLOAD, b"a", b"b"], Framing.TYPED)
    assert unedited(native, Framing.NATIVE, Framing.NATIVE) is native.frames
    assert unedited(typed, Framing.TYPED, Framing.TYPED) is typed.frames
    assert unedited(native, Framing.NATIVE, Framing.TYPED) == list(typed.frames)
    assert unedited(typed, Framing.TYPED, Framing.NATIVE) == list(native.frames)
