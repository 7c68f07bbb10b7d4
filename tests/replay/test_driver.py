"""The load driver against a target that is a list, with as little real time as it takes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import pytest

from sidecar.errors import TransportError
from sidecar.replay.decode import MessageKind, peek
from sidecar.replay.driver import Driver, Options
from sidecar.replay.pacing import constant
from sidecar.replay.results import UNSEEN, Results
from sidecar.replay.targets import Seen
from sidecar.replay.workload import About, Shot
from sidecar.wire.framing import Framing
from sidecar.wire.msgpack import Buffer

MS = 1_000_000


class FakeTarget:
    """Takes `room` messages at a time (None: all), shows each as seen `delay` looks after it was sent."""

    def __init__(self, *, observes: bool = False, room: int | None = None, delay: int = 0, mute: bool = False) -> None:
        self.observes = observes
        self.sent: list[Sequence[Buffer]] = []
        self.waited = 0.0
        self.finished = False
        self.most = 0
        self._room = room
        self._delay = delay
        self._mute = mute
        self._pending: list[list[object]] = []

    def open(self, timeout_s: float) -> None:
        assert not self.sent

    def send(self, frames: Sequence[Buffer]) -> bool:
        if self._room == 0:
            return False
        if self._room is not None:
            self._room -= 1
        self.sent.append(frames)
        rid = peek(frames, Framing.NATIVE).rid or bytes(frames[0]).decode("latin-1")
        if peek(frames, Framing.NATIVE).kind is not MessageKind.ABORT:
            self._pending.append([rid, self._delay])
        self.most = max(self.most, len(self._pending))
        return True

    def send_many(self, shots: Sequence[Shot], times: list[int]) -> None:
        for shot in shots:
            if not self.send(shot.frames):
                return
            times.append(time.perf_counter_ns())

    def seen(self) -> Iterable[Seen]:
        if self._mute:
            return []
        done = []
        for entry in list(self._pending):
            if entry[1] == 0:
                self._pending.remove(entry)
                done.append(Seen(str(entry[0]), True, "forwarded"))
            else:
                entry[1] = int(str(entry[1])) - 1
        return done

    def wait(self, timeout_s: float) -> None:
        self.waited += timeout_s
        time.sleep(min(timeout_s, 0.001))

    def wait_writable(self, timeout_s: float) -> None:
        time.sleep(0.0005)

    def finish(self, timeout_s: float) -> None:
        self.finished = True

    def close(self) -> None: ...


def shots(n: int, kind: MessageKind = MessageKind.GENERATE) -> list[Shot]:
    return [Shot([b"rid-%d" % i], kind, About(5, "text", f"rid-{i}"), i) for i in range(n)]


def rids(results: Results) -> list[str]:
    return [about.rid for about in results.about]


def test_everything_is_sent_in_order() -> None:
    target = FakeTarget()
    driver = Driver(target, Options())
    results = driver.run(shots(1000))
    assert [bytes(frames[0]) for frames in target.sent] == [b"rid-%d" % i for i in range(1000)]
    assert target.finished
    assert len(results) == driver.sent == results.facts["messages"] == 1000
    assert rids(results) == [f"rid-{i}" for i in range(1000)]
    assert all(due <= sent for due, sent in zip(results.due, results.sent, strict=True))
    assert sorted(results.sent) == list(results.sent)
    assert set(results.done) == {UNSEEN}
    assert results.facts["observed"] is False


def test_other_messages_are_sent_and_not_measured() -> None:
    for options in (Options(), Options(pacer=constant(1e6))):
        target = FakeTarget()
        mixed = [shot for pair in zip(shots(20), shots(20, MessageKind.ABORT), strict=True) for shot in pair]
        results = Driver(target, options).run(mixed)
        assert (len(target.sent), len(results)) == (40, 20)
        assert rids(results) == [f"rid-{i}" for i in range(20)]


def test_what_is_seen_is_measured() -> None:
    results = Driver(FakeTarget(observes=True, delay=2), Options()).run(shots(100))
    assert set(results.outcome) == {"forwarded"}
    assert all(sent < done for sent, done in zip(results.sent, results.done, strict=True))
    assert results.first == results.done


def test_no_message_before_it_is_due() -> None:
    results = Driver(FakeTarget(), Options(pacer=constant(2000))).run(shots(40))
    assert list(results.due) == [i * 500_000 for i in range(40)]
    assert all(due <= sent for due, sent in zip(results.due, results.sent, strict=True))


def test_a_stall_shows_in_everything_that_was_due_meanwhile() -> None:
    class Stalling(FakeTarget):
        def send(self, frames: Sequence[Buffer]) -> bool:
            if len(self.sent) == 10:
                time.sleep(0.05)
            return super().send(frames)

    results = Driver(Stalling(), Options(pacer=constant(1000))).run(shots(60))
    late = [sent - due for due, sent in zip(results.due, results.sent, strict=True)]
    assert late[10] >= 50 * MS
    assert late[30] >= 20 * MS
    assert sum(delay >= 10 * MS for delay in late) >= 35


def test_concurrency_is_a_bound() -> None:
    target = FakeTarget(observes=True, delay=3)
    results = Driver(target, Options(concurrency=7)).run(shots(100))
    assert target.most == 7
    assert len(results) == 100


def test_a_duration_ends_an_endless_recording() -> None:
    def endless() -> Iterable[Shot]:
        while True:
            yield from shots(100)

    for options in (Options(duration_ns=20 * MS), Options(duration_ns=20 * MS, pacer=constant(10_000))):
        driver = Driver(FakeTarget(), options)
        driver.run(endless())
        assert driver.sent > 0


def test_a_warm_up_is_not_measured() -> None:
    results = Driver(FakeTarget(observes=True), Options(warmup=30)).run(shots(100))
    assert rids(results) == [f"rid-{i}" for i in range(30, 100)]
    results = Driver(FakeTarget(observes=True), Options(pacer=constant(1000), warmup_ns=50 * MS)).run(shots(100))
    assert 0 < len(results) <= 50


def test_a_share_of_the_requests_is_aborted() -> None:
    target = FakeTarget(observes=True, mute=True)
    driver = Driver(target, Options(abort_rate=1.0, abort_after_ns=5 * MS, seed=3))
    results = driver.run(shots(50))
    aborted = [peek(frames, Framing.NATIVE).rid for frames in target.sent if len(frames[0]) > 8]
    assert sorted(aborted) == sorted(rids(results))
    assert driver.aborts == 50
    assert set(results.outcome) == {"aborted"}


def test_the_seed_decides_which_are_aborted() -> None:
    def aborted(seed: int) -> set[str]:
        target = FakeTarget(observes=True)
        Driver(target, Options(abort_rate=0.3, abort_after_ns=1, seed=seed)).run(shots(60))
        return {peek(f, Framing.NATIVE).rid for f in target.sent if peek(f, Framing.NATIVE).kind is MessageKind.ABORT}

    assert aborted(1) == aborted(1) != aborted(2)
    assert 5 < len(aborted(1)) < 35


@pytest.mark.parametrize("observes", [True, False])
def test_a_target_that_takes_no_more_is_said(observes: bool) -> None:
    driver = Driver(FakeTarget(observes=observes, room=7), Options(timeout_s=0.05))
    with pytest.raises(TransportError, match=r"took 7 messages and then none for 0\.05 s"):
        driver.run(shots(20))
    assert driver.results.facts["messages"] == driver.sent


def test_requests_that_are_not_seen_again_are_said() -> None:
    driver = Driver(FakeTarget(observes=True, mute=True), Options(timeout_s=0.05))
    with pytest.raises(TransportError, match="20 of 20 messages were sent and not seen again"):
        driver.run(shots(20))
    assert driver.unseen == driver.results.facts["unseen"] == 20
    assert set(driver.results.outcome) == {"sent"}


def test_it_can_be_stopped() -> None:
    driver: Driver = Driver(FakeTarget(), Options(pacer=constant(10)), stopped=lambda: driver.sent >= 2)
    driver.run(shots(1000))
    assert driver.sent < 40
    with pytest.raises(KeyboardInterrupt):
        Driver(FakeTarget(room=1), Options(), stopped=iter([False, True, True]).__next__).run(shots(3))


def test_progress_counts_up() -> None:
    counts: list[int] = []
    Driver(FakeTarget(), Options(), progress=counts.append).run(shots(1000))
    assert counts[-1] == 1000
    assert counts == sorted(counts)
