"""A payload byte by byte: no byte is left out, and every row says what its bytes are."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.inspection.dump import Row, dump
from sidecar.inspection.page import read_page
from sidecar.recording import Framing, Record
from tests.build import image_request, request
from tests.cases import captures, goldens


def rows_of(payload: bytes) -> list[Row]:
    return list(dump(payload, read_page(Record([payload])).fields))


def check_cover(payload: bytes, rows: list[Row]) -> None:
    pos = 0
    for row in rows:
        assert row.start == pos
        assert row.nbytes > 0
        assert (
            bytes.fromhex(row.data.removesuffix(" …")) == payload[pos : pos + len(row.data.removesuffix(" …").split())]
        )
        pos += row.nbytes
    assert pos == len(payload)


def test_rows_of_a_request() -> None:
    payload = msgpack.packb(image_request("r"))
    rows = rows_of(payload)
    check_cover(payload, rows)
    assert rows[0][1:] == (3, 0, "dc 00 19", "", "array of 25")
    by_name = {row.name: row for row in rows}
    assert by_name["1 rid"].data == "a1 72"
    assert by_name["0 modality"] == (by_name["0 modality"].start, 1, 3, "01", "0 modality", "1 (image)")
    assert by_name["6 return_logprob to 21 input_ids_unpadded"].text == "nil or at their defaults"
    assert [row.text for row in rows if row.name == "shape"] == ["[16, 24]", "[1, 3]"]
    assert "the key image_grid_thw" in [row.text for row in rows]


def test_a_map() -> None:
    payload = msgpack.packb({"request_id": "r", "token_ids": [1, 2, 3]})
    rows = rows_of(payload)
    check_cover(payload, rows)
    assert [row.text for row in rows] == ["map of 2", "the key request_id", "'r'", "the key token_ids", "[1, 2, 3]"]


@pytest.mark.parametrize("name", sorted(goldens()))
def test_no_byte_of_a_golden_is_left_out(name: str) -> None:
    payload = goldens()[name].frames[0]
    check_cover(payload, rows_of(payload))


def test_no_byte_of_the_gateways_messages_is_left_out() -> None:
    for capture in captures():
        payload = capture.frames[1]
        check_cover(payload, list(dump(payload, read_page(Record(capture.frames, framing=Framing.TYPED)).fields)))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 420), st.binary(max_size=5))
def test_no_byte_of_a_damaged_request_is_left_out(at: int, damage: bytes) -> None:
    payload = msgpack.packb(image_request("r", count=24))
    damaged = payload[:at] + damage + payload[at + len(damage) :]
    check_cover(damaged, rows_of(damaged))


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=60))
def test_no_byte_of_any_bytes_is_left_out(data: bytes) -> None:
    for payload in (data, msgpack.packb(request())[:70] + data):
        check_cover(payload, rows_of(payload))
