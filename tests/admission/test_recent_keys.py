"""Keys over time: in C and in Python, the same answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.admission import recent_keys as module
from sidecar.admission.recent_keys import MAX_FORGOTTEN, TABLES, DictKeys, RecentKeys, recent_keys
from sidecar.native import compiled

Make = Callable[[float, int], RecentKeys]

native: Any = compiled("sidecar.admission._recent_keys")


def in_c(window: float, capacity: int) -> RecentKeys:
    """Those in C, with a secret of this test's."""
    keys: RecentKeys = native.RecentKeys(window, capacity, os.urandom(16))
    return keys


only_c = pytest.mark.skipif(native is None, reason="not compiled")
KINDS = [pytest.param(in_c, id="c", marks=only_c), pytest.param(DictKeys, id="python")]
both = pytest.mark.parametrize("make", KINDS)


def test_those_in_c_are_used_where_there_are_any() -> None:
    assert isinstance(recent_keys(1.0, 1), DictKeys if native is None else native.RecentKeys)


def test_those_in_python_are_used_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_native", None)
    assert isinstance(recent_keys(1.0, 1), DictKeys)


@both
def test_keys_are_forgotten_after_their_window(make: Make) -> None:
    keys = make(10.0, 100)
    assert keys.add("a", 0.0)
    assert (keys.add("a", 9.999), keys.holds("a", 9.999), keys.holds("a", 10.0)) == (False, True, False)
    assert keys.add("b", 6.0)
    assert keys.add("a", 10.0)  # the generation has turned
    assert (keys.add("b", 15.9), keys.add("b", 16.0)) == (False, True)
    keys.discard("b")
    keys.discard("nothing")
    assert (keys.holds("b", 16.0), keys.add("b", 16.0)) == (False, True)


@both
def test_at_least_half_of_the_capacity_is_remembered_and_never_more_than_all_of_it(make: Make) -> None:
    keys = make(1e9, 6)
    for number in range(50):
        assert keys.add(str(number), 0.0)
        assert len(keys) <= 6
        assert all(keys.holds(str(recent), 0.0) for recent in range(max(number - 2, 0), number + 1))


@both
@given(
    events=st.lists(
        st.tuples(st.sampled_from(["add", "add", "discard"]), st.integers(0, 40), st.integers(0, 2)), max_size=80
    ),
    window=st.integers(1, 40),
)
def test_keys_are_a_set_over_time(make: Make, events: list[tuple[str, int, int]], window: int) -> None:
    keys = make(window, 1 << 20)
    now = 0
    added: dict[str, int] = {}
    for what, number, wait in events:
        key = f"key {number}"
        now += wait
        if what == "discard":
            keys.discard(key)
            added.pop(key, None)
            assert not keys.holds(key, now)
            continue
        fresh = key not in added or now - added[key] >= window
        assert keys.add(key, now) is fresh
        if fresh:
            added[key] = now
    for number in range(41):
        key = f"key {number}"
        assert keys.holds(key, now) is (key in added and now - added[key] < window)


