"""The straight run over a text request's first bytes agrees with the general reading, or declines."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.wire.request import read_request, read_rid
from sidecar.wire.text import MAX_TAIL_BYTES, match_text
from tests.build import request


@given(
    st.text(max_size=300),
    st.lists(st.integers(0, 2**31 - 1), max_size=40),
    st.integers(6, 25),
    st.lists(st.none() | st.integers(0, 5), max_size=3),
)
def test_the_parts_of_a_text_request(rid: str, ids: list[int], count: int, tail: list[Any]) -> None:
    payload = msgpack.packb(request(rid, ids=ids, count=count, tail=tail if count == 25 else ()))
    found = match_text(payload)
    if len(rid.encode()) > 255:
        assert found is None
        return
    assert found is not None
    view = read_request(payload, rid, max_items=1, max_depth=32)
    assert (found.rid, found.ids.tolist(), found.fields) == (rid, ids, len(view.array))
    assert found.rid == read_rid(payload)[0]
    assert found.tail == payload[view.array.bounds[5] :]


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x90", b"\x91", b"\xdc", b"\xdc\0", b"\xdd\0\0\0\6", b"\x80", b"\xc0",
     msgpack.packb(["AbortReq", "r", None]),
     msgpack.packb(["TokenizedGenerateReqInput"]),
     msgpack.packb(["TokenizedGenerateReqInput", "r"]),
     msgpack.packb(["TokenizedGenerateReqInput", "r", None]),
     msgpack.packb(["TokenizedGenerateReqInput", "r", None, None]),
     msgpack.packb(["TokenizedGenerateReqInput", "r", None, None, None]),
     msgpack.packb(["TokenizedGenerateReqInput", "r", None, None, 5]),
     msgpack.packb(["TokenizedGenerateReqInput", None, None, None, [1]]),
     msgpack.packb(["TokenizedGenerateReqInput", 5, None, None, [1]]),
     msgpack.packb(request(http_worker_ipc="ipc:///x")),
     msgpack.packb(request(input_text="x")),
     msgpack.packb(request())[:-200],
     msgpack.packb(["TokenizedGenerateReqInput", "@", None, None, [1]]).replace(b"\xa1@", b"\xa1\xff")],
)  # fmt: skip
def test_what_has_another_form(payload: bytes) -> None:
    assert match_text(payload) is None


def test_a_long_tail_is_not_kept() -> None:
    for extra in (0, MAX_TAIL_BYTES):
        found = match_text(msgpack.packb(request(ids=[1], tail=["x" * extra])))
        assert found is not None
        assert (found.tail is None) is (extra > 0)
