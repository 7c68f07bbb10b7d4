"""Which requests an engine has, as far as it can be known from what passes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.service.open_requests import ENDED_WINDOW_S, OpenRequests
from sidecar.wire.outputs import Outputs


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make() -> tuple[OpenRequests, list[str], Clock]:
    """The table, the rids that it has freed, and its clock."""
    freed: list[str] = []
    clock = Clock()
    return OpenRequests(freed.append, clock), freed, clock


def test_the_last_output_frees_a_rid() -> None:
    requests, freed, _ = make()
    requests.add("a")
    assert requests.observe(Outputs(["a"], [])) == []
    assert (len(requests), freed) == (1, [])
    assert requests.observe(Outputs(["a"], ["a"])) == []
    assert (len(requests), freed) == (0, ["a"])


def test_an_aborted_rid_is_live_until_the_engine_says_so_or_long_enough() -> None:
    requests, freed, clock = make()
    for rid in "ab":
        requests.add(rid)
    requests.end(["a", "b", "unknown"])
    assert len(requests) == 0
    assert requests.observe(Outputs(["a", "b"], ["b"])) == []
    assert freed == ["b"]
    clock.now += ENDED_WINDOW_S - 0.1
    requests.expire()
    assert freed == ["b"]
    clock.now += 0.2
    requests.expire()
    assert freed == ["b", "a"]


def test_what_nobody_waits_for_is_told_once() -> None:
    requests, freed, _ = make()
    requests.add("a")
    assert requests.observe(Outputs(["a", "x", "y"], ["y"])) == ["x"]
    assert requests.observe(Outputs(["x"], [])) == []
    assert requests.observe(Outputs(["x"], ["x"])) == []
    assert freed == ["x"]


def test_a_dead_engine_has_nothing() -> None:
    requests, freed, _ = make()
    for rid in "abc":
        requests.add(rid)
    requests.end(["b"])
    assert requests.clear() == ["a", "c"]
    assert sorted(freed) == ["a", "b", "c"]
    assert len(requests) == 0


def test_end_all() -> None:
    requests, freed, _ = make()
    for rid in "ab":
        requests.add(rid)
    assert requests.end_all() == ["a", "b"]
    assert requests.end_all() == []
    assert freed == []


rids = st.sampled_from("abcd")
steps = st.lists(st.tuples(st.sampled_from(["add", "end", "output", "last", "expire", "clear"]), rids), max_size=40)


@given(steps)
def test_a_rid_is_freed_once_for_every_time_that_it_was_given(sequence: list[tuple[str, str]]) -> None:
    """Whatever happens: no rid is freed while it is open, and none is forgotten."""
    requests, freed, clock = make()
    given_out: dict[str, int] = dict.fromkeys("abcd", 0)
    strangers: dict[str, int] = dict.fromkeys("abcd", 0)
    live: set[str] = set()
    for step, rid in sequence:
        before = len(freed)
        if step == "add" and rid not in live:
            requests.add(rid)
            given_out[rid] += 1
            live.add(rid)
        elif step == "end":
            requests.end([rid])
        elif step in ("output", "last"):
            for stranger in requests.observe(Outputs([rid], [rid] if step == "last" else [])):
                strangers[stranger] += 1
                live.add(stranger)
        elif step == "expire":
            clock.now += ENDED_WINDOW_S + 1
            requests.expire()
        elif step == "clear":
            requests.clear()
        for gone in freed[before:]:
            assert gone in live
            live.discard(gone)
    requests.clear()
    for rid in "abcd":
        assert freed.count(rid) == given_out[rid] + strangers[rid]
