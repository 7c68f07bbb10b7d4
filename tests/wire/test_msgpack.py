"""Positions in msgpack: where values end, what headers say, and what is refused before anything is allocated."""

from __future__ import annotations

import math
import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import Reason, Rejection
from sidecar.wire import msgpack as wire

values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        st.text(max_size=20),
        st.binary(max_size=20),
        st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=40)),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=5), inner, max_size=5)),
    max_leaves=10,
)

EVERY_LEAD = [
    b"\x00",
    b"\x7f",
    b"\x80",
    b"\x81\x01\x02",
    b"\x90",
    b"\x91\x01",
    b"\xa0",
    b"\xa2ab",
    b"\xbf" + b"x" * 31,
    b"\xc0",
    b"\xc2",
    b"\xc3",
    b"\xc4\x02ab",
    b"\xc5\0\x02ab",
    b"\xc6\0\0\0\x02ab",
    b"\xc7\x02\x03ab",
    b"\xc8\0\x02\x03ab",
    b"\xc9\0\0\0\x02\x03ab",
    b"\xca\0\0\0\0",
    b"\xcb" + b"\0" * 8,
    b"\xcc\0",
    b"\xcd\0\0",
    b"\xce\0\0\0\0",
    b"\xcf" + b"\0" * 8,
    b"\xd0\0",
    b"\xd1\0\0",
    b"\xd2\0\0\0\0",
    b"\xd3" + b"\0" * 8,
    b"\xd4\x03a",
    b"\xd5\x03ab",
    b"\xd6\x03abcd",
    b"\xd7\x03" + b"a" * 8,
    b"\xd8\x03" + b"a" * 16,
    b"\xd9\x02ab",
    b"\xda\0\x02ab",
    b"\xdb\0\0\0\x02ab",
    b"\xdc\0\x01\x05",
    b"\xdd\0\0\0\x01\x05",
    b"\xde\0\x01\x05\x06",
    b"\xdf\0\0\0\x01\x05\x06",
    b"\xe0",
    b"\xff",
]


@pytest.mark.parametrize("view", [bytes, memoryview])
@pytest.mark.parametrize("value", EVERY_LEAD, ids=lambda value: value[:1].hex())
def test_every_encoding_ends_where_it_ends(value: bytes, view: Any) -> None:
    assert wire.skip(view(b"\xc0" + value + b"\xc0"), 1, len(value) + 2) == len(value) + 1


@pytest.mark.parametrize("value", [value for value in EVERY_LEAD if len(value) > 1], ids=lambda value: value[:1].hex())
def test_every_truncation_is_refused(value: bytes) -> None:
    for length in range(len(value)):
        with pytest.raises(Rejection, match="truncated") as caught:
            wire.skip(value, 0, length)
        assert caught.value.reason is Reason.MALFORMED_REQUEST


@given(values)
def test_skip_finds_the_end_of_any_value(value: Any) -> None:
    packed = msgpack.packb(value)
    assert wire.skip(packed + b"\xc1", 0, len(packed) + 1) == len(packed)
    assert wire.skip(b"\xc1" + packed, 1, len(packed) + 1) == len(packed) + 1


def test_the_unused_lead_byte() -> None:
    with pytest.raises(Rejection, match="byte 1 is 0xc1") as caught:
        wire.skip(b"\x91\xc1", 0, 2)
    assert caught.value.reason is Reason.MALFORMED_REQUEST


