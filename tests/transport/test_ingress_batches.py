"""The end of a batch: told once, after its last message, whatever goes wrong."""

from __future__ import annotations

import asyncio
import time

import pytest
import zmq

from sidecar.transport.egress import REFERENCE_BYTES
from sidecar.transport.ingress import BATCH_MESSAGES, Ingress
from sidecar.wire.msgpack import Buffer
from tests.service.loops import Run
from tests.transport.test_sockets import pair, until


def test_the_end_of_a_batch_comes_after_its_last_message(run: Run) -> None:
    async def body() -> None:
        with pair(zmq.PULL, zmq.PUSH, hwm=1000) as pipe:
            batches: list[int] = []
            taken = 0

            def take(frames: object, nbytes: int) -> None:
                nonlocal taken
                taken += 1

            def end() -> None:
                nonlocal taken
                batches.append(taken)
                taken = 0

            ingress = Ingress(pipe.near, take, end)
            for _ in range(500):
                pipe.far.send(b"x")
            await asyncio.sleep(0.1)
            ingress.resume()
            await until(lambda: sum(batches) == 500)
            assert taken == 0
            assert max(batches) <= BATCH_MESSAGES
            ingress.close()

    run(body())


def test_an_end_that_fails_ends_nothing(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        with pair(zmq.PULL, zmq.PUSH) as pipe:
            got: list[bytes] = []

            def end() -> None:
                raise ValueError("secret prompt")

            ingress = Ingress(pipe.near, lambda frames, _: got.append(bytes(frames[0])), end)
            ingress.resume()
            for payload in (b"one", b"two"):
                pipe.far.send(payload)
                await until(lambda: got[-1:] == [payload])  # noqa: B023 - awaited before it changes
            assert "the end of a batch" in caplog.text
            ingress.close()

    run(body())


@pytest.mark.parametrize("paused", [True, False])
def test_a_peer_that_begins_to_send_is_heard_beside_one_that_always_has_more(run: Run, paused: bool) -> None:
    async def body() -> None:
        with pair(zmq.PULL, zmq.PUSH, hwm=50) as pipe:
            got: list[int] = []
            beside = pipe.another(zmq.PUSH)

            def take(frames: list[Buffer], nbytes: int) -> None:
                got.append(nbytes)
                if paused or len(got) == 1:
                    ingress.pause()
                if len(got) == 2:
                    beside.send(b"small")
                    time.sleep(0.1)  # until libzmq's thread has it

            ingress = Ingress(pipe.near, take)
            for _ in range(40):
                pipe.far.send(bytes(REFERENCE_BYTES))
            await asyncio.sleep(0.2)
            while len(got) < 41:
                ingress.resume()
                await asyncio.sleep(0.01)
            assert got.index(len(b"small")) in (2, 3)
            ingress.close()

    run(body())
