"""Hostile input cannot make series: ten thousand messages, each with names of its own."""

from __future__ import annotations

import random

import msgpack
import zmq

from tests.ops.conftest import wait_for

MESSAGES = 10_000


def hostile(generator: random.Random) -> list[bytes]:
    """One message with a rid, a model and an error text that were never seen before, or plain noise."""
    name = generator.randbytes(12).hex()
    match generator.randrange(4):
        case 0:
            return [generator.randbytes(generator.randrange(1, 200)) for _ in range(generator.randrange(1, 4))]
        case 1:
            return [msgpack.packb([f"Tag{name}", name, None, name])]
        case 2:
            return [msgpack.packb(["TokenizedGenerateReqInput", name, None, name, [1, 2**33], {name: name}])]
        case _:
            hash = generator.getrandbits(64)
            item = [generator.randrange(-1, 5), hash, None, [[0, 9]], [name, [1], 7], None, {name: 1}]
            fields = [name, None, None, [1] * 20, [8], *[None] * 16, [[item], 1]]
            return [msgpack.packb(["TokenizedGenerateReqInput", *fields])]


def test_ten_thousand_hostile_messages_add_no_series(stack):
    before, seen = stack.series(), stack.status()
    generator = random.Random(1)
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.connect(stack.ingress)
        for _ in range(MESSAGES):
            push.send_multipart(hostile(generator))

        def grown() -> int:
            now = stack.status()
            return sum(now["received"].values()) - sum(seen["received"].values())

        wait_for("the messages are read", lambda: grown() >= MESSAGES, 60)
    assert stack.series() == before
    now = stack.status()
    assert now["received"]["unreadable"] > seen["received"]["unreadable"]
    assert sum(now["rejected"].values()) > sum(seen["rejected"].values())
    assert now["health"] == {"live": True, "ready": True, "reasons": []}
    stack.processes.check()
