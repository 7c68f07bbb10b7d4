"""Id lists: what the bytes prove, find and cut is what a list of integers would."""

from __future__ import annotations

import random
import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.errors import Reason, Rejection
from sidecar.materialize.substitute import substitute
from sidecar.wire.ids import (
    MAX_TOKEN_ID,
    IdList,
    advance,
    encode_run,
    find_ids,
    find_outside,
    locate,
    prove_ids,
)
from sidecar.wire.native import Scan

ENCODINGS = [
    (1 << 7, lambda v: struct.pack(">B", v)),
    (1 << 8, lambda v: b"\xcc" + struct.pack(">B", v)),
    (1 << 16, lambda v: b"\xcd" + struct.pack(">H", v)),
    (1 << 32, lambda v: b"\xce" + struct.pack(">I", v)),
    (1 << 64, lambda v: b"\xcf" + struct.pack(">Q", v)),
    (1 << 7, lambda v: b"\xd0" + struct.pack(">b", v)),
    (1 << 15, lambda v: b"\xd1" + struct.pack(">h", v)),
    (1 << 31, lambda v: b"\xd2" + struct.pack(">i", v)),
    (1 << 63, lambda v: b"\xd3" + struct.pack(">q", v)),
]
"""Every way to write a non-negative integer: the first one that is too large for it, and how it is written."""


def encode(value: int, choice: int) -> bytes:
    able = [write for limit, write in ENCODINGS if value < limit]
    return bytes(able[choice % len(able)](value))


def header(count: int, choice: int) -> bytes:
    able = [b"\xdd" + struct.pack(">I", count)]
    if count < 1 << 16:
        able.append(b"\xdc" + struct.pack(">H", count))
    if count < 16:
        able.append(bytes([0x90 | count]))
    return able[choice % len(able)]


def listed(ids: list[int], choices: list[int] | None = None, before: bytes = b"\xc0", view: bool = False) -> IdList:
    """An id list inside a payload; `choices` pick the header's and each id's encoding, None the shortest."""
    if choices is None:
        data: bytes = msgpack.packb(ids)
    else:
        data = header(len(ids), choices[0]) + b"".join(map(encode, ids, choices[1:]))
    buf: Any = before + data + b"\xc1"
    found = find_ids(memoryview(buf) if view else buf, len(before), len(buf))
    assert found is not None
    assert (found.n, found.start, found.end) == (len(ids), len(before), len(before) + len(data))
    return found


ids_strategy = st.lists(
    st.one_of(
        st.integers(0, 300),
        st.integers(0, 2**31 - 1),
        st.sampled_from((127, 128, 255, 256, 32767, 32768, 65535, 65536, 151655, 248056, 2**31 - 1)),
    ),
    max_size=60,
)


@st.composite
def lists(draw: st.DrawFn) -> tuple[list[int], IdList]:
    """Ids in any mix of encodings, the shortest or not, in any buffer."""
    ids = draw(ids_strategy)
    choices = draw(st.none() | st.lists(st.integers(0, 8), min_size=len(ids) + 1, max_size=len(ids) + 1))
    return ids, listed(ids, choices, draw(st.binary(max_size=3)), draw(st.booleans()))


@given(lists())
def test_a_list_is_found_and_read(case: tuple[list[int], IdList]) -> None:
    ids, found = case
    assert found.tolist() == ids
    assert found.array().tolist() == ids
    assert bytes(found.span) == bytes(found.buf[found.start : found.end])


@given(lists(), st.integers(1, 2**31))
def test_a_proof_holds_for_just_the_lists_in_range(case: tuple[list[int], IdList], limit: int) -> None:
    ids, found = case
    bad = [i for i, value in enumerate(ids) if value >= limit]
    if not bad:
        prove_ids(found, limit, "input_ids")
        return
    with pytest.raises(Rejection) as caught:
        prove_ids(found, limit, "input_ids")
    assert caught.value.reason is Reason.TOKEN_IDS_INVALID
    assert f"input_ids[{bad[0]}] is {ids[bad[0]]};" in caught.value.message


