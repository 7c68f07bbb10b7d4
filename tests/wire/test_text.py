"""The straight run over a text request's first bytes agrees with the general reading, or declines."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.wire.ids import MAX_TOKEN_ID
from sidecar.wire.request import read_request, read_rid
from sidecar.wire.text import MAX_TAIL_BYTES, join_tail, match_text, replace_tail
from tests.build import request

ids_of_all_sizes = st.integers(0, 300) | st.integers(0, 2**31 - 1)


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
    found = match_text(payload, {tail_of(payload): "known"}, MAX_TOKEN_ID)
    if len(rid.encode()) > 255:
        assert found is None
        return
    view = read_request(payload, rid, max_items=1, max_depth=32)
    assert found == (rid, len(view.array), view.array.bounds[5], "known")


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
    assert match_text(payload, {b"": "known"}) is None


TEXT = ["TokenizedGenerateReqInput", "r", None, None]


@pytest.mark.parametrize("header", [b"\x95", b"\xdc\0\5", b"\xdd\0\0\0\5"])
def test_every_header_of_an_array(header: bytes) -> None:
    payload = header + msgpack.packb([*TEXT, [7]])[1:]
    assert match_text(payload, {b"": "known"}) == ("r", 5, len(payload), "known")


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
    assert (match_text(payload, {b"": "known"}, limit, longest) is not None) is passes


def test_only_a_known_tail() -> None:
    payload = msgpack.packb([*TEXT, [1], 2, 3])
    assert match_text(payload, {b"\2\3": "known"}) is not None
    for tail in (b"", b"\2", b"\2\3\4", b"\3\2"):
        assert match_text(payload, {tail: "known"}) is None


def test_a_long_tail_is_none() -> None:
    for size in (MAX_TAIL_BYTES, MAX_TAIL_BYTES + 1, 100 * MAX_TAIL_BYTES):
        tail = b"\0" * size
        found = match_text(msgpack.packb([*TEXT, [1]]) + tail, {tail: "known"})
        assert (found is not None) is (size == MAX_TAIL_BYTES)


@given(st.binary(max_size=40), st.data(), st.lists(st.binary(max_size=10), max_size=8))
def test_another_tail(payload: bytes, data: st.DataObject, parts: list[bytes]) -> None:
    end = data.draw(st.integers(0, len(payload)))
    assert join_tail(payload, end, *parts) == payload[:end] + b"".join(parts)
    assert replace_tail(payload, end, *parts) == payload[:end] + b"".join(parts)