@both
def test_many_keys_stay_apart(make: Make) -> None:
    keys = make(60.0, 1 << 20)
    names = [f"chatcmpl-{number}" for number in range(50_000)]
    for first in range(0, len(names), 100):
        assert keys.add_each(names[first : first + 100], 0.0) == 100
    assert len(keys) == len(names)
    for name in names[::2]:
        keys.discard(name)
    assert [keys.holds(name, 1.0) for name in names] == [False, True] * (len(names) // 2)
    assert len(keys) == len(names) // 2
    assert keys.add_each(names[::2], 1.0) == len(names) // 2
    assert not any(keys.add(name, 2.0) for name in names)


@both
def test_keys_are_added_up_to_one_that_is_there(make: Make) -> None:
    keys = make(60.0, 1 << 20)
    names = [str(number) for number in range(300)]
    assert keys.add_each([], 0.0) == 0
    assert keys.add_each(names[:100], 0.0) == 100
    assert keys.add_each([*names[100:200], "0", "new"], 1.0) == 100
    assert (keys.holds("199", 1.0), keys.holds("new", 1.0)) == (True, False)
    assert keys.add_each((*names[200:], names[200]), 1.0) == 100  # twice among themselves
    assert keys.add_each(names, 60.0) == 100  # the others came a second later


@both
def test_every_string_is_a_key(make: Make) -> None:
    keys = make(60.0, 1 << 20)
    names = ["", "\0", "\0\0", "a", "ä", "ä" * 128, "a\u0300", "漢", "\U0001f600", "\ud800", "x" * 256, "x" * 257]
    assert keys.add_each(names, 0.0) == len(names)
    assert all(keys.holds("".join(list(name)), 1.0) for name in names)
    assert len(keys) == len(names)


def test_keys_that_have_aged_are_freed_a_few_at_a_time() -> None:
    keys = DictKeys(10.0, 1 << 20)
    for number in range(1000):
        keys.add(str(number), 0.0)
    keys.add("later", 10.0)
    assert len(keys) == 1001
    keys.add("still later", 20.0)
    assert len(keys) == 2
    assert sum(map(len, keys._fading)) == 1000 - MAX_FORGOTTEN
    for number in range(1000 // MAX_FORGOTTEN + TABLES):
        keys.add(f"new {number}", 20.0)
    assert keys._fading == []


def test_a_long_key_is_kept_as_its_digest() -> None:
    keys = DictKeys(10.0, 1 << 20)
    keys.add_each(["x" * size for size in (256, 257, 1_000_000)], 0.0)
    assert all(len(key) <= 256 for table in keys._young for key in table)


@only_c
def test_tables_that_have_aged_are_freed_a_few_at_a_time() -> None:
    keys = in_c(10.0, 1 << 20)
    bare = sys.getsizeof(keys)
    names = [str(number) for number in range(50_000)]
    keys.add_each(names, 0.0)
    full = sys.getsizeof(keys)
    assert 40 <= (full - bare) / len(names) <= 100
    keys.add("later", 10.0)
    keys.add("still later", 20.0)
    sizes = [sys.getsizeof(keys)]
    for number in range(300):
        keys.add(str(number), 20.0)
        sizes.append(sys.getsizeof(keys))
    assert sizes[0] > 0.9 * full
    assert all(before - after < (full - bare) / 50 for before, after in pairwise(sizes))
    assert sizes[-1] < bare + 0.02 * (full - bare)


@only_c
def test_a_generation_that_fades_waits_for_nobody() -> None:
    keys = in_c(10.0, 1 << 20)
    bare = sys.getsizeof(keys)
    keys.add_each([str(number) for number in range(50_000)], 0.0)
    full = sys.getsizeof(keys)
    sizes = [full]
    for number in range(300):  # each of them in a generation of its own
        keys.add("rare", 10.0 * (number + 1))
        sizes.append(sys.getsizeof(keys))
    assert all(before - after < (full - bare) / 50 for before, after in pairwise(sizes))
    assert sizes[-1] < bare + 0.02 * (full - bare)


@only_c
def test_what_the_keys_in_c_refuse() -> None:
    keys = in_c(10.0, 100)
    for wrong in (5, b"a", None):
        with pytest.raises(TypeError, match="a key must be a str"):
            keys.add(wrong, 0.0)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a key must be a str"):
            keys.add_each(["fine", wrong], 0.0)  # type: ignore[list-item]
        with pytest.raises(TypeError, match="a key must be a str"):
            keys.discard(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a list or tuple"):
        keys.add_each({"a": 1}, 0.0)  # type: ignore[arg-type]
    for method in (keys.add, keys.holds):
        with pytest.raises(TypeError, match="must be real number"):
            method("a", None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="got 1"):
            method("a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="must be real number"):
        keys.add_each(["a"], None)  # type: ignore[arg-type]
    assert len(keys) == 0
    with pytest.raises(ValueError, match="a secret has 16 bytes, not 3"):
        native.RecentKeys(1.0, 1, b"abc")
    with pytest.raises(TypeError, match="no arguments by name"):
        native.RecentKeys(1.0, 1, b"x" * 16, secret=b"")


@only_c
@pytest.mark.parametrize(
    ("size", "digest"),
    [(0, "a3817f04ba25a8e66df67214c7550293"), (1, "da87c1d86b99af44347659119b22fc45"),
     (2, "8177228da4a45dc7fca38bdef60affe4")],
)  # fmt: skip
def test_the_hash_is_siphash(size: int, digest: str) -> None:
    """The first of the vectors that come with its reference implementation."""
    assert native.siphash(bytes(range(16)), bytes(range(size))).hex() == digest
