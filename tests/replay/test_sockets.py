"""Addresses, delivery and the targets, on real sockets."""

from __future__ import annotations

import socket as plain
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
import zmq

from sidecar.errors import TransportError, UsageError
from sidecar.replay.decode import MessageKind
from sidecar.replay.driver import Driver, Options
from sidecar.replay.endpoint import check_address, open_socket
from sidecar.replay.gateway import GatewayTarget
from sidecar.replay.receive import StopSignals, receive
from sidecar.replay.targets import PushTarget, wait_readable
from sidecar.replay.workload import About, Shot
from sidecar.wire.framing import Framing
from tests.build import frames, request

Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def context() -> Iterator[Context]:
    context: Context = zmq.Context()
    yield context
    context.destroy(linger=0)


def shots(n: int, size: int = 0, framing: Framing = Framing.NATIVE) -> list[Shot]:
    messages = [[*frames(request(f"r{i}")), *([bytes(size)] if size else [])] for i in range(n)]
    if framing is Framing.TYPED:
        messages = [[b"\x00", *message] for message in messages]
    abouts = [About(sum(map(len, message)), "text", f"r{i}") for i, message in enumerate(messages)]
    return [Shot(m, MessageKind.GENERATE, about, 0) for m, about in zip(messages, abouts, strict=True)]


class Taker(threading.Thread):
    """A PULL on a thread and a context of its own that takes `n` messages, the first after `pause` seconds."""

    def __init__(self, address: str, n: int, pause: float = 0.0, hwm: int = 8) -> None:
        super().__init__()
        self.context: Context = zmq.Context()
        self.taken: list[list[bytes]] = []
        self._n, self._pause = n, pause
        self._socket = self.context.socket(zmq.PULL)
        self._socket.set(zmq.RCVHWM, hwm)
        self._socket.bind(address)

    def run(self) -> None:
        time.sleep(self._pause)
        while len(self.taken) < self._n and self._socket.poll(3000):
            self.taken.append(self._socket.recv_multipart())
        time.sleep(0.1)  # who leaves at once leaves the sender in doubt
        self.context.destroy(linger=0)


