"""The span editor: any edit of any tree leaves every byte that it does not name."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import Reason, Rejection
from sidecar.wire.msgpack import MAX_VALUES, NIL
from sidecar.wire.spans import array_view, element_bounds, map_view, set_entries, set_fields, splice
from tests.wire.test_msgpack import values

short_trees = st.lists(values, min_size=0, max_size=20)


def nil(field: int) -> bytes:
    return NIL


def view(packed: bytes, pos: int = 0) -> Any:
    found = array_view(packed, pos, len(packed))
    assert found is not None
    return found


@given(short_trees, st.binary(max_size=4), st.booleans())
def test_a_view_knows_every_field(fields: list[Any], before: bytes, as_view: bool) -> None:
    packed = msgpack.packb(fields)
    buf: Any = memoryview(before + packed + b"\xc1") if as_view else before + packed + b"\xc1"
    found = array_view(buf, len(before), len(buf))
    assert found is not None
    assert (len(found), found.start, found.end) == (len(fields), len(before), len(before) + len(packed))
    assert [bytes(found.span(i)) for i in range(len(fields))] == [msgpack.packb(field) for field in fields]
    assert [found.is_nil(i) for i in range(len(fields) + 2)] == [field is None for field in fields] + [True, True]


@given(short_trees, st.dictionaries(st.integers(0, 40), values, max_size=6))
def test_setting_fields_of_an_array(fields: list[Any], changes: dict[int, Any]) -> None:
    packed = msgpack.packb(fields)
    edits = set_fields(view(packed), {i: msgpack.packb(value) for i, value in changes.items()}, nil)
    expected = list(fields) + [None] * (max(changes, default=-1) + 1 - len(fields))
    for i, value in changes.items():
        expected[i] = value
    assert splice(packed, edits) == msgpack.packb(expected)


@given(short_trees.filter(bool), st.data())
def test_untouched_bytes_stay_verbatim(fields: list[Any], data: st.DataObject) -> None:
    packed = msgpack.packb(fields)
    found = view(packed)
    changed = data.draw(st.sets(st.integers(0, len(fields) - 1)))
    new = msgpack.packb("new")
    out = splice(packed, set_fields(found, dict.fromkeys(changed, new), nil))
    again = view(out)
    assert out[: again.bounds[0]] == packed[: found.bounds[0]]
    for i in range(len(fields)):
        assert bytes(again.span(i)) == (new if i in changed else bytes(found.span(i)))


def test_long_headers_stay_long() -> None:
    packed = b"\xdd\0\0\0\2\xcf" + b"\0" * 7 + b"\1\xdb\0\0\0\1x"
    assert splice(packed, set_fields(view(packed), {0: b"\5"}, nil)) == b"\xdd\0\0\0\2\5\xdb\0\0\0\1x"
    assert splice(packed, set_fields(view(packed), {}, nil)) == packed


def test_extending_past_fifteen_changes_the_header() -> None:
    packed = msgpack.packb([1] * 15)
    out = splice(packed, set_fields(view(packed), {17: b"\5"}, lambda field: msgpack.packb(field)))
    assert msgpack.unpackb(out) == [1] * 15 + [15, 16, 5]


@given(
    st.dictionaries(st.text(max_size=6), values, max_size=20), st.dictionaries(st.text(max_size=6), values, max_size=5)
)
def test_setting_entries_of_a_map(entries: dict[str, Any], changes: dict[str, Any]) -> None:
    packed = msgpack.packb(entries)
    found = map_view(packed, 0, len(packed))
    assert found is not None
    assert list(found.entries) == list(entries)
    out = splice(packed, set_entries(found, {key: msgpack.packb(value) for key, value in changes.items()}))
    assert out == msgpack.packb({**entries, **changes})


@given(st.lists(st.lists(values, max_size=3), min_size=1, max_size=4), values, st.data())
def test_edits_of_several_levels_go_into_one_splice(rows: list[list[Any]], value: Any, data: st.DataObject) -> None:
    packed = msgpack.packb([rows, "tail"])
    outer = view(packed)
    inner = view(packed, outer.bounds[0])
    row = data.draw(st.integers(0, len(rows) - 1))
    edits = [
        *set_fields(view(packed, inner.bounds[row]), {3: msgpack.packb(value)}, nil),
        *set_fields(outer, {2: b"\7"}, nil),
    ]
    expected = [list(entry) for entry in rows]
    expected[row] += [None] * (3 - len(expected[row])) + [value]
    assert msgpack.unpackb(splice(packed, edits), strict_map_key=False) == msgpack.unpackb(
        msgpack.packb([expected, "tail", 7]), strict_map_key=False
    )


def test_insertions_at_one_place_keep_their_order() -> None:
    assert splice(b"ab", [(1, 1, b"1"), (1, 1, b"2"), (0, 1, b"A")]) == b"A12b"
    assert splice(b"ab", [(2, 2, b"!"), (0, 0, b"?")]) == b"?ab!"
    assert splice(memoryview(b"ab"), []) == b"ab"


def test_overlapping_edits_are_a_fault_of_the_caller() -> None:
    with pytest.raises(ValueError, match="edit at 1 overlaps the one that ends at 2"):
        splice(b"abc", [(0, 2, b""), (1, 3, b"")])


@pytest.mark.parametrize("data", [b"\xc0", b"\x80", b"\xa0", b"\x05", b"\xc4\0"])
def test_what_is_no_array(data: bytes) -> None:
    assert array_view(data, 0, len(data)) is None


@pytest.mark.parametrize("data", [b"\xc0", b"\x90", b"\xa0", b"\x05"])
def test_what_is_no_map(data: bytes) -> None:
    assert map_view(data, 0, len(data)) is None


@pytest.mark.parametrize("data", [b"\x81\1\2", b"\x81\xc4\1a\2", b"\x81\xa1\xff\1", b"\x81\xc0\1"])
def test_a_key_that_is_no_string(data: bytes) -> None:
    with pytest.raises(Rejection, match="key that is no string") as caught:
        map_view(data, 0, len(data))
    assert caught.value.reason is Reason.MALFORMED_REQUEST


def test_a_key_that_comes_twice() -> None:
    with pytest.raises(Rejection, match="'a' twice"):
        map_view(b"\x82\xa1a\1\xd9\1a\2", 0, 8)


def test_bounds_are_bounded() -> None:
    with pytest.raises(Rejection, match="more than") as caught:
        element_bounds(b"\xc0" * 10, 0, 10, MAX_VALUES + 1)
    assert caught.value.reason is Reason.TOO_LARGE
    with pytest.raises(Rejection, match="truncated"):
        element_bounds(b"\xc0" * 3, 0, 3, 4)
    with pytest.raises(Rejection, match="truncated"):
        element_bounds(b"\xc0\xcd\0", 0, 3, 2)
