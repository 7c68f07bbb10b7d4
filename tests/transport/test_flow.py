"""Back-pressure: when reading stops, when it goes on, and for how long it stood still."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.transport.flow import FlowControl


class Watched:
    """A control with a clock of its own and a list of what it asked for."""

    def __init__(self, max_bytes: int, max_messages: int) -> None:
        self.now = 0.0
        self.changes: list[bool] = []
        self.flow = FlowControl(max_bytes, max_messages, lambda: self.now)
        self.flow.on_change = self.changes.append


def test_bytes_pause_and_resume() -> None:
    watched = Watched(100, 1000)
    flow = watched.flow
    flow.take(60)
    assert not flow.paused
    flow.take(60)  # known to be too much only when it is here
    assert flow.paused
    watched.now = 2.0
    assert flow.paused_seconds == 2.0
    flow.give(10, 1)
    assert flow.paused
    flow.give(50, 1)
    assert not flow.paused
    assert watched.changes == [True, False]
    watched.now = 5.0
    assert flow.paused_seconds == 2.0


def test_messages_pause_and_resume() -> None:
    watched = Watched(10**9, 2)
    watched.flow.take(1)
    watched.flow.take(1)
    assert watched.changes == [True]
    watched.flow.give(0, 1)
    assert watched.changes == [True, False]


def test_one_message_larger_than_the_bound_is_taken_alone() -> None:
    watched = Watched(100, 1000)
    watched.flow.take(5000)
    assert watched.changes == [True]
    watched.flow.give(5000, 1)
    assert watched.changes == [True, False]


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 100), st.integers(1, 10))
def test_paused_exactly_while_a_bound_is_reached(sizes: list[int], max_bytes: int, max_messages: int) -> None:
    watched = Watched(max_bytes, max_messages)
    flow = watched.flow
    held: list[int] = []
    for size in sizes:
        if flow.paused:
            flow.give(held.pop(), 1)
        else:
            held.append(size)
            flow.take(size)
        assert flow.bytes == sum(held)
        assert flow.messages == len(held)
        assert flow.paused == (flow.bytes >= max_bytes or flow.messages >= max_messages)
    assert watched.changes == [index % 2 == 0 for index in range(len(watched.changes))]
