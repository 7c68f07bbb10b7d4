"""The tap: what it passes on, and that it never waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from sidecar.errors import UsageError
from sidecar.recording import Direction, Framing
from sidecar.recording.tap import Tap, check_tap_address, parse_directions, read_tapped, tap_socket

LARGE = b"x" * 100_000


class Ends:
    """A tap and its recorder. The tap's socket queues few messages, so that a full queue is soon reached."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.pull = self.context.socket(zmq.PULL)
        self.pull.set(zmq.RCVHWM, 4)
        self.pull.bind(f"ipc://{folder}/tap.sock")
        self.push = tap_socket(self.context, f"ipc://{folder}/tap.sock")
        assert self.push.poll(5000, zmq.POLLOUT)

    def receive(self) -> list[bytes]:
        assert self.pull.poll(5000)
        return self.pull.recv_multipart()


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    pair = Ends(tmp_path)
    yield pair
    pair.context.destroy(linger=0)


@pytest.mark.parametrize("frames", [[b"payload"], [b"\x00", b"payload", LARGE]])
def test_what_is_offered_arrives(ends: Ends, frames: list[bytes]) -> None:
    tap = Tap(ends.push)
    tap.offer(Direction.EGRESS, Framing.TYPED, frames, "rejected")
    record, dropped = read_tapped(ends.receive())
    assert list(record.frames) == frames
    assert (record.direction, record.framing) == (Direction.EGRESS, Framing.TYPED)
    assert record.metadata == {"outcome": "rejected"}
    assert record.wall_ns > 0
    assert record.mono_ns > 0
    assert (tap.sent, tap.dropped, dropped) == (1, 0, 0)


def test_only_what_was_asked_for_is_passed_on(ends: Ends) -> None:
    tap = Tap(ends.push, parse_directions("egress"))
    tap.offer(Direction.INGRESS, Framing.NATIVE, [b"in"])
    tap.offer(Direction.EGRESS, Framing.NATIVE, [b"out"])
    assert list(read_tapped(ends.receive())[0].frames) == [b"out"]
    assert tap.sent == 1


def test_a_recorder_that_takes_nothing_costs_messages_not_time(ends: Ends) -> None:
    tap = Tap(ends.push, max_bytes=1 << 20)
    for _ in range(200):
        tap.offer(Direction.INGRESS, Framing.NATIVE, [LARGE])
    assert tap.dropped > 0
    assert tap.sent + tap.dropped == 200
    assert not tap.abandoned
    for _ in range(tap.sent):
        ends.receive()
    tap.offer(Direction.INGRESS, Framing.NATIVE, [b"later"])
    assert read_tapped(ends.receive())[1] == tap.dropped


def test_a_recorder_that_has_gone_is_noticed(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    tap = Tap(ends.push)
    ends.pull.close(linger=0)
    while tap.dropped < 3:
        tap.offer(Direction.INGRESS, Framing.NATIVE, [LARGE])
    assert not tap.abandoned
    monkeypatch.setattr("sidecar.recording.tap._ABANDONED_NS", 0)
    assert tap.abandoned
    tap.close()
    tap.offer(Direction.INGRESS, Framing.NATIVE, [b"into nothing"])


@pytest.mark.parametrize("frames", [[], [b"short"], [b"x" * 60], [b"STAP" + b"\xff" * 40]])
def test_what_is_no_tap_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(UsageError, match="tap"):
        read_tapped(frames)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "ipc://relative", "ipc:///" + "x" * 120, "", "ipc://@name"])
def test_a_tap_stays_on_the_host(address: str) -> None:
    with pytest.raises(UsageError, match="a tap goes to"):
        check_tap_address(address)


def test_directions() -> None:
    assert parse_directions("both") == {Direction.INGRESS, Direction.EGRESS}
    assert parse_directions("output") == {Direction.OUTPUT}
    with pytest.raises(UsageError, match="expected ingress, egress, output or both"):
        parse_directions("sideways")