@pytest.mark.parametrize(
    "lead",
    [
        b"\xdc\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xde\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x9f",
        b"\x8f",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x03",
    ],
)
def test_a_claim_beyond_the_bytes_costs_nothing(lead: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(Rejection, match="truncated"):
        wire.skip(lead + b"\xc0" * 3, 0, len(lead) + 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000


def test_depth_is_bounded() -> None:
    for depth, wrap in ((32, b"\x91"), (32, b"\x81\xc0")):
        fits = wrap * depth + b"\xc0"
        assert wire.skip(fits, 0, len(fits), 32) == len(fits)
        with pytest.raises(Rejection, match="limit of 32") as caught:
            wire.skip(wrap + fits, 0, len(wrap + fits), 32)
        assert caught.value.reason is Reason.TOO_LARGE
    # an empty container is no level
    assert wire.skip(b"\x91\x90", 0, 2, 1) == 2


def test_depth_is_counted_on_the_way_down_only() -> None:
    siblings = msgpack.packb([[[1]]] * 1000)
    assert wire.skip(siblings, 0, len(siblings), 3) == len(siblings)


def test_the_number_of_values_is_bounded() -> None:
    many = b"\xdd" + struct.pack(">I", wire.MAX_VALUES) + b"\xc0" * wire.MAX_VALUES
    assert wire.skip(many, 0, len(many)) == len(many)
    more = b"\xdd" + struct.pack(">I", wire.MAX_VALUES + 1) + b"\xc0" * (wire.MAX_VALUES + 1)
    with pytest.raises(Rejection, match=str(wire.MAX_VALUES)) as caught:
        wire.skip(more, 0, len(more))
    assert caught.value.reason is Reason.TOO_LARGE


@pytest.mark.parametrize(
    ("data", "count", "body"),
    [
        (b"\x90", 0, 1),
        (b"\x92\1\2", 2, 1),
        (b"\xdc\0\2\1\2", 2, 3),
        (b"\xdd\0\0\0\2\1\2", 2, 5),
        (b"\x80", -1, 0),
        (b"\xa0", -1, 0),
    ],
)
def test_array_headers(data: bytes, count: int, body: int) -> None:
    assert wire.read_array_header(data, 0, len(data)) == (count, body)


@pytest.mark.parametrize(
    ("data", "count", "body"),
    [
        (b"\x80", 0, 1),
        (b"\x81\1\2", 1, 1),
        (b"\xde\0\1\1\2", 1, 3),
        (b"\xdf\0\0\0\1\1\2", 1, 5),
        (b"\x90", -1, 0),
        (b"\xc0", -1, 0),
    ],
)
def test_map_headers(data: bytes, count: int, body: int) -> None:
    assert wire.read_map_header(data, 0, len(data)) == (count, body)


@pytest.mark.parametrize("read", [wire.read_array_header, wire.read_map_header])
def test_headers_of_nothing(read: Any) -> None:
    with pytest.raises(Rejection, match="truncated"):
        read(b"", 0, 0)
    for lead in (b"\x92\1", b"\xdc\0", b"\xdd\0\0\0\2\1", b"\x82\1\2\3", b"\xde\0", b"\xdf\0\0\0\1\1"):
        if (lead[0] in (0x92, 0xDC, 0xDD)) is (read is wire.read_array_header):
            with pytest.raises(Rejection, match="truncated"):
                read(lead, 0, len(lead))


BOUNDARIES = [
    0,
    1,
    127,
    128,
    255,
    256,
    65535,
    65536,
    2**32 - 1,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -1,
    -32,
    -33,
    -128,
    -129,
    -32768,
    -32769,
    -(2**31),
    -(2**31) - 1,
    -(2**63),
]


@pytest.mark.parametrize("value", BOUNDARIES)
def test_integers(value: int) -> None:
    packed = wire.pack_int(value)
    assert packed == msgpack.packb(value)
    assert wire.read_int(packed, 0) == value
    assert wire.read_int(memoryview(packed), 0) == value


@given(st.integers(-(2**63), 2**64 - 1))
def test_any_integer(value: int) -> None:
    assert wire.read_int(wire.pack_int(value), 0) == value


@pytest.mark.parametrize(
    "data", [b"\xc0", b"\xc2", b"\xc3", b"\xca\0\0\0\0", b"\xcb" + b"\0" * 8, b"\xa11", b"\x90", b"\x80"]
)
def test_what_is_no_integer(data: bytes) -> None:
    assert wire.read_int(data, 0) is None


def test_long_encodings_of_small_integers() -> None:
    for data in (
        b"\xcc\5",
        b"\xcd\0\5",
        b"\xce\0\0\0\5",
        b"\xcf" + b"\0" * 7 + b"\5",
        b"\xd0\5",
        b"\xd1\0\5",
        b"\xd2\0\0\0\5",
        b"\xd3" + b"\0" * 7 + b"\5",
    ):
        assert wire.read_int(data, 0) == 5


@given(st.text())
def test_strings(text: str) -> None:
    packed = wire.pack_str(text)
    assert packed == msgpack.packb(text)
    assert wire.read_str(packed, 0, len(packed)) == text
    assert wire.read_str(memoryview(packed), 0, len(packed)) == text


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65535, 65536])
def test_string_lengths(size: int) -> None:
    packed = wire.pack_str("x" * size)
    assert packed == msgpack.packb("x" * size)
    assert wire.read_str(packed, 0, len(packed)) == "x" * size


def test_a_lone_surrogate_becomes_a_question_mark() -> None:
    assert wire.pack_str("a\ud800b") == b"\xa3a?b"


@pytest.mark.parametrize(
    "data", [b"\xa1\xff", b"\xa2\xc0\x80", b"\xa3\xed\xa0\x80", b"\xa4\xf4\x90\x80\x80", b"\xc4\1a", b"\x05"]
)
def test_what_is_no_string(data: bytes) -> None:
    assert wire.read_str(data, 0, len(data)) is None


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, 1e300, math.inf, -math.inf])
def test_floats(value: float) -> None:
    assert wire.read_float(msgpack.packb(value), 0) == value
    assert wire.read_float(msgpack.packb(1.5, use_single_float=True), 0) == 1.5
    assert wire.read_float(b"\x05", 0) is None


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 255, 256, 65535, 65536])
def test_ext_values(size: int) -> None:
    data = b"d" * size
    packed = wire.pack_ext(3, data)
    assert packed == msgpack.packb(msgpack.ExtType(3, data))
    code, start = wire.read_ext(packed, 0, len(packed)) or (0, 0)
    assert (code, packed[start:]) == (3, data)
    assert wire.read_ext(b"\xc4\1a", 0, 3) is None


@pytest.mark.parametrize("count", [0, 15, 16, 65535, 65536])
def test_headers_are_the_shortest(count: int) -> None:
    packer = msgpack.Packer()
    assert wire.pack_array_header(count) == packer.pack_array_header(count)
    assert wire.pack_map_header(count) == packer.pack_map_header(count)
