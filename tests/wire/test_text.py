"""The straight run over a text request's first bytes agrees with the general reading, or declines."""

from __future__ import annotations

import zlib
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.wire.ids import MAX_TOKEN_ID
from sidecar.wire.native import Tail
from sidecar.wire.request import read_request, read_rid
from sidecar.wire.text import MAX_TAIL_BYTES, pack_crc, pass_text
from tests.build import request

ids_of_all_sizes = st.integers(0, 300) | st.integers(0, 2**31 - 1)


STAYS = Tail(5, None)


def tail_of(payload: bytes) -> bytes:
    """The bytes behind the ids."""
    rid, _, _ = read_rid(payload)
    assert rid is not None
    return payload[read_request(payload, rid, max_items=1, max_depth=32).array.bounds[5] :]


@given(
    st.text(max_size=300),
    st.lists(ids_of_all_sizes, min_size=1, max_size=40),
    st.integers(6, 25),
    st.lists(st.none() | st.integers(0, 5), max_size=3),
)
def test_the_parts_of_a_text_request(rid: str, ids: list[int], count: int, tail: list[Any]) -> None:
    payload = msgpack.packb(request(rid, ids=ids, count=count, tail=tail if count == 25 else ()))
    array = read_request(payload, rid, max_items=1, max_depth=32).array
    stays, changes = Tail(len(array), None), Tail(len(array), (b"before", b"seed", b"behind"))
    for known, leaves in ((stays, payload), (changes, payload[: array.bounds[5]] + b"beforeseedbehind")):
        found = pass_text(payload, {tail_of(payload): known}, MAX_TOKEN_ID)
        assert found == ((rid, leaves) if len(rid.encode()) <= 255 else None)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x90", b"\x91", b"\xdc", b"\xdc\0", b"\xdd", b"\xdd\0\0\0\6", b"\x80", b"\xc0",
     msgpack.packb(["AbortReq", "r", None]),
     msgpack.packb(["TokenizedGenerateReqInput"]),
     msgpack.packb(["TokenizedGenerateReqInput", "r"]),
     msgpack.packb(["TokenizedGenerateReqInput", "r", None]),
     msgpack.packb(["TokenizedGenerateReqInput", "r", None, None]),
     msgpack.packb(["TokenizedGenerateReqInput", "r", None, None, None]),
     msgpack.packb(["TokenizedGenerateReqInput", "r", None, None, 5]),
     msgpack.packb(["TokenizedGenerateReqInput", "r", None, None, []]),
     msgpack.packb(["TokenizedGenerateReqInput", "r", None, None, [1.0]]),
     msgpack.packb(["TokenizedGenerateReqInput", "r", None, None, [True]]),
     msgpack.packb(["TokenizedGenerateReqInput", None, None, None, [1]]),
     msgpack.packb(["TokenizedGenerateReqInput", 5, None, None, [1]]),
     msgpack.packb(["TokenizedGenerateReqInput", "r", "ipc:///x", None, [1]]),
     msgpack.packb(["TokenizedGenerateReqInput", "r", None, "x", [1]]),
     msgpack.packb(["TokenizedGenerateReqInput", "r", None, None, [1, 2]])[:-1],
     msgpack.packb(["TokenizedGenerateReqInput", "@", None, None, [1]]).replace(b"\xa1@", b"\xa1\xff")],
)  # fmt: skip
def test_what_has_another_form(payload: bytes) -> None:
    assert pass_text(payload, {b"": STAYS}) is None


TEXT = ["TokenizedGenerateReqInput", "r", None, None]


@pytest.mark.parametrize("header", [b"\x95", b"\xdc\0\5", b"\xdd\0\0\0\5"])
def test_every_header_of_an_array(header: bytes) -> None:
    payload = header + msgpack.packb([*TEXT, [7]])[1:]
    found = pass_text(payload, {b"": STAYS})
    assert found == ("r", payload)
    assert found[1] is payload


@pytest.mark.parametrize(
    ("ids", "limit", "longest", "passes"),
    [
        ([0, 99], 100, None, True),
        ([0, 100], 100, None, False),
        ([-1], 100, None, False),
        ([-1, 2**64 - 1], None, None, True),
        ([2**64 - 1], 2**31, None, False),
        ([1, 2, 3], None, 3, True),
        ([1, 2, 3], None, 2, False),
        ([1], None, 0, False),
        ([1], None, -1, False),
    ],
)
def test_the_bounds_of_the_ids(ids: list[int], limit: int | None, longest: int | None, passes: bool) -> None:
    payload = msgpack.packb([*TEXT, ids])
    assert (pass_text(payload, {b"": STAYS}, limit, longest) is not None) is passes


def test_only_a_known_tail() -> None:
    payload = msgpack.packb([*TEXT, [1], 2, 3])
    assert pass_text(payload, {b"\2\3": Tail(7, None)}) is not None
    for tail in (b"", b"\2", b"\2\3\4", b"\3\2"):
        assert pass_text(payload, {tail: Tail(7, None)}) is None


@pytest.mark.parametrize("fields", [-1, 0, 6, 8, 2**32])
def test_only_with_as_many_fields(fields: int) -> None:
    payload = msgpack.packb([*TEXT, [1], 2, 3])
    assert pass_text(payload, {b"\2\3": Tail(fields, None)}) is None
    assert pass_text(payload, {b"\2\3": Tail(fields, (b"", b"", b""))}) is None


def test_a_long_tail_is_none() -> None:
    for size in (MAX_TAIL_BYTES, MAX_TAIL_BYTES + 1, 100 * MAX_TAIL_BYTES):
        tail = b"\0" * size
        found = pass_text(msgpack.packb([*TEXT, [1]]) + tail, {tail: STAYS})
        assert (found is not None) is (size == MAX_TAIL_BYTES)


@given(st.text(max_size=80), st.binary(max_size=9), st.none() | st.binary(max_size=9), st.binary(max_size=9))
def test_another_tail(rid: str, before: bytes, number: bytes | None, behind: bytes) -> None:
    payload = msgpack.packb(["TokenizedGenerateReqInput", rid, None, None, [1, 2]])
    passed = pass_text(payload + b"tail", {b"tail": Tail(5, (before, number, behind))})
    if len(rid.encode()) > 255:
        assert passed is None
        return
    checksum = msgpack.packb(zlib.crc32(rid.encode()))
    assert passed == (rid, payload + before + (checksum if number is None else number) + behind)


@pytest.mark.parametrize(
    ("text", "packed"),
    [
        ("", b"\0"),
        ("ah0xpx", b"\x61"),
        ("chatcmpl-7771704", b"\xcc\xa9"),
        ("aaak4n", b"\xcd\x28\xae"),
        ("3", b"\xce\x6d\xd2\x8e\x9b"),
    ],
)
def test_every_width_of_a_checksum(text: str, packed: bytes) -> None:
    assert pack_crc(text) == packed
    payload = msgpack.packb(["TokenizedGenerateReqInput", text, None, None, [1]])
    assert pass_text(payload, {b"": Tail(5, (b"", None, b""))}) == (text, payload + packed)
