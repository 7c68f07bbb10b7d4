"""Records in bytes: what goes in comes out, and what contradicts itself is refused."""

from __future__ import annotations

import os
import zlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.recording import Direction, Framing, Record, RecordingError
from sidecar.recording.format import (
    FILE_HEADER,
    FRAME_HEAD,
    MESSAGE_HEAD,
    RECORD_HEADER,
    Kind,
    check_file_header,
    decode_facts,
    decode_message,
    deflate,
    encode_message,
    file_header,
)

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
RECORDS = st.builds(
    Record,
    st.lists(st.binary(max_size=2000) | st.integers(0, 255).map(lambda byte: bytes([byte]) * 5000), max_size=5),
    st.sampled_from(Direction),
    st.sampled_from(Framing),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.dictionaries(st.text(max_size=20), SCALARS, max_size=4),
)


def body_of(record: Record, *, compress: bool = True) -> bytes:
    header, *parts = encode_message(record, compress=compress)
    body = b"".join(map(bytes, parts))
    length, kind, flags, reserved, crc, head_crc = RECORD_HEADER.unpack(header)
    assert (length, kind, flags, reserved) == (len(body), Kind.MESSAGE, 0, 0)
    assert crc == zlib.crc32(body)
    assert head_crc == zlib.crc32(bytes(header)[:-4])
    return body


@given(RECORDS, st.booleans())
def test_what_goes_in_comes_out(record: Record, compress: bool) -> None:
    assert decode_message(body_of(record, compress=compress), 1 << 20) == record


def test_views_are_written_like_bytes() -> None:
    record = Record([memoryview(b"abc" * 500), bytearray(b"xyz")])
    assert decode_message(body_of(record), 1 << 20).frames == [b"abc" * 500, b"xyz"]


def test_only_what_shrinks_is_deflated() -> None:
    noise = os.urandom(100_000)
    assert deflate(noise) is None
    assert deflate(b"a" * 100) is None
    packed = deflate(b"a" * 100_000)
    assert packed is not None
    assert len(packed) < 1000
    assert len(body_of(Record([noise, b"a" * 100_000]))) < 102_000


def test_metadata_is_bounded() -> None:
    with pytest.raises(ValueError, match="metadata of"):
        encode_message(Record([b""], metadata={"note": "x" * 70_000}), compress=False)


@pytest.mark.parametrize("cut", range(MESSAGE_HEAD.size + FRAME_HEAD.size + 40))
def test_a_shortened_body_is_refused(cut: int) -> None:
    body = body_of(Record([b"payload"], metadata={"outcome": "forwarded"}))
    with pytest.raises(ValueError):
        decode_message(body[:-1][: len(body) - 1 - cut], 1 << 20)


@pytest.mark.parametrize(
    ("at", "value", "what"),
    [
        (16, 9, "direction 9"),
        (17, 9, "framing 9"),
        (20, 255, "bytes of metadata"),
        (24, 200, "frames"),
        (MESSAGE_HEAD.size, 7, "codec 7"),
        (MESSAGE_HEAD.size + 1, 200, "a frame of 200 bytes"),
        (MESSAGE_HEAD.size + 9, 200, "a stored frame of 7 bytes that says 200"),
    ],
)
def test_a_body_that_contradicts_itself_is_refused(at: int, value: int, what: str) -> None:
    body = bytearray(body_of(Record([b"payload"])))
    body[at] = value
    with pytest.raises(ValueError, match=what):
        decode_message(bytes(body), 1 << 20)


def deflated(stored: bytes, size: int) -> bytes:
    return MESSAGE_HEAD.pack(0, 0, 0, 0, 0, 0, 1) + FRAME_HEAD.pack(1, len(stored), size) + stored


@pytest.mark.parametrize(
    ("stored", "size", "what"),
    [
        (zlib.compress(b"a" * 1000), 999, "does not inflate"),
        (zlib.compress(b"a" * 1000), 1001, "does not inflate"),
        (zlib.compress(b"a" * 1000), 0, "does not inflate"),
        (zlib.compress(b"a" * 1000) + b"tail", 1000, "does not inflate"),
        (zlib.compress(b"a" * 1000)[:-4] + b"\0\0\0\0", 1000, "damaged"),
        (b"no zlib stream", 1000, "damaged"),
        (b"x" * 10, 20_000, "10 deflated bytes that say 20000"),
        (zlib.compress(b"a" * 10_000_000), 10_000_000, "inflate to more than"),
    ],
)
def test_a_deflated_frame_must_be_what_it_says(stored: bytes, size: int, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        decode_message(deflated(stored, size), 1 << 20)


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        msgpack.packb([1]),
        msgpack.packb({1: 2}),
        msgpack.packb({"a": [1]}),
        msgpack.packb({"a": b"bytes"}),
        msgpack.packb({"a": msgpack.ExtType(1, b"pickle")}),
        msgpack.packb({"a": 1}) + b"x",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 70_000,
    ],
)
def test_facts_are_a_flat_map(data: bytes) -> None:
    with pytest.raises(ValueError, match="metadata"):
        decode_facts(data)


def test_the_file_header() -> None:
    check_file_header(file_header(), "x")
    with pytest.raises(RecordingError, match="not a recording"):
        check_file_header(b"", "x")
    with pytest.raises(RecordingError, match="is 10 of 16 bytes"):
        check_file_header(file_header()[:10], "x")
    with pytest.raises(RecordingError, match="damaged"):
        check_file_header(file_header()[:-1] + b"\0", "x")
    head = FILE_HEADER.pack(file_header()[:8], 2, 0, 0)[:-4]
    with pytest.raises(RecordingError, match="version 2; this program reads version 1"):
        check_file_header(head + zlib.crc32(head).to_bytes(4, "little"), "x")
    assert RecordingError.exit_code == 3
