"""The scans in C: the same answers as Python's for any bytes, and none of what lies outside of the positions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack as packer
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.errors import Rejection
from sidecar.wire import msgpack as walker
from sidecar.wire import native, spans
from sidecar.wire import text as texts
from sidecar.wire.ids import advance, find_ids, prove_ids
from sidecar.wire.msgpack import read_int
from sidecar.wire.native import Scan, Tail
from sidecar.wire.spans import element_bounds
from sidecar.wire.text import MAX_TAIL_BYTES, pass_text
from sidecar.wire.tokenspeed import GENERATE_TAG
from tests.wire.test_msgpack import values

TAG = packer.packb(GENERATE_TAG)
INT64 = (-(2**63), 2**63 - 1)

integers = st.one_of(st.integers(0, 300), st.integers(-300, 70_000), st.integers(-(2**63), 2**64 - 1))
trees = values.map(packer.packb)
anything = st.one_of(st.binary(max_size=40), trees, st.tuples(trees, st.integers(0, 60)).map(lambda t: t[0][: t[1]]))


def wide(value: int) -> st.SearchStrategy[bytes]:
    """Every encoding of an integer that the format has, the short and the long ones."""
    forms = [packer.packb(value)]
    for lead, width, signed in ((0xCC, 1, False), (0xCD, 2, False), (0xCE, 4, False), (0xCF, 8, False),
                                (0xD0, 1, True), (0xD1, 2, True), (0xD2, 4, True), (0xD3, 8, True)):  # fmt: skip
        try:
            forms.append(bytes([lead]) + value.to_bytes(width, "big", signed=signed))
        except OverflowError:
            continue
    return st.sampled_from(forms)


stretches = st.lists(integers.flatmap(lambda value: st.tuples(st.just(value), wide(value))), max_size=12)


@pytest.fixture(scope="module")
def compiled() -> Scan:
    """The scans, whatever the other tests of this run use."""
    if native.scan is None:
        pytest.skip("not compiled")
    return native.scan


@contextmanager
def in_python() -> Iterator[None]:
    """The functions in Python alone."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (walker, spans, texts):
            patch.setattr(module, "scan", None)
        yield


def attempt(function: Any, *arguments: Any, otherwise: Any) -> Any:
    """What a function returns, or something else where it refuses."""
    try:
        return function(*arguments)
    except Rejection:
        return otherwise


def test_they_are_there_wherever_a_compiler_is() -> None:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if os.environ.get("PURE_PYTHON") or shutil.which(compiler) is None:
        pytest.skip("left out, or no compiler")
    assert native.scan is not None


def test_the_environment_leaves_them_out() -> None:
    code = "from sidecar.wire.native import scan; print(scan)"
    environment = {**os.environ, "PURE_PYTHON": "1"}
    output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert output.stdout == "None\n"


@given(anything, st.integers(0, 4), st.integers(0, 4))
@example(b"\x91" * 40, 4, 0)
@example(b"\xdd\xff\xff\xff\xff", 4, 0)
@example(b"\xdf\x80\x00\x00\x00", 4, 0)
@example(b"\xc6\xff\xff\xff\xff", 4, 0)
@example(b"\xc9\x00\x00\x00\x00\x05", 4, 0)
def test_where_a_value_ends(compiled: Scan, data: bytes, depth: int, pos: int) -> None:
    pos = min(pos, len(data))
    with in_python():
        expected = attempt(walker.skip, data, pos, len(data), depth, otherwise=-1)
    assert compiled.skip(data, pos, len(data), depth, walker.MAX_VALUES) == expected
    assert compiled.skip(memoryview(data), pos, len(data), depth, walker.MAX_VALUES) == expected


def test_a_value_of_too_many_values(compiled: Scan) -> None:
    data = packer.packb([[0] * 5, [0] * 5])
    assert compiled.skip(data, 0, len(data), 8, 12) == len(data)
    assert compiled.skip(data, 0, len(data), 8, 11) == -1