@pytest.mark.parametrize("limit", [1, 5, 128, 129, 255, 256, 257, 300, 65535, 65536, 65537, 151936, 2**31 - 1, 2**31])
def test_the_last_id_below_a_limit_in_every_encoding(limit: int) -> None:
    for choice in range(len(ENCODINGS)):
        prove_ids(listed([0, limit - 1], [0, 0, choice]), limit, "x")
    for choice in range(len(ENCODINGS)):
        with pytest.raises(Rejection, match=rf"x\[1\] is {limit};"):
            prove_ids(listed([0, limit], [0, 0, choice]), limit, "x")


@pytest.mark.parametrize(
    "element",
    [
        b"\xc0",
        b"\xc2",
        b"\xc3",
        b"\xca\0\0\0\0",
        b"\xcb@\0\0\0\0\0\0\0",
        b"\xa11",
        b"\xc4\1a",
        b"\x90",
        b"\x91\1",
        b"\x80",
        b"\xd4\3a",
        b"\xff",
        b"\xe0",
        b"\xd0\xff",
        b"\xd3" + b"\xff" * 8,
        b"\xcf" + b"\xff" * 8,
        b"\xdc\0\1\1",
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_no_id(element: bytes, place: int) -> None:
    parts = [b"\1", b"\xcd\1\1", b"\xce\0\0\1\1"]
    parts[place] = element
    data = b"\x93" + b"".join(parts)
    found = find_ids(data, 0, len(data))
    assert found is not None
    assert found.end == len(data)
    with pytest.raises(Rejection, match=rf"ids\[{place}\]") as caught:
        prove_ids(found, MAX_TOKEN_ID, "ids")
    assert caught.value.reason is Reason.TOKEN_IDS_INVALID


@pytest.mark.parametrize("data", [b"\xc0", b"\xc4\2\1\2", b"\x80", b"\xa0", b"\5"])
def test_what_is_no_list(data: bytes) -> None:
    assert find_ids(data, 0, len(data)) is None


@pytest.mark.parametrize(
    "data", [b"\x93\1\2", b"\xdd\xff\xff\xff\xff\1", b"\xdc\0\2\xcd\1\1\xcd\1", b"\x91\x91", b"\x92\xcd\0\1\xcd"]
)
def test_a_truncated_list(data: bytes) -> None:
    with pytest.raises(Rejection, match="truncated"):
        find_ids(data, 0, len(data))


def test_a_list_knows_the_range_of_its_ids(scan: Scan | None) -> None:
    ids = listed([300, 65535, 256] * 50)
    assert ids.range == (0 if scan is None else 256, 65535)
    prove_ids(ids, 151936, "x")
    with pytest.raises(Rejection, match=r"x\[1\] is 65535"):
        prove_ids(ids, 65535, "x")
    assert listed([300, 5, 256]).range == (None if scan is None else (5, 300))
    assert listed([]).range == (None if scan is None else (0, -1))
    # three bytes apart stand lead bytes of uint16 that are none
    data = b"\x94\xcd\xcd\xcd\5\6\xcd\1\1"
    found = find_ids(data, 0, len(data))
    assert found is not None
    assert found.range == (None if scan is None else (5, 0xCDCD))
    assert found.tolist() == [0xCDCD, 5, 6, 257]


def naive_outside(ids: list[int], spans: list[tuple[int, int]], token: int) -> bool:
    covered = {i for start, end in spans for i in range(start, end + 1)}
    return any(value == token for i, value in enumerate(ids) if i not in covered)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[int], IdList, list[tuple[int, int]], int]:
    """A prompt with spans: some hold one id throughout, some do not, some lie side by side."""
    token = draw(st.sampled_from((5, 200, 300, 65536, 248056)))
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(0, 6))):
        ids += draw(st.lists(st.integers(0, 2**20) | st.just(token), max_size=6))
        length = draw(st.integers(1, 12))
        spans.append((len(ids), len(ids) + length - 1))
        if draw(st.booleans()):
            ids += [token] * length
        else:
            ids += draw(st.lists(st.integers(0, 300) | st.just(token), min_size=length, max_size=length))
    ids += draw(st.lists(st.integers(0, 2**20) | st.just(token), max_size=6))
    choices = draw(st.none() | st.lists(st.integers(0, 8), min_size=len(ids) + 1, max_size=len(ids) + 1))
    return ids, listed(ids, choices, draw(st.binary(max_size=2)), draw(st.booleans())), spans, token


