"""Producers and schedulers as processes of their own, so that one of them can be killed or be slow."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
import zlib
from multiprocessing.synchronize import Event as EventType
from typing import Any, Final

import msgpack
import zmq

from tests.build import NORMALIZED, grid, media, prompt, request
from tests.service.fakes import read

SPAWN: Final = multiprocessing.get_context("spawn")

IMAGE: Final = 248056
WIDTH: Final = 1536
"""Values a patch of the bundled Qwen3.5 config, which is what the sidecar is started with here."""

_BUFFERS: Final = 6
"""One in each place where libzmq may have an image of a flood, and more."""


def text(rid: str, tokens: int = 20) -> list[bytes]:
    """A text request in native framing."""
    return [msgpack.packb(request(rid, list(range(1000, 1000 + tokens)), NORMALIZED))]


class ImageTemplate:
    """Requests with one image without a hash, its feature in an aux frame of about `nbytes`."""

    def __init__(self, nbytes: int) -> None:
        side = 2
        while (side + 2) ** 2 * WIDTH * 2 <= nbytes:
            side += 2
        rows, tokens = side * side, side * side // 4
        self.feature = bytes(rows * WIDTH * 2)
        item = [1, None, None, [[1, tokens]], ["bfloat16", [rows, WIDTH], 1], None]
        data = {"image_grid_thw": grid((1, side, side))}
        fields = request("RID", prompt(11, (IMAGE, tokens), 12), NORMALIZED, media([*item, data, None, None, None]))
        self._head, self._tail = msgpack.packb(fields).split(msgpack.packb("RID"))

    def make(self, rid: str, seed: int) -> list[bytes]:
        """A request; the seed makes its image differ from others, so that hashes do."""
        return [self.head(rid), self.seed(seed) + self.feature[8:]]

    def head(self, rid: str) -> bytes:
        """The payload of a request."""
        return self._head + msgpack.packb(rid) + self._tail

    @staticmethod
    def seed(seed: int) -> bytes:
        """How a feature begins."""
        return seed.to_bytes(8, "little")


def push(address: str, hwm: int) -> zmq.Socket[bytes]:
    """A producer's socket."""
    context: zmq.Context[Any] = zmq.Context.instance()
    socket = context.socket(zmq.PUSH)
    socket.set_hwm(hwm)
    socket.linger = 0
    socket.immediate = 1
    socket.connect(address)
    return socket


def pull(address: str, hwm: int) -> zmq.Socket[bytes]:
    """A scheduler's socket."""
    context: zmq.Context[Any] = zmq.Context.instance()
    socket = context.socket(zmq.PULL)
    socket.set_hwm(hwm)
    socket.linger = 0
    socket.connect(address)
    return socket


def flood_texts(address: str, count: int, hwm: int, prefix: str, done: EventType) -> None:
    """Send `count` text requests as fast as they are taken, and stay until told to go."""
    socket = push(address, hwm)
    head, tail = msgpack.packb(request("RID", list(range(1000, 1020)), NORMALIZED)).split(msgpack.packb("RID"))
    for number in range(count):
        socket.send(head + msgpack.packb(f"{prefix}{number}") + tail)
    done.wait()


def flood_images(
    address: str, nbytes: int, count: int, prefix: str, sent: Any, done: EventType, rate: float = 0.0
) -> None:
    """Send image requests without a hash, at most `count`, until told to go; `sent` counts them.

    As fast as they are taken, or `rate` a second. The images share a few buffers: one that is made anew for
    each costs more of a core than all that the sidecar does with it.
    """
    socket = push(address, 1)
    template = ImageTemplate(nbytes)
    buffers = [bytearray(template.feature) for _ in range(_BUFFERS)]
    trackers: list[Any] = [None] * _BUFFERS
    began = time.monotonic()
    for number in range(count):
        buffer, tracker = buffers[number % _BUFFERS], trackers[number % _BUFFERS]
        while tracker is not None and not tracker.done and not done.is_set():
            time.sleep(0.0005)
        while not socket.poll(100, zmq.POLLOUT) and not done.is_set():
            pass
        if done.is_set():
            break
        if rate:
            time.sleep(max(began + number / rate - time.monotonic(), 0.0))
        buffer[:8] = template.seed(number)
        socket.send(template.head(f"{prefix}{number}"), zmq.SNDMORE)
        trackers[number % _BUFFERS] = socket.send(buffer, copy=False, track=True)
        sent.value = number + 1
    done.wait()
    socket.close(linger=0)
    zmq.Context.instance().term()  # before the frames' memory goes


