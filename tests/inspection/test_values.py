"""Values as nodes: what is folded, what is shortened, and that nothing can steer a terminal."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.errors import Rejection
from sidecar.inspection.values import MAX_PARTS, TIMES, Node, fold, plain, read_ids, read_value, runs_of, size
from tests.build import tensor


def node_of(value: Any, *aux: bytes) -> Node:
    data = msgpack.packb(value)
    return read_value("x", data, 0, len(data), aux)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nil"),
        (True, "true"),
        (-7, "-7"),
        (2**64 - 1, "18446744073709551615"),
        (1.5, "1.5"),
        (math.nan, "nan"),
        ("abc", "'abc'"),
        (b"abc", "bin, 3 bytes"),
        ([], "[]"),
        ([1, 2], "[1, 2]"),
        ([[7, 76]], "[[7, 76]]"),
        (["stop", "", None], "['stop', '', nil]"),
        ({}, "map of 0"),
        (msgpack.ExtType(3, b"xx"), "ext 3 (raw bytes), 2 bytes"),
        (msgpack.ExtType(1, b"xx"), "ext 1 (a pickle; never read), 2 bytes"),
        (msgpack.ExtType(7, b"x"), "ext 7, 1 byte"),
    ],
)
def test_a_value_as_text(value: Any, text: str) -> None:
    assert node_of(value).text == text


def test_a_map_has_a_child_an_entry() -> None:
    node = node_of({"a": 1, "b": {"c": [1, 2]}, 5: 6})
    assert [child.name for child in node.children] == ["a", "b", "5"]
    inner = node.child("b")
    assert inner is not None
    assert inner.children[0].value == [1, 2]


def test_a_string_cannot_steer_the_terminal() -> None:
    node = node_of({"\x1b[2J": "\x1b]0;owned\x07"})
    assert "\x1b" not in node.children[0].name + node.children[0].text


def test_a_long_string_is_shortened() -> None:
    assert plain("a" * 1000) == "'" + "a" * 120 + "' … (1000 characters)"


def test_a_string_that_is_not_utf8_is_said_to_be_none() -> None:
    assert read_value("x", b"\xa2\xff\xfe", 0, 3, ()).text == "a string that is not UTF-8"


def test_ids_are_folded() -> None:
    data = msgpack.packb([257, 84, 68, 68, *[261] * 70, 260, 3, 4])
    node = read_ids("input_ids", data, 0, len(data), "ids")
    assert node is not None
    assert node.text == f"77 ids: 257 84 68 68 70{TIMES}[261] 260 3 4"
    assert node.value == {"count": 77, "runs": [[1, 257], [1, 84], [2, 68], [70, 261], [1, 260], [1, 3], [1, 4]]}


def test_a_long_stretch_of_text_is_shortened_and_media_in_it_is_not() -> None:
    ids = [*range(100), *[7] * 50, *range(100)]
    shown = fold(runs_of(data := msgpack.packb(ids), 0, len(data)) or [])
    assert shown == (
        f"0 1 2 3 4 5 6 7 8 9 … 86 more … 96 97 98 99 50{TIMES}[7] 0 1 2 3 4 5 6 7 8 9 … 86 more … 96 97 98 99"
    )


def test_no_more_than_some_runs_are_shown() -> None:
    shown = fold([(10, value) for value in range(1000)])
    assert shown.count(TIMES) == MAX_PARTS
    assert "… 960 more runs and stretches …" in shown


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 3), max_size=40))
def test_runs_say_all_ids(ids: list[int]) -> None:
    data = msgpack.packb(ids)
    runs = runs_of(data, 0, len(data))
    assert runs is not None
    assert [value for count, value in runs for _ in range(count)] == ids
    assert all(one[1] != other[1] for one, other in itertools.pairwise(runs))


@pytest.mark.parametrize("value", [[1, "a"], [1, True], [1, 2.0], [1, None], [1, [2]], "text"])
def test_what_is_no_list_of_integers_has_no_runs(value: Any) -> None:
    data = msgpack.packb(value)
    assert runs_of(data, 0, len(data)) is None


def test_a_tensor_shows_dtype_shape_place_and_few_numbers() -> None:
    node = node_of(tensor([[1, 20, 14]]))
    assert node.text == "int64 [1, 3], 24 bytes inline: [[1, 20, 14]]"
    assert node.value["values"] == [[1, 20, 14]]


def test_a_tensor_with_many_numbers_shows_their_hash() -> None:
    node = node_of(["float32", [100], 1], bytes(400))
    assert node.text.startswith("float32 [100], 400 bytes in aux 1, blake3 ")
    assert node.value["place"] == "aux 1"
    other = node_of(["float32", [100], 1], b"\x01" + bytes(399))
    assert other.value["blake3"] != node.value["blake3"]


def test_an_fp8_tensor_has_no_numbers() -> None:
    assert "blake3" in node_of(["float8_e4m3fn", [2], msgpack.ExtType(3, b"ab")]).text


def test_what_looks_like_a_tensor_and_is_none_says_why() -> None:
    assert node_of(["float32", [100], 1]).text == (
        "not a tensor: the data is aux frame 1; the message has 0, counted from 1"
    )


def test_nesting_is_shown_down_to_a_depth() -> None:
    data = b"\x91" * 32 + b"\xc0"
    assert read_value("x", data, 0, len(data), ()).text
    with pytest.raises(Rejection, match="nests deeper"):
        read_value("x", b"\x91" * 200 + data, 0, len(data) + 200, ())


def test_a_number_of_bytes() -> None:
    assert [size(1), size(860160)] == ["1 byte", "860,160 bytes"]