@settings(max_examples=150)
@given(layouts())
def test_spans_are_located_as_in_a_list(case: tuple[list[int], IdList, list[tuple[int, int]], int]) -> None:
    ids, found, spans, token = case
    runs = locate(found, spans)
    assert len(runs) == len(spans)
    for (start, end), run in zip(spans, runs, strict=True):
        inside = ids[start : end + 1]
        assert run.value == (inside[0] if len(set(inside)) == 1 else None)
        data = bytes(found.buf[run.start : run.end])
        assert msgpack.unpackb(b"\xdd" + struct.pack(">I", len(inside)) + data) == inside
    assert find_outside(found, runs, token) == naive_outside(ids, spans, token)
    assert find_outside(found, [], token) == (token in ids)


@settings(max_examples=150)
@given(layouts(), st.lists(st.integers(0, 2**31 - 1), min_size=6, max_size=6))
def test_substitution_is_slice_assignment(
    case: tuple[list[int], IdList, list[tuple[int, int]], int], pads: list[int]
) -> None:
    ids, found, spans, _ = case
    runs = locate(found, spans)
    fills = [(pad, end - start + 1) for pad, (start, end) in zip(pads, spans, strict=False)]
    out = substitute(found, runs, fills)
    expected = list(ids)
    for (pad, count), (start, _) in zip(fills, spans, strict=True):
        expected[start : start + count] = [pad] * count
    assert msgpack.unpackb(out) == expected
    pos, kept = found.start, b""
    for run in (*runs, None):
        stop = found.end if run is None else run.start
        kept += bytes(found.buf[pos:stop])
        pos = stop if run is None else run.end
    for pad, count in fills:
        out = out.replace(encode_run(pad, count), b"", 1)
    assert len(out) == len(kept)


def test_a_long_prompt_with_many_spans() -> None:
    rng = random.Random(1)
    ids: list[int] = []
    spans = []
    for _ in range(64):
        ids += [rng.randrange(151936) for _ in range(500)]
        spans.append((len(ids), len(ids) + 255))
        ids += [151655] * 256
    found = listed(ids)
    runs = locate(found, spans)
    assert [run.value for run in runs] == [151655] * 64
    assert find_outside(found, runs, 151655) == naive_outside(ids, spans, 151655)
    assert find_outside(found, runs[1:], 151655)


@pytest.mark.parametrize("token", [-1, -(2**63), 2**63, 2**64 - 1])
def test_an_id_that_no_list_holds(token: int) -> None:
    assert not find_outside(listed([1, 255, 65535, 2**31 - 1]), [], token)


def test_stepping_over_elements() -> None:
    data = msgpack.packb([1, 300, 2**31 - 1, 70000])[1:]
    assert advance(data, 0, len(data), 0) == 0
    assert advance(data, 0, len(data), 2) == 4
    assert advance(data, 4, len(data), 2) == len(data)
    assert advance(data, 0, len(data), 5) is None
    assert advance(b"\xc1", 0, 1, 1) is None


def test_runs() -> None:
    assert encode_run(300, 3) == b"\xcd\x01\x2c" * 3
    assert encode_run(5, 0) == b""


@pytest.mark.parametrize("element", [b"\xa1\xff", b"\xd4\xff\0", b"\xc1", b"\x81\xc0\1"])
def test_values_of_a_list_that_nobody_proved(element: bytes) -> None:
    data = b"\x93\1" + element + b"\2"
    ids = IdList(data, 0, 1, len(data), 3)
    for read in (ids.tolist, ids.array, lambda: find_outside(ids, [], 2)):
        with pytest.raises(Rejection, match="trusted") as caught:
            read()
        assert caught.value.reason is Reason.TOKEN_IDS_INVALID


@pytest.mark.parametrize("element", [None, "x", [1], 2**64 - 1])
def test_values_that_are_no_int64(element: Any) -> None:
    with pytest.raises(Rejection, match="trusted"):
        listed([1, element]).array()
