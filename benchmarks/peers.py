"""The ends of a line, and what can lie between them besides the sidecar; each is a process.

    python -m benchmarks.peers source|sink|proxy|relay …

They block, and copy small frames, which is the fastest that Python does. Each says that it is ready
when its sockets stand; a source then waits for a line on its standard input. At the end source and sink
print one line of JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any, Final

import zmq

from benchmarks.lines import say
from benchmarks.requests import PATCH_BYTES, Builder, encode, text_ids

COPY_BELOW: Final = 32 * 1024
RID_DIGITS: Final = 12
_RID_HEAD: Final = "chatcmpl-benchmark-"
_TEXTS: Final = 64
_IMAGES: Final = 64
_PR_SET_TIMERSLACK: Final = 29


@dataclass(frozen=True)
class Size:
    """A size of message. `patches` are an image's rows and columns, none for text."""

    name: str
    tokens: int
    patches: tuple[int, int] | None
    hwm: int
    """High-water mark of every socket on the line."""


SIZES: Final = {
    "1 KB": Size("1 KB", 190, None, 1000),
    "64 KB": Size("64 KB", 1000, (2, 10), 64),
    "1 MB": Size("1 MB", 1000, (18, 18), 8),
    "12 MB": Size("12 MB", 4096, (64, 64), 8),
}
"""Text, and images in aux frames. No text request has a seed, so the sidecar has to edit every one."""


def messages(size: Size, first: int, count: int) -> Iterator[list[bytes]]:
    """`count` messages whose rids count from `first`. There are 64 different prompts and images."""
    kinds = [_template(size, k) for k in range(_TEXTS if size.patches is None else _IMAGES)]
    for number in range(first, first + count):
        (head, tail), aux = kinds[number % len(kinds)]
        yield [b"%b%0*d%b" % (head, RID_DIGITS, number, tail), *aux]


def _template(size: Size, k: int) -> tuple[tuple[bytes, bytes], list[bytes]]:
    """A payload, split where the number of its rid goes, and its aux frames."""
    mark = "x" * RID_DIGITS
    rid, aux = _RID_HEAD + mark, []
    if size.patches is None:
        payload = encode(text_ids(size.tokens, Random(k)), None, rid=rid, seed=None)
    else:
        rows, columns = size.patches
        built = Builder(Random(k))
        built.text(20)
        built.media(1, (1, rows, columns), _feature(rows * columns * PATCH_BYTES), "aux", True)
        built.text(size.tokens - len(built.ids))
        payload, *aux = built.frames(rid=rid, seed=None)
    head, tail = payload.split(mark.encode())
    return (head, tail), aux


_FEATURES: dict[int, bytes] = {}


def _feature(size: int) -> bytes:
    """Bytes of which every page is its own. One buffer a size: with a hash given nobody looks at them."""
    return _FEATURES.setdefault(size, Random(0).randbytes(size))


def open_socket(kind: int, address: str, hwm: int, bind: bool) -> tuple[zmq.Context[Any], zmq.Socket[bytes]]:
    """A blocking socket with one mark for both directions."""
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(kind)
    socket.set_hwm(hwm)
    if bind:
        socket.bind(address)
    else:
        socket.immediate = 1
        socket.connect(address)
    return context, socket


def source(options: argparse.Namespace) -> None:
    """Send `count` messages, as fast as they are taken or at `rate` a second, and wait until they are gone."""
    ready = list(messages(SIZES[options.size], options.first, options.count))
    context, socket = open_socket(zmq.PUSH, options.address, options.hwm, bind=False)
    socket.poll(-1, zmq.POLLOUT)
    say(ready=True)
    sys.stdin.readline()
    if options.rate is None:
        _send_all(socket, ready)
    else:
        due = _arrivals(options.rate, options.count, options.first)
        _send_when_due(socket, ready, due)
        options.times.write_bytes(due.tobytes())
    socket.close(linger=-1)
    context.term()
    say(sent=len(ready))


def _send_all(socket: zmq.Socket[bytes], ready: Sequence[list[bytes]]) -> None:
    send, more = socket.send, zmq.SNDMORE
    for frames in ready:
        if len(frames) == 1:
            send(frames[0])
        else:
            send(frames[0], more)
            send(frames[1], 0, len(frames[1]) < COPY_BELOW)


def _arrivals(rate: float, count: int, seed: int) -> array[float]:
    """When each message is due: random arrivals (a Poisson process), which come in clumps as users do."""
    rng = Random(seed)
    times = array("d")
    at = 0.0
    for _ in range(count):
        at += rng.expovariate(rate)
        times.append(at)
    return times


def _send_when_due(socket: zmq.Socket[bytes], ready: Sequence[list[bytes]], due: array[float]) -> None:
    """Send each message as soon as it is due; a late one does not delay those after it.

    Turns the times of `due` from seconds since the start into those of the clock.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # the kernel else wakes sleepers 50 us late
    start = monotonic() + 0.01
    for k, frames in enumerate(ready):
        at = due[k] = start + due[k]
        while (left := at - monotonic()) > 0:
            sleep(left)
        socket.send_multipart(frames, copy=len(frames) == 1)


def sink(options: argparse.Namespace) -> None:
    """Take `count` messages. Says how long those after the first tenth took; writes down when each came."""
    context, socket = open_socket(zmq.PULL, options.address, options.hwm, options.bind)
    say(ready=True)
    count, warm = options.count, options.count // 10
    receive, more = socket.recv, zmq.RCVMORE
    small = SIZES[options.size].patches is None
    times = array("d")
    begin = 0.0
    for k in range(count):
        receive()
        if not small:
            while socket.get(more):
                receive(0, False)
        if options.times is not None:
            times.append(monotonic())
        elif k == warm - 1:
            begin = monotonic()
    end = monotonic()
    if options.times is not None:
        options.times.write_bytes(times.tobytes())
        say(received=count)
    else:
        say(received=count, messages=count - warm, seconds=end - begin)
    socket.close(linger=0)
    context.term()


def proxy(options: argparse.Namespace) -> None:
    """Pass on what comes, in C; until killed."""
    context, pull = open_socket(zmq.PULL, options.address, options.hwm, bind=True)
    push = context.socket(zmq.PUSH)
    push.set_hwm(options.hwm)
    push.bind(options.out)
    say(ready=True)
    zmq.proxy(pull, push)


def relay(options: argparse.Namespace) -> None:
    """Pass on what comes, in Python and without a look at it; until killed."""
    _, pull = open_socket(zmq.PULL, options.address, options.hwm, bind=True)
    _, push = open_socket(zmq.PUSH, options.out, options.hwm, bind=True)
    say(ready=True)
    if SIZES[options.size].patches is None:
        receive, send = pull.recv, push.send
        while True:
            send(receive())
    while True:
        push.send_multipart(pull.recv_multipart(copy=False), copy=False)


ROLES: Final = {"source": source, "sink": sink, "proxy": proxy, "relay": relay}


def main() -> None:
    """Run one of the four."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("role", choices=tuple(ROLES))
    parser.add_argument("address")
    parser.add_argument("--out", help="where a proxy or relay sends")
    parser.add_argument("--hwm", type=int, required=True)
    parser.add_argument("--bind", action="store_true")
    parser.add_argument("--size", choices=SIZES)
    parser.add_argument("--count", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--times", type=Path, help="where the times go, an array of doubles")
    options = parser.parse_args()
    ROLES[options.role](options)


if __name__ == "__main__":
    main()
