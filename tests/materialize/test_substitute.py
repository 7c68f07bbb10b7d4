"""Token substitution (its equality with slice assignment is in wire/test_ids)."""

from __future__ import annotations

import msgpack
import pytest

from sidecar.materialize.substitute import substitute
from sidecar.wire.ids import find_ids, locate


def test_every_other_byte_stays() -> None:
    packed = b"\xc0\xdd\0\0\0\6\xcd\0\1\7\7\xce\0\0\0\2\xcc\7\xcf" + b"\0" * 7 + b"\3\xc1"
    ids = find_ids(packed, 1, len(packed))
    assert ids is not None
    assert ids.tolist() == [1, 7, 7, 2, 7, 3]
    out = substitute(ids, locate(ids, [(1, 2), (4, 4)]), [(1_000_000, 2), (300, 1)])
    pad = b"\xce\0\x0fB@"
    assert out == b"\xdd\0\0\0\6\xcd\0\1" + pad * 2 + b"\xce\0\0\0\2" + b"\xcd\1\x2c" + b"\xcf" + b"\0" * 7 + b"\3"
    assert msgpack.unpackb(out) == [1, 1_000_000, 1_000_000, 2, 300, 3]


def test_nothing_to_substitute() -> None:
    packed = msgpack.packb([1, 2, 3])
    ids = find_ids(packed, 0, len(packed))
    assert ids is not None
    assert substitute(ids, [], []) == packed


def test_a_fill_a_run() -> None:
    packed = msgpack.packb([1, 1])
    ids = find_ids(packed, 0, len(packed))
    assert ids is not None
    with pytest.raises(ValueError):
        substitute(ids, locate(ids, [(0, 1)]), [])
