"""Ingress and egress on real sockets: batches, references, releases, peers that leave in the middle."""

from __future__ import annotations

import asyncio
import itertools
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq

from sidecar.transport import egress
from sidecar.transport.egress import REFERENCE_BYTES, Egress
from sidecar.transport.ingress import BATCH_MESSAGES, Ingress
from sidecar.wire.msgpack import Buffer
from tests.service.loops import Run
from tests.transport.test_monitor import until


class Pair:
    """A pipe between two sockets: `far` is the test's end, `near` the one under test."""

    def __init__(self, near: int, far: int, hwm: int) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.near = self._socket(near, hwm)
        self.far = self._socket(far, hwm)
        self.address = f"tcp://127.0.0.1:{self.near.bind_to_random_port('tcp://127.0.0.1')}"
        self.far.connect(self.address)
        self.hwm = hwm

    def _socket(self, kind: int, hwm: int) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.set_hwm(hwm)
        socket.linger = 0
        socket.immediate = 1
        return socket

    def another(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._socket(kind, self.hwm)
        socket.connect(self.address)
        return socket


@contextmanager
def pair(near: int, far: int, hwm: int = 8) -> Iterator[Pair]:
    made = Pair(near, far, hwm)
    try:
        yield made
    finally:
        made.context.destroy(linger=0)


class Sender:
    """An egress with what it called back."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.writable = 0
        self.released = 0
        self.room = asyncio.Event()
        self.egress = Egress(socket, self._on_writable, self._on_release)

    def _on_writable(self) -> None:
        self.writable += 1
        self.room.set()

    def _on_release(self, nbytes: int) -> None:
        self.released += nbytes

    async def send(self, frames: list[Buffer], nbytes: int) -> None:
        while not self.egress.send(frames, nbytes):
            self.room.clear()
            await self.room.wait()


def test_ingress_takes_everything_and_shares_the_loop(run: Run) -> None:
    async def body() -> None:
        with pair(zmq.PULL, zmq.PUSH, hwm=5000) as pipe:
            got: list[Buffer] = []
            turns: list[int] = []
            ingress = Ingress(pipe.near, lambda frames, _: got.append(frames[0]))
            for number in range(2000):
                pipe.far.send(b"%d" % number)
            await asyncio.sleep(0.1)
            ingress.resume()
            while len(got) < 2000:
                turns.append(len(got))
                await asyncio.sleep(0)
            assert [int(bytes(frame)) for frame in got] == list(range(2000))
            assert max(later - earlier for earlier, later in itertools.pairwise(turns)) <= 2 * BATCH_MESSAGES
            assert ingress.messages == 2000
            ingress.close()

    run(body())


def test_ingress_pauses_within_a_batch_and_loses_nothing(run: Run) -> None:
    async def body() -> None:
        with pair(zmq.PULL, zmq.PUSH, hwm=1000) as pipe:
            got: list[bytes] = []
            ingress = Ingress(pipe.near, lambda frames, _: take(bytes(frames[0])))

            def take(frame: bytes) -> None:
                got.append(frame)
                ingress.pause()

            for number in range(50):
                pipe.far.send(b"%d" % number)
            for expected in range(50):
                ingress.resume()
                await until(lambda: len(got) > expected)  # noqa: B023 - awaited before it changes
                await asyncio.sleep(0)
                assert len(got) == expected + 1
            assert got == [b"%d" % number for number in range(50)]
            ingress.close()

    run(body())


def test_a_handler_that_fails_ends_nothing(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        with pair(zmq.PULL, zmq.PUSH) as pipe:
            got: list[bytes] = []

            def handler(frames: list[Buffer], nbytes: int) -> None:
                if frames[0] == b"bad":
                    raise ValueError("secret prompt")
                got.append(bytes(frames[0]))

            ingress = Ingress(pipe.near, handler)
            ingress.resume()
            pipe.far.send(b"bad")
            pipe.far.send(b"good")
            await until(lambda: got == [b"good"])
            ingress.close()

    run(body())
    assert "1 frames and 3 bytes" in caplog.text


def test_views_outlive_their_frames_and_later_messages(run: Run) -> None:
    async def body() -> None:
        with pair(zmq.PULL, zmq.PUSH, hwm=10_000) as pipe:
            kept: list[Buffer] = []
            ingress = Ingress(pipe.near, lambda frames, _: kept.extend(frames[1:]))
            ingress.resume()
            sums = []
            for size in (REFERENCE_BYTES - 1, REFERENCE_BYTES, 1 << 20):
                data = bytes(index * size % 251 for index in range(1000)) * (size // 1000 + 1)
                sums.append(zlib.crc32(data[:size]))
                pipe.far.send_multipart([b"head", data[:size]])
            for number in range(5000):
                pipe.far.send(b"%d" % number)
            await until(lambda: ingress.messages == 5003)
            assert [zlib.crc32(view) for view in kept] == sums
            assert [isinstance(view, bytes) for view in kept] == [True, False, False]
            ingress.close()

    run(body())


def test_forwarding_by_reference_keeps_every_byte(run: Run) -> None:
    async def body() -> None:
        with pair(zmq.PULL, zmq.PUSH) as one, pair(zmq.PUSH, zmq.PULL) as two:
            sender = Sender(two.near)
            received: list[tuple[list[Buffer], int]] = []
            ingress = Ingress(one.near, lambda frames, nbytes: received.append((frames, nbytes)))
            ingress.resume()
            data = [bytes([number]) * (300_000 + number) for number in range(20)]
            total = 0
            for frame in data:
                one.far.send_multipart([b"head", frame, b""])
                await until(lambda: received)
                frames, nbytes = received.pop()
                total += nbytes
                await sender.send(frames, nbytes)
                del frames
                got = await asyncio.to_thread(two.far.recv_multipart)
                assert got == [b"head", frame, b""]
            await until(lambda: sender.released == total)
            assert sender.egress.leased == 0
            assert sender.egress.releases == 20
            sender.egress.close(0)
            ingress.close()

    run(body())


def test_messages_are_sent_up_to_one_that_is_not_taken(run: Run) -> None:
    async def body() -> None:
        with pair(zmq.PUSH, zmq.PULL, hwm=4) as pipe:
            sender = Sender(pipe.near)
            messages: list[list[Buffer]] = [[b"%d" % number] if number % 3 else [b"%d" % number, b"x"]
                                            for number in range(100)]  # fmt: skip
            assert sender.egress.send_each([]) == 0
            await until(lambda: sender.egress.takes(1))
            sent = sender.egress.send_each(messages)
            assert 0 < sent < 100
            assert sender.egress.blocked
            got = []
            while sent < 100:
                got.append(await asyncio.to_thread(pipe.far.recv_multipart))
                sent += sender.egress.send_each(messages[sent:])
            while len(got) < 100:
                got.append(await asyncio.to_thread(pipe.far.recv_multipart))
            assert got == messages
            assert sender.released == 0
            sender.egress.close(0)

    run(body())


def test_bytes_are_released_only_when_the_peer_has_them(run: Run) -> None:
    async def body() -> None:
        with pair(zmq.PUSH, zmq.PULL, hwm=4) as pipe:
            sender = Sender(pipe.near)
            frame = bytes(8 << 20)
            sent = 0
            await sender.send([frame], len(frame))
            sent += 1
            for _ in range(200):
                if sender.egress.send([frame], len(frame)):
                    sent += 1
                await asyncio.sleep(0.001)
            assert sender.egress.blocked
            held = sent * len(frame) - sender.released
            assert held == sender.egress.leased
            assert held >= 4 * len(frame)  # what the kernel took of the first ones is the peer's now
            for _ in range(sent):
                assert len(await asyncio.to_thread(pipe.far.recv)) == len(frame)
            await until(lambda: sender.released == sent * len(frame))
            assert sender.egress.leased == 0
            sender.egress.close(0)

    run(body())


def test_nothing_queues_for_a_peer_that_is_not_there(run: Run) -> None:
    async def body() -> None:
        with pair(zmq.PUSH, zmq.PULL) as pipe:
            pipe.far.close()
            sender = Sender(pipe.near)
            await asyncio.sleep(0.1)
            assert not sender.egress.send([b"x"], 1)
            assert not sender.egress.send([bytes(100_000)], 100_000)
            assert sender.egress.blocked
            assert sender.writable == 0
            peer = pipe.another(zmq.PULL)
            await until(lambda: sender.writable)
            assert not sender.egress.blocked
            await sender.send([b"y"], 1)
            assert await asyncio.to_thread(peer.recv) == b"y"
            assert sender.released == 1
            sender.egress.close(0)

    run(body())


def test_large_messages_are_paced(run: Run) -> None:
    async def body() -> None:
        with pair(zmq.PUSH, zmq.PULL, hwm=8) as pipe:
            sender = Sender(pipe.near)
            frame = bytes(16 << 20)
            await until(lambda: sender.egress.takes(len(frame)))
            sent = 0
            while sender.egress.takes(len(frame)):
                assert sender.egress.send([frame], len(frame))
                sent += 1
                await asyncio.sleep(0.05)  # the peer's own pipe takes some
            assert len(frame) <= sender.egress.leased <= 2 * len(frame)
            assert sender.egress.takes(100)
            before = sender.writable
            for _ in range(sent):
                assert len(await asyncio.to_thread(pipe.far.recv)) == len(frame)
            await until(lambda: sender.writable > before)
            assert sender.egress.takes(len(frame))
            sender.egress.close(0)

    run(body())


@pytest.mark.parametrize("sizes", [(10,), (10, 20), (10, 100_000), (100_000, 10, 100_000)])
def test_a_blocked_message_leaves_whole_when_there_is_room(run: Run, sizes: tuple[int, ...]) -> None:
    async def body() -> None:
        with pair(zmq.PUSH, zmq.PULL, hwm=2) as pipe:
            sender = Sender(pipe.near)
            message: list[Buffer] = [bytes([index]) * size for index, size in enumerate(sizes)]
            got: list[list[bytes]] = []

            def read(count: int) -> None:
                for _ in range(count):
                    got.append(pipe.far.recv_multipart())

            reader = threading.Thread(target=read, args=(300,))
            await sender.send(message, sum(sizes))
            await asyncio.sleep(0.05)
            reader.start()
            for _ in range(299):
                await sender.send(message, sum(sizes))
            await asyncio.to_thread(reader.join)
            assert got == [message] * 300
            await until(lambda: sender.released == 300 * sum(sizes))
            sender.egress.close(0)

    run(body())


def test_a_peer_that_leaves_in_the_middle_of_a_message(run: Run) -> None:
    """libzmq drops the rest of that message without a word; the next one must arrive whole."""

    async def body() -> None:
        with pair(zmq.PUSH, zmq.PULL) as pipe:
            sender = Sender(pipe.near)
            await sender.send([b"first"], 5)
            assert await asyncio.to_thread(pipe.far.recv) == b"first"
            original: Callable[..., Any] = sender.egress._send
            calls = 0

            def leaving(*arguments: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == 2:
                    pipe.far.close()
                    pipe.near.poll(100, zmq.POLLIN)  # lets libzmq notice
                return original(*arguments)

            sender.egress._send = leaving
            sender.egress.send([b"a", b"b", b"c"], 3)
            sender.egress._send = original
            peer = pipe.another(zmq.PULL)
            await sender.send([b"d", b"e", b"f"], 3)
            assert await asyncio.to_thread(peer.recv_multipart) == [b"d", b"e", b"f"]
            sender.egress.close(0)

    run(body())


class Refusing:
    """A socket that says EAGAIN to the frames of the given calls."""

    def __init__(self, socket: zmq.Socket[bytes], *calls: int) -> None:
        self.sent: list[tuple[bytes, int]] = []
        self._refused = set(calls)
        self._socket = socket
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def send(self, data: bytes, flags: int, copy: bool = True) -> None:
        self._calls += 1
        if self._calls in self._refused:
            raise zmq.Again
        self.sent.append((data, flags))


@pytest.mark.parametrize(("refused", "ends"), [(1, 0), (2, 1), (3, 0)])
def test_what_libzmq_would_swallow_gets_an_end(run: Run, refused: int, ends: int) -> None:
    """EAGAIN in the middle: libzmq now drops frames up to the next one without SNDMORE."""

    async def body() -> None:
        with pair(zmq.PUSH, zmq.PULL) as pipe:
            socket = Refusing(pipe.near, refused)
            sender = Sender(socket)  # type: ignore[arg-type]
            assert not sender.egress.send([b"a", b"b", b"c"], 3)
            assert socket.sent[refused - 1 :] == [(b"", zmq.NOBLOCK)] * ends
            assert sender.released == 0
            sender.egress.close(0)

    run(body())


def test_two_large_messages_wait_where_nothing_small_does(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "ALONE", 3)
    frame = bytes(16 << 20)  # more than the kernel takes, so that it stays libzmq's until it is read

    async def body() -> None:
        with pair(zmq.PUSH, zmq.PULL, hwm=8) as pipe:
            sender = Sender(pipe.near)
            await until(lambda: sender.egress.takes(len(frame)))
            while len(sender.egress._leases) < 2:
                if sender.egress.takes(len(frame)):
                    assert sender.egress.send([frame], len(frame))
                else:
                    assert len(await asyncio.to_thread(pipe.far.recv)) == len(frame)
                await asyncio.sleep(0.02)
            assert sender.egress._in_a_row > 3
            assert not sender.egress.takes(len(frame))
            assert sender.egress.send([b"small"], 5)
            assert sender.egress._in_a_row == 0
            while await asyncio.to_thread(pipe.far.recv) != b"small":
                pass
            await until(lambda: sender.egress.leased == 0)
            sender.egress.close(0)

    run(body())
