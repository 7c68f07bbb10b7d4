"""What is remembered of forwarded requests: for how long, how much of it, and what it forbids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.admission import memory
from sidecar.admission.memory import Content, ContentMemory, Recent, RidMemory
from sidecar.errors import Reason, Rejection
from sidecar.wire.tokenspeed import Modality


def test_recent_forgets_after_its_window() -> None:
    recent: Recent[str] = Recent(10.0, 100)
    recent.put("a", "x", 0.0)
    assert recent.get("a", 9.999) == "x"
    assert recent.get("a", 10.0) is None
    recent.put("a", "y", 5.0)
    assert recent.get("a", 14.9) == "y"
    recent.put("b", "z", 20.0)
    assert len(recent) == 1
    recent.discard("b")
    recent.discard("nothing")
    assert len(recent) == 0


def test_recent_forgets_the_oldest_when_it_is_full() -> None:
    recent: Recent[int] = Recent(1e9, 3)
    for number in range(10):
        recent.put(number, number, float(number))
    assert [number for number in range(10) if recent.get(number, 10.0) is not None] == [7, 8, 9]
    recent.put(7, 7, 11.0)  # renewed, so 8 is the oldest
    recent.put(99, 99, 12.0)
    assert [number for number in (7, 8, 9, 99) if recent.get(number, 12.0) is not None] == [7, 9, 99]


def test_recent_forgets_a_few_at_a_time_however_many_have_aged() -> None:
    recent: Recent[int] = Recent(10.0, 1 << 20)
    for number in range(1000):
        recent.put(number, number, 0.0)
    recent.put("late", 1, 100.0)
    assert len(recent) == 1001 - memory.MAX_FORGOTTEN
    assert recent.get(999, 100.0) is None  # forgotten all the same
    for number in range(400):
        recent.put(f"new {number}", number, 100.0)
    assert len(recent) == 401


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=60), st.integers(1, 6), st.integers(0, 8))
def test_recent_is_a_bounded_map_over_time(events: list[tuple[int, int]], capacity: int, window: int) -> None:
    recent: Recent[int] = Recent(window, capacity)
    now = 0
    log: list[tuple[int, int]] = []
    for key, wait in events:
        now += wait
        recent.put(key, now, now)
        log = [(other, when) for other, when in log if other != key] + [(key, now)]
        assert len(recent) <= capacity
        for other in range(6):
            got = recent.get(other, now)
            kept = [when for known, when in log[-capacity:] if known == other and now - when < window]
            assert got == (kept[0] if kept else None)


def test_rids_live_within_the_window() -> None:
    rids = RidMemory(30.0)
    assert not rids.is_live("a", 0.0)
    rids.claim("a", 0.0)
    assert rids.is_live("a", 29.9)
    assert not rids.is_live("a", 30.0)
    assert not rids.is_live("b", 1.0)
    rids.claim("", 31.0)
    assert rids.is_live("", 31.0)
    assert len(rids) == 2
    rids.claim("c", 62.0)
    assert len(rids) == 2


def test_a_window_of_zero_remembers_nothing() -> None:
    rids = RidMemory(0.0)
    rids.claim("a", 5.0)
    assert (rids.is_live("a", 5.0), len(rids)) == (False, 0)
    contents = ContentMemory(0.0)
    contents.forwarded([content()], 5.0)
    assert len(contents) == 0


def test_exact_rids_live_until_they_finish() -> None:
    rids = RidMemory(30.0, exact=True)
    rids.claim("a", 0.0)
    assert rids.is_live("a", 1e9)
    rids.finish("a")
    rids.finish("never seen")
    assert (rids.is_live("a", 0.0), len(rids)) == (False, 0)


@pytest.mark.parametrize("exact", [False, True])
def test_long_rids_are_told_apart(exact: bool) -> None:
    rids = RidMemory(30.0, exact=exact)
    long = ["x" * 1_000_000 + str(number) for number in range(3)]
    assert [rids.claim(rid, 0.0) for rid in (long[0], long[1], long[0])] == [True, True, False]
    assert [rids.is_live(rid, 1.0) for rid in long] == [True, True, False]
    rids.withdraw(long[0])
    rids.finish(long[1])
    assert [rids.is_live(rid, 1.0) for rid in long] == [False, not exact, False]


@pytest.mark.parametrize(("exact", "window"), [(False, 30.0), (True, 30.0), (False, 0.0)])
def test_rids_are_claimed_up_to_one_that_is_live(exact: bool, window: float) -> None:
    rids = RidMemory(window, exact=exact)
    assert rids.claim_each([], 0.0) == 0
    assert rids.claim_each(["a", "b", "c", "b", "d"], 0.0) == (3 if window else 5)
    assert [rids.is_live(rid, 0.0) for rid in "abcd"] == ([True, True, True, False] if window else [False] * 4)


def content(
    ordinal: int = 0,
    modality: Modality = Modality.IMAGE,
    hash: int | None = 5,
    pad: int = 1_000_005,
    tokens: int = 4,
    dtype: str | None = "float32",
    shape: tuple[int, ...] | None = (16, 24),
) -> Content:
    return Content(ordinal, modality, hash, pad, tokens, dtype, shape)


def check(known: list[Content], new: list[Content], now: float = 1.0) -> str | None:
    contents = ContentMemory(30.0)
    contents.check(known, 0.0)
    contents.forwarded(known, 0.0)
    refusal = refusal_of(contents, new, now)
    assert refusal is None or refusal.reason is Reason.HASH_CONFLICT
    return None if refusal is None else refusal.message


def refusal_of(contents: ContentMemory, new: list[Content], now: float) -> Rejection | None:
    try:
        contents.check(new, now)
    except Rejection as rejection:
        return rejection
    return None


@pytest.mark.parametrize(
    "changed",
    [{"tokens": 6}, {"dtype": "bfloat16"}, {"shape": (24, 16)}, {"modality": Modality.VIDEO, "pad_value": 800_000_000}],
)
def test_a_hash_stands_for_one_content(changed: dict[str, object]) -> None:
    new = content(3)._replace(**changed)  # type: ignore[arg-type]
    message = check([content()], [new]) or ""
    assert message.startswith("item 3: the hash 5 is known with ")
    assert check([content()], [new], now=30.0) is None
    assert "item 3" in (check([], [content(), new]) or "")


def test_the_same_content_again_is_fine() -> None:
    assert check([content()], [content(), content(1)]) is None


def test_what_is_not_known_is_no_conflict() -> None:
    elsewhere = content(dtype=None, shape=None)
    assert check([content()], [elsewhere]) is None
    assert check([elsewhere], [content()]) is None
    assert check([content(hash=None)], [content()]) is None
    assert check([content()], [content(hash=None)]) is None


def test_a_pad_stands_for_one_content() -> None:
    message = check([content()], [content(2, hash=6)]) or ""
    assert message == ("item 2: the pad value 1000005 of the hash 6 is live for another content, whose hash is 5")
    assert "item 1" in (check([], [content(), content(1, hash=6)]) or "")
    assert "tokens 6, not 4" in (check([content(hash=None)], [content(hash=None, tokens=6)]) or "")


def test_the_memory_of_contents_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CONTENT_CAPACITY", 50)
    contents = ContentMemory(1e9)
    for number in range(500):
        contents.forwarded([content(hash=number, pad=1_000_000 + number)], float(number))
    assert len(contents) == 50


@pytest.mark.parametrize("exact", [False, True])
def test_a_rid_that_was_not_taken_is_free(exact: bool) -> None:
    memory = RidMemory(30.0, exact=exact)
    memory.claim("a", 0.0)
    memory.withdraw("a")
    memory.withdraw("never seen")
    assert not memory.is_live("a", 0.0)
    assert len(memory) == 0