@pytest.mark.parametrize("depth", [127, 128, 129, 100_000])
def test_depth_is_bounded_whatever_is_asked_for(compiled: Scan, depth: int) -> None:
    data = b"\x91" * depth + b"\x01"
    assert compiled.skip(data, 0, len(data), 10**9, 10**9) == (len(data) if depth <= 128 else -1)


@given(st.lists(values, max_size=8), st.integers(0, 9), st.integers(0, 3))
def test_where_values_stand(compiled: Scan, fields: list[Any], count: int, cut: int) -> None:
    data = b"".join(map(packer.packb, fields))
    end = max(len(data) - cut, 0)
    with in_python():
        expected = attempt(element_bounds, data, 0, end, count, otherwise=None)
    assert compiled.bounds(data, 0, end, count, 32, walker.MAX_VALUES) == expected


@given(stretches, anything)
def test_the_range_of_integers(compiled: Scan, stretch: list[tuple[int, bytes]], behind: bytes) -> None:
    data = b"".join(form for _, form in stretch)
    numbers = [min(max(value, INT64[0]), INT64[1]) for value, _ in stretch]
    expected = (len(data), min(numbers, default=0), max(numbers, default=-1))
    for buf in (data, data + behind):
        assert compiled.measure(buf, 0, len(buf), len(stretch)) == expected
        assert advance(buf, 0, len(buf), len(stretch)) == len(data)
        for number in numbers:
            assert compiled.holds(buf, 0, len(data), (number,)) is True
        assert compiled.holds(buf, 0, len(data), ()) is False
        assert compiled.holds(buf, 0, len(data), (12345678901,)) is (12345678901 in numbers)
    for end in range(len(data)):
        assert compiled.measure(data, 0, end, len(stretch)) is None
        assert advance(data, 0, end, len(stretch)) is None


@given(anything, st.integers(1, 6))
def test_what_is_no_integer(compiled: Scan, data: bytes, count: int) -> None:
    pos: int | None = 0
    for _ in range(count):
        if pos is not None:
            after = attempt(walker.skip, data, pos, len(data), otherwise=None)
            pos = after if after is not None and read_int(data, pos) is not None else None
    assert (compiled.measure(data, 0, len(data), count) or (None,))[0] == pos


@pytest.mark.parametrize(("pos", "end"), [(-1, 3), (0, 4), (3, 2), (9, 9), (2**62, 2**62)])
def test_positions_outside_of_the_buffer(compiled: Scan, pos: int, end: int) -> None:
    data = b"\1\2\3"
    assert compiled.skip(data, pos, end, 8, 8) == -1
    assert compiled.bounds(data, pos, end, 1, 8, 8) is None
    assert compiled.measure(data, pos, end, 1) is None
    assert compiled.holds(data, pos, end, (1,)) is None


@pytest.mark.parametrize("count", [-1, 4, 2**62])
def test_more_elements_than_bytes(compiled: Scan, count: int) -> None:
    assert compiled.bounds(b"\1\2\3", 0, 3, count, 8, 8) is None
    assert compiled.measure(b"\1\2\3", 0, 3, count) is None


def test_what_a_caller_may_not_do(compiled: Scan) -> None:
    untyped: Any = compiled
    for call, arguments in (
        (untyped.skip, (b"", 0, 0, 0)),
        (untyped.skip, ("text", 0, 0, 0, 0)),
        (untyped.bounds, (b"", 0, 0, "1", 0, 0)),
        (untyped.measure, (None, 0, 0, 0)),
        (untyped.holds, (b"", 0, 0, 5)),
        (untyped.holds, (b"", 0, 0)),
        (untyped.text, (memoryview(b""), b"", {}, 9, None, None)),
        (untyped.text, (b"", b"", [], 9, None, None)),
        (untyped.text, (b"\x95", b"", {}, 9, "1", None)),
        (untyped.text, (b"\x95", b"", {}, "9", None, None)),
        (untyped.text, (b"", b"", {}, 9, None)),
    ):
        with pytest.raises(TypeError):
            call(*arguments)
    with pytest.raises(ValueError, match="at most 16 ids"):
        compiled.holds(b"", 0, 0, range(17))
    with pytest.raises(OverflowError):
        compiled.holds(b"", 0, 0, [2**63])