@pytest.mark.parametrize("address", ["", "ipc://", "tcp://host", "udp://x:1", "/tmp/x.sock", "x"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError):
        check_address(address)


def test_a_path_that_is_too_long_says_by_how_much() -> None:
    with pytest.raises(UsageError, match="has 120 bytes, a socket's has at most 107"):
        check_address("ipc:///" + "ü" * 59 + "x")


def test_an_address_in_use_is_refused(context: Context, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/new/x.sock"
    first = open_socket(context, zmq.PULL, bind=address)
    with pytest.raises(TransportError, match="another process listens there"):
        open_socket(context, zmq.PULL, bind=address)
    first.close()


def test_a_file_is_not_deleted(context: Context, tmp_path: Path) -> None:
    (tmp_path / "x.sock").write_text("precious")
    with pytest.raises(TransportError, match="no socket lies there"):
        open_socket(context, zmq.PULL, bind=f"ipc://{tmp_path}/x.sock")
    assert (tmp_path / "x.sock").read_text() == "precious"


def test_a_stale_socket_is_taken_over(context: Context, tmp_path: Path) -> None:
    left = plain.socket(plain.AF_UNIX)
    left.bind(str(tmp_path / "x.sock"))
    left.close()
    open_socket(context, zmq.PULL, bind=f"ipc://{tmp_path}/x.sock").close()


def test_a_port_in_use(context: Context) -> None:
    with plain.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(TransportError, match="cannot bind tcp://127"):
            open_socket(context, zmq.PULL, bind=f"tcp://127.0.0.1:{taken.getsockname()[1]}")


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_slow_peer_gets_everything(context: Context, tmp_path: Path, transport: str) -> None:
    """More than all queues hold, taken long after it was sent: closing waits for it."""
    address = f"ipc://{tmp_path}/x.sock"
    if transport == "tcp":
        with plain.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    taker = Taker(address, 300, pause=0.3)
    taker.start()
    target = PushTarget(context, connect=address, hwm=1000)
    Driver(target, Options(timeout_s=5)).run(shots(300, 2000))
    target.close()
    taker.join()
    assert len(taker.taken) == 300


def test_a_peer_that_takes_nothing_is_said(context: Context, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/x.sock"
    stuck: Context = zmq.Context()
    socket = stuck.socket(zmq.PULL)
    socket.set(zmq.RCVHWM, 1)
    socket.bind(address)
    target = PushTarget(context, connect=address, hwm=1000)
    with pytest.raises(TransportError, match=r"has stopped taking messages: [0-9]+ bytes or more unread"):
        Driver(target, Options(timeout_s=0.2)).run(shots(300, 2000))
    target.close()
    stuck.destroy(linger=0)


def test_a_peer_that_is_not_there_is_said(context: Context, tmp_path: Path) -> None:
    target = PushTarget(context, connect=f"ipc://{tmp_path}/x.sock")
    with pytest.raises(TransportError, match="nobody is at ipc://"):
        Driver(target, Options(timeout_s=0.05)).run(shots(1))
    target.close()


def test_a_peer_that_leaves_in_the_middle_is_said(context: Context, tmp_path: Path) -> None:
    taker = Taker(f"ipc://{tmp_path}/x.sock", 5)
    taker.start()
    target = PushTarget(context, connect=f"ipc://{tmp_path}/x.sock", hwm=8)
    with pytest.raises(TransportError, match="has stopped reading, or has left"):
        Driver(target, Options(timeout_s=0.3)).run(shots(2000, 2000))
    assert target.disconnects == 1
    target.close()
    taker.join()


def test_a_bound_target(context: Context, tmp_path: Path) -> None:
    target = PushTarget(context, bind=f"ipc://{tmp_path}/x.sock")
    pull = open_socket(context, zmq.PULL, connect=f"ipc://{tmp_path}/x.sock")
    Driver(target, Options()).run(shots(50))
    with StopSignals() as stop:
        assert len(list(receive(pull, stop, idle_s=0.05))) == 50
    target.close()
    pull.close()


def test_requests_are_seen_where_they_come_out(context: Context, tmp_path: Path) -> None:
    """A relay on a thread stands for the sidecar; it refuses every third request."""
    relay: Context = zmq.Context()
    pull, push = relay.socket(zmq.PULL), relay.socket(zmq.PUSH)
    pull.bind(f"ipc://{tmp_path}/in.sock")
    push.connect(f"ipc://{tmp_path}/out.sock")

    def work() -> None:
        for i in range(30):
            fields = msgpack.unpackb(pull.recv_multipart()[0], strict_map_key=False)
            fields += [None] * (24 - len(fields))
            fields[23] = "no" if i % 3 == 0 else None
            push.send(msgpack.packb(fields))
        relay.destroy(linger=1000)

    thread = threading.Thread(target=work)
    thread.start()
    observe = open_socket(context, zmq.PULL, bind=f"ipc://{tmp_path}/out.sock")
    target = PushTarget(context, connect=f"ipc://{tmp_path}/in.sock", observe=observe)
    results = Driver(target, Options(concurrency=4)).run(shots(30))
    target.close()
    observe.close()
    thread.join()
    assert results.outcome == ["rejected" if i % 3 == 0 else "forwarded" for i in range(30)]
    assert all(due <= sent < done for due, sent, done in zip(results.due, results.sent, results.done, strict=True))


class Engine(threading.Thread):
    """Dials a gateway as an engine does, answers each request with two outputs, or as `misbehave` says."""

    def __init__(self, handshake: str, rank: int, misbehave: str = "") -> None:
        super().__init__()
        self.aborted: list[str] = []
        self.leave = threading.Event()
        self.served: list[str] = []
        self._handshake, self._rank, self._misbehave = handshake, rank, misbehave

    def run(self) -> None:
        context: Context = zmq.Context()
        identity = self._rank.to_bytes(2, "little")
        greeting, inbox, outbox = (context.socket(kind) for kind in (zmq.DEALER, zmq.DEALER, zmq.PUSH))
        greeting.set(zmq.IDENTITY, identity)
        inbox.set(zmq.IDENTITY, identity)
        greeting.connect(self._handshake)
        greeting.send(msgpack.packb({"status": "HELLO", "local": True}))
        addresses = msgpack.unpackb(greeting.recv())["addresses"]
        greeting.send(msgpack.packb({"status": "READY"}))
        inbox.connect(addresses["inputs"][0])
        outbox.connect(addresses["outputs"][0])
        inbox.send(msgpack.packb({"max_model_len": 100}))
        while inbox.poll(1500):
            kind, payload = inbox.recv_multipart()[:2]
            if kind == b"\x01":
                self.aborted += msgpack.unpackb(payload)
                continue
            rid = msgpack.unpackb(payload, strict_map_key=False)[1]
            self.served.append(rid)
            if self._misbehave:
                outbox.send({"dead": b"ENGINE_CORE_DEAD", "nonsense": b"\xc1"}[self._misbehave])
                break
            for reason in ("", "stop"):
                outbox.send(
                    msgpack.packb(["BatchTokenIDOutSlim", [rid], [[7]], [reason], [1], [1], [0], [[]], [[]], 0])
                )
            if len(self.served) >= 20:
                break
        self.leave.wait(5)
        context.destroy(linger=1000)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_gateway(context: Context, tmp_path: Path, ranks: int) -> None:
    address = f"ipc://{tmp_path}/worker"
    target = GatewayTarget(context, address, ranks=ranks)
    engines = [Engine(target._address, rank) for rank in range(ranks)]
    for engine in engines:
        engine.start()
    results = Driver(target, Options(concurrency=3)).run(shots(20 * ranks, framing=Framing.TYPED))
    target.close()
    for engine in engines:
        engine.leave.set()
        engine.join()
    assert set(results.outcome) == {"stop"}
    assert all(
        sent < first <= done for sent, first, done in zip(results.sent, results.first, results.done, strict=True)
    )
    assert [len(engine.served) for engine in engines] == [20] * ranks
    assert target.ready[b"\0\0"] == {"max_model_len": 100}


@pytest.mark.parametrize(("misbehave", "what"), [("dead", "ENGINE_CORE_DEAD"), ("nonsense", "no BatchTokenIDOutSlim")])
def test_an_engine_that_ends_badly(context: Context, tmp_path: Path, misbehave: str, what: str) -> None:
    target = GatewayTarget(context, f"ipc://{tmp_path}/worker")
    engine = Engine(target._address, 0, misbehave)
    engine.start()
    with pytest.raises(TransportError, match=what):
        Driver(target, Options(timeout_s=3)).run(shots(5, framing=Framing.TYPED))
    target.close()
    engine.leave.set()
    engine.join()


def test_a_gateway_without_an_engine(context: Context, tmp_path: Path) -> None:
    target = GatewayTarget(context, f"ipc://{tmp_path}/worker")
    with pytest.raises(TransportError, match="0 of 1 ranks have registered"):
        Driver(target, Options(timeout_s=0.05)).run(shots(1))
    target.close()


def test_receiving_ends_by_count_time_silence_and_signal(context: Context, tmp_path: Path) -> None:
    pull = open_socket(context, zmq.PULL, bind=f"ipc://{tmp_path}/x.sock")
    push = open_socket(context, zmq.PUSH, connect=f"ipc://{tmp_path}/x.sock")
    assert push.poll(2000, zmq.POLLOUT)
    for i in range(10):
        push.send(b"%d" % i)
    with StopSignals() as stop:
        assert list(receive(pull, stop, count=4)) == [[b"0"], [b"1"], [b"2"], [b"3"]]
        assert len(list(receive(pull, stop, idle_s=0.05))) == 6
        assert list(receive(pull, stop, duration_s=0.05)) == []
        push.send(b"last")
        time.sleep(0.05)
        stop.stopped = True
        assert list(receive(pull, stop)) == [[b"last"]]
    push.close()
    pull.close()


def test_waiting_is_precise() -> None:
    for wanted in (0.00005, 0.0005, 0.005):
        start = time.perf_counter()
        wait_readable(None, wanted)
        assert time.perf_counter() - start >= wanted - 0.0001
