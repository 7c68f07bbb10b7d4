"""Values without a type, as the engine's decoder takes them."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest

from sidecar.wire.plain import unpack_plain


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        5,
        -5,
        2**64 - 1,
        1.5,
        "é",
        b"\xff",
        [1, [2, {"a": None}]],
        {"a": {"b": [b"x"]}},
        [b"\xd6\xff", "\xd7\xff"],
        b"\xd6\xff\0\0\0\0",
    ],
)
def test_plain_values(value: Any) -> None:
    packed = msgpack.packb(value)
    assert unpack_plain(packed) == value
    assert unpack_plain(memoryview(packed)) == value


@pytest.mark.parametrize(
    "where", [lambda v: v, lambda v: b"\x91" + v, lambda v: b"\x81\xa1a" + v, lambda v: b"\x91\x81\xa1a\x91" + v]
)
@pytest.mark.parametrize(
    "value",
    [
        b"\xa1\xff",
        b"\xd6\xff\0\0\0\1",
        b"\xd7\xff" + struct.pack(">Q", 1),
        b"\xc7\x0c\xff" + struct.pack(">Iq", 0, 2**62),
        b"\xd4\xff\0",
        b"\xd4\3\0",
        b"\xd4\1\0",
        b"\x81\1\2",
        b"\x81\xc0\2",
        b"\x81\x90\2",
    ],
)
def test_what_the_engine_would_not_decode(value: bytes, where: Any) -> None:
    with pytest.raises(ValueError):
        unpack_plain(where(value))


@pytest.mark.parametrize("data", [b"", b"\x91", b"\xc1", b"\1\2"])
def test_what_is_no_value(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpack_plain(data)