ids_bytes = st.lists(integers, max_size=40).map(packer.packb)
rids = st.sampled_from(["r", "rid-1", "x" * 31, "x" * 32, "ü" * 90, "x" * 300]).map(packer.packb)
headers = st.sampled_from([b"\x95", b"\xdc\x00\x18", b"\xdc\x00\x00", b"\xdd\x00\x00\x00\x18", b"\x85"])


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Requests that are text, and such that nearly are, each with what stands behind its ids."""
    tail = draw(st.one_of(st.binary(max_size=20), st.just(b"\xc0" * 600)))
    nils = draw(st.sampled_from([b"\xc0\xc0", b"\xc0\xc0", b"\xc0\xc0", b"\xc0\xa0"]))
    data = draw(headers) + TAG + draw(rids) + nils + draw(ids_bytes) + tail
    damage = draw(st.sampled_from(["none", "none", "cut", "byte"]))
    if damage == "cut":
        data = data[: draw(st.integers(0, len(data)))]
    elif damage == "byte":
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + draw(st.binary(min_size=1, max_size=1)) + data[at + 1 :]
    return data, tail


bounds = st.none() | st.integers(-1, 400) | st.just(2**31)


edits = st.none() | st.tuples(st.binary(max_size=9), st.none() | st.binary(max_size=9), st.binary(max_size=9))
known_tails = st.builds(Tail, st.sampled_from([5, 5, 24, 0]), edits)


@given(requests(), known_tails, bounds, bounds)
@example((b"\x95" + TAG + b"\xa1r\xc0\xc0\x90", b""), Tail(5, None), None, None)
@example((b"\x95" + TAG + b"\xa2\xff\xfe\xc0\xc0\x91\1", b""), Tail(5, (b"", None, b"")), None, None)
@example((b"\x95" + TAG + b"\xd9", b""), Tail(5, None), None, None)
@example((b"\x95" + TAG + b"\xa1r\xc0\xc0\xdd\xff\xff\xff\xff\1", b""), Tail(5, None), None, None)
def test_text_requests(
    compiled: Scan, made: tuple[bytes, bytes], known: Tail, limit: int | None, longest: int | None
) -> None:
    data, tail = made
    tails = {tail: known}
    with in_python():
        expected = pass_text(data, tails, limit, longest)
    assert compiled.text(data, TAG, tails, MAX_TAIL_BYTES, limit, longest) == expected


@pytest.mark.parametrize(
    "known", ["known", (5,), (5, None, None), (5, 5), (5, (b"", b"")), (5, (b"", 5, b"")), (5, ("", None, b"")),
              (5, (b"", None, None)), ("5", None), [5, None]],
)  # fmt: skip
def test_what_cannot_be_known_of_a_tail(compiled: Scan, known: Any) -> None:
    payload = b"\x95" + TAG + b"\xa1r\xc0\xc0\x91\1"
    with pytest.raises(TypeError):
        compiled.text(payload, TAG, {b"": known}, MAX_TAIL_BYTES, None, None)


@given(stretches, st.integers(0, 2**31), st.sets(st.integers(0, 300), max_size=3))
def test_proofs(stretch: list[tuple[int, bytes]], limit: int, excluded: set[int]) -> None:
    data = packer.packb([0] * len(stretch))[: -len(stretch) or None] + b"".join(form for _, form in stretch)
    ids = find_ids(data, 0, len(data))
    assert ids is not None
    numbers = [value for value, _ in stretch]
    bad = [i for i, value in enumerate(numbers) if not 0 <= value < limit]
    if bad:
        with pytest.raises(Rejection, match=re.escape(f"x[{bad[0]}] is {numbers[bad[0]]};")):
            prove_ids(ids, limit, "x", excluded=frozenset(excluded))
    else:
        assert prove_ids(ids, limit, "x", excluded=frozenset(excluded)) is (not excluded & set(numbers))
