"""What a message is and what it holds, whatever its bytes."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.replay.decode import (
    MessageKind,
    Undecodable,
    decode_request,
    field_spans,
    glance,
    is_tensor,
    modality_of,
    peek,
    tensor_of,
    unpack,
)
from sidecar.wire.framing import Framing
from tests.build import frames, image_request, item, media, raw, request

NATIVE, TYPED = Framing.NATIVE, Framing.TYPED


@pytest.mark.parametrize(
    ("message", "framing", "kind", "rids"),
    [
        (frames(request("r1")), NATIVE, MessageKind.GENERATE, ("r1",)),
        ([b"\x00", *frames(request("r1"))], TYPED, MessageKind.GENERATE, ("r1",)),
        ([b"\x01", msgpack.packb(["a", "b"])], TYPED, MessageKind.ABORT, ("a", "b")),
        ([b"\x01", msgpack.packb(["a", 1])], TYPED, MessageKind.UNREADABLE, ()),
        ([b"\x07", b"anything"], TYPED, MessageKind.CONTROL, ()),
        ([msgpack.packb(["AbortReq", "r1", None])], NATIVE, MessageKind.ABORT, ("r1",)),
        ([msgpack.packb(["FlushCacheReqInput", None, None])], NATIVE, MessageKind.CONTROL, ()),
        ([msgpack.packb(["BatchTokenIDOutSlim", ["r1"], [[1]], [""]])], NATIVE, MessageKind.OUTPUT, ()),
        ([msgpack.packb({"token_ids": [1], "request_id": "r1"})], NATIVE, MessageKind.GENERATE, ("r1",)),
        ([msgpack.packb({"token_ids": [1]})], NATIVE, MessageKind.GENERATE, ()),
        ([msgpack.packb({"prompt": "x"})], NATIVE, MessageKind.UNREADABLE, ()),
        ([msgpack.packb(["TokenizedGenerateReqInput", 7])], NATIVE, MessageKind.UNREADABLE, ()),
        ([msgpack.packb([])], NATIVE, MessageKind.UNREADABLE, ()),
        ([msgpack.packb([1, 2])], NATIVE, MessageKind.UNREADABLE, ()),
        ([b""], NATIVE, MessageKind.UNREADABLE, ()),
        ([], NATIVE, MessageKind.UNREADABLE, ()),
        ([], TYPED, MessageKind.UNREADABLE, ()),
        ([b"\x00"], TYPED, MessageKind.UNREADABLE, ()),
    ],
)
def test_peek(message: list[bytes], framing: Framing, kind: MessageKind, rids: tuple[str, ...]) -> None:
    envelope = peek(message, framing)
    assert (envelope.kind, envelope.rids) == (kind, rids)
    assert envelope.rid == (rids[0] if rids else "")


def test_the_rid_span_is_the_rid() -> None:
    payload = frames(request("some-rid"))[0]
    start, end = peek([payload], NATIVE).rid_span
    assert msgpack.unpackb(payload[start:end]) == "some-rid"


@given(st.lists(st.binary(max_size=60), max_size=3), st.sampled_from(Framing))
def test_no_bytes_raise(message: list[bytes], framing: Framing) -> None:
    envelope = peek(message, framing)
    glance(message, framing)
    modality_of(message, framing, envelope)


@given(st.binary(max_size=80))
def test_unpack_raises_nothing_else(data: bytes) -> None:
    with contextlib.suppress(Undecodable):
        unpack(data)


def test_field_spans_skip_what_is_before() -> None:
    values: list[Any] = ["tag", list(range(1000)), {"a": [1]}, None, "last"]
    payload = msgpack.packb(values)
    spans = field_spans(payload, (1, 2, 4, 9))
    assert [msgpack.unpackb(payload[a:b]) if b else None for a, b in spans] == [values[1], values[2], "last", None]
    with pytest.raises(Undecodable):
        field_spans(payload[:-2], (4,))


@pytest.mark.parametrize(
    ("mm", "modality"),
    [
        (None, "text"),
        (media(), "text"),
        (media(item(1)), "image"),
        (media(item(2)), "video"),
        (media(item(3)), "audio"),
        (media(item(1), item(1)), "image"),
        (media(item(1), item(2)), "mixed"),
    ],
)
def test_modalities(mm: Any, modality: str) -> None:
    message = frames(request("r", mm=mm))
    assert glance(message, NATIVE) == (modality, False)
    assert modality_of(message, NATIVE, peek(message, NATIVE)) == modality


def test_modality_of_a_preprocessed_request() -> None:
    for entries, modality in (
        (None, "text"),
        ({"image_url": []}, "image"),
        ({"image_url": [], "video_url": []}, "mixed"),
    ):
        message = [msgpack.packb({"token_ids": [1], "multi_modal_data": entries})]
        assert modality_of(message, NATIVE, peek(message, NATIVE)) == modality


def test_a_refusal_shows() -> None:
    fields = msgpack.unpackb(frames(image_request("r"))[0])
    fields += [None] * (24 - len(fields))
    fields[23] = "refused"
    assert glance([msgpack.packb(fields)], NATIVE)[1] is True
    decoded = decode_request([msgpack.packb(fields)], NATIVE)
    assert decoded.validation_error == "refused"
    assert decoded[99] is None  # type: ignore[index]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("tensor", "dtype, shape, data"),
        (["complex64", [1], raw(b"12345678")], "dtype 'complex64'"),
        (["int64", [-1], raw(b"")], "shape"),
        (["int64", [True], raw(b"12345678")], "shape"),
        (["int64", [2], raw(b"12345678")], "takes 16 bytes, 8 are there"),
        (["int64", [1 << 40, 1 << 40], raw(b"12345678")], "bytes"),
        (["int64", [1], msgpack.ExtType(1, b"12345678")], "neither raw bytes"),
        (["int64", [1], 0], "neither raw bytes nor one of 1 aux"),
        (["int64", [1], 2], "neither raw bytes nor one of 1 aux"),
        (["int64", [1], True], "neither raw bytes nor one of 1 aux"),
    ],
)
def test_tensors_that_are_none(value: Any, what: str) -> None:
    with pytest.raises(Undecodable, match=what):
        tensor_of(value, [b"12345678"])


def test_tensors() -> None:
    assert tensor_of(["<i8", [1], raw(b"\x07" + bytes(7))], []).array().tolist() == [7]
    assert tensor_of(["int64", [1], 1], [b"\x07" + bytes(7)]).aux == 1
    assert is_tensor(["int64", [1], 1])
    assert not is_tensor([1, 2, 3])


def test_a_payload_that_is_no_request() -> None:
    with pytest.raises(Undecodable, match="not a generate request"):
        decode_request([msgpack.packb(["AbortReq", "r"])], NATIVE)
    with pytest.raises(Undecodable, match="1 bytes after the payload"):
        decode_request([frames(request("r"))[0] + b"\x00"], NATIVE)
    with pytest.raises(Undecodable, match="not msgpack"):
        unpack(b"\x81\x91\x01\x01")