def pace_texts(address: str, rate: float, seconds: float, prefix: str) -> None:
    """Send text requests at a steady rate; the rid ends with the time of sending (CLOCK_MONOTONIC, ns).

    Not with the time when it was due: on a machine whose cores are all busy, this process is late itself.
    """
    socket = push(address, 1000)
    time.sleep(0.3)
    start = time.monotonic_ns()
    for number in range(int(rate * seconds)):
        due = start + int(number / rate * 1e9)
        while (wait := due - time.monotonic_ns()) > 0:
            time.sleep(wait / 1e9)
        socket.send_multipart(text(f"{prefix}{number}:{time.monotonic_ns()}"))
    time.sleep(1.0)


def consume(address: str, hwm: int, results: Any, stop: EventType, expected: int) -> None:
    """Take messages until `expected` have come or until told to stop.

    Reports the count, how many rids came twice, the longest silence between two messages in seconds,
    and a checksum over all aux frames.
    """
    socket = pull(address, hwm)
    seen: set[str] = set()
    twice, longest, crc = 0, 0.0, 0
    last = 0.0
    while len(seen) + twice < expected and not stop.is_set():
        if not socket.poll(50):
            continue
        frames = socket.recv_multipart(copy=False)
        now = time.monotonic()
        longest = max(longest, now - last if last else 0.0)
        last = now
        (_, rid) = read([frames[0].bytes])[0]
        twice += rid in seen
        seen.add(rid)
        for frame in frames[1:]:
            crc = (crc + zlib.crc32(frame.buffer)) & 0xFFFFFFFF
    results.put({"count": len(seen), "twice": twice, "longest": longest, "crc": crc})


def measure(address: str, hwm: int, results: Any, stop: EventType) -> None:
    """Take messages; report the latency in seconds of those whose rid says when they were due, and the rest's count."""
    socket = pull(address, hwm)
    latencies: dict[str, list[float]] = {}
    others = 0
    while not stop.is_set():
        if not socket.poll(50):
            continue
        frames = socket.recv_multipart(copy=False)
        now = time.monotonic_ns()
        (_, rid) = read([frames[0].bytes])[0]
        name, colon, due = rid.partition(":")
        if colon:
            latencies.setdefault(name.rstrip("0123456789"), []).append((now - int(due)) / 1e9)
        else:
            others += 1
    results.put({"latencies": latencies, "others": others})


def count_arrivals(address: str, hwm: int, journal: str) -> None:
    """Take messages and write each rid to a file at once: a scheduler that will be killed."""
    socket = pull(address, hwm)
    with open(journal, "a", buffering=1) as file:
        while True:
            frames = socket.recv_multipart()
            for what, rid in read(frames):
                file.write(f"{what} {rid}\n")


def stand_still(address: str, hwm: int) -> None:
    """Connect and read nothing: an engine that hangs. libzmq goes on filling its queue."""
    socket = pull(address, hwm)
    while True:
        time.sleep(60)
        assert not socket.closed


async def _measure_lag(late: list[float], stop: EventType) -> None:
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        due = loop.time() + 0.02
        await asyncio.sleep(0.02)
        late.append(loop.time() - due)


def idle_lag(results: Any, stop: EventType) -> None:
    """Report the p99 of how late a timer is in a process that does nothing else: what this machine allows."""
    late: list[float] = []
    asyncio.run(_measure_lag(late, stop))
    results.put(sorted(late)[int(len(late) * 0.99)])


def start(target: Any, *arguments: Any) -> Any:
    """Start a worker; it ends with this process at the latest."""
    process = SPAWN.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process
