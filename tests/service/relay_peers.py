"""A gateway and an engine for the relay to stand between, as far as their sockets go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import zmq

from sidecar.wire.handshake import Addresses, handshake_address, identity_of, worker_addresses
from sidecar.wire.tokenspeed import ENGINE_DEAD

Frames = list[bytes]
Status = dict[str, Any]

READY: Status = {"max_model_len": 4096, "dtype": "bfloat16", "data_parallel_size": 1, "kv_events_config": None}
TIMEOUT_S = 5.0
STEP_S = 0.002


async def until(check: Callable[[], Any], what: str = "it") -> Any:
    """Wait for a truth."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIMEOUT_S
    while not (value := check()):
        assert loop.time() < deadline, f"{what} has not come about"
        await asyncio.sleep(STEP_S)
    return value


async def receive(socket: zmq.Socket[bytes]) -> Frames:
    """The next message."""

    def look() -> Frames | None:
        try:
            return socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    frames: Frames = await until(look, "a message")
    return frames


async def nothing(socket: zmq.Socket[bytes], seconds: float = 0.1) -> bool:
    """Whether no message comes for a while."""
    await asyncio.sleep(seconds)
    return not socket.poll(0)


def status(word: str) -> bytes:
    """A HELLO or READY."""
    packed: bytes = msgpack.packb({"status": word, "local": True, "headless": True, "parallel_config_hash": None})
    return packed


class FakeGateway:
    """The three sockets of a gateway's worker URL."""

    def __init__(self, context: zmq.Context[Any], folder: Path) -> None:
        self.url = f"ipc://{folder}/gw"
        self._context = context

    async def bind(self) -> None:
        """Open the sockets, again after `close`."""
        addresses = worker_addresses(self.url)
        assert addresses is not None
        self.addresses = addresses
        self.handshake = await self._socket(zmq.ROUTER, handshake_address(self.url))
        self.input = await self._socket(zmq.ROUTER, addresses.input)
        self.output = await self._socket(zmq.PULL, addresses.output)

    async def _socket(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.linger = 0
        if kind == zmq.ROUTER:  # nobody reads here all the time, so that it would notice late who has gone
            socket.set(zmq.ROUTER_HANDOVER, 1)

        def bound() -> bool:
            try:
                socket.bind(address)
            except zmq.ZMQError as error:  # an earlier socket is still being closed
                if error.errno != zmq.EADDRINUSE:
                    raise
                return False
            return True

        await until(bound, f"a socket on {address}")
        return socket

    async def shake(self, index: int = 0, **more: Any) -> Status:
        """Take a rank's HELLO, READY and ready message; the last one, decoded."""
        assert await receive(self.handshake) == [identity_of(index), status("HELLO")]
        self.send_init(index, **more)
        assert await receive(self.handshake) == [identity_of(index), status("READY")]
        return await self.registered(index)

    def send_init(self, index: int = 0, **more: Any) -> None:
        """Answer a HELLO."""
        addresses = {"inputs": [self.addresses.input], "outputs": [self.addresses.output], "coordinator_input": None}
        init = msgpack.packb({"addresses": addresses, "parallel_config": {}, **more})
        self.handshake.send_multipart([identity_of(index), init])

    async def registered(self, index: int = 0) -> Status:
        """Take a rank's ready message."""
        identity, message = await receive(self.input)
        assert identity == identity_of(index)
        ready: Status = msgpack.unpackb(message)
        return ready

    def send(self, *frames: bytes, index: int = 0) -> None:
        """Send a typed message to a rank."""
        self.input.send_multipart([identity_of(index), *frames])

    async def outputs(self) -> tuple[list[str], list[str]]:
        """The rids and finished reasons of the next batch of outputs."""
        fields = msgpack.unpackb((await receive(self.output))[0])
        return fields[1], fields[3]

    async def take_death(self) -> None:
        """Take ENGINE_CORE_DEAD, and do as every build does: close all sockets, and bind them for a new handshake."""
        assert await receive(self.output) == [ENGINE_DEAD]
        self.close()
        await self.bind()

    def close(self) -> None:
        """Leave without a word."""
        for socket in (self.handshake, self.input, self.output):
            socket.close(0)


class FakeEngine:
    """One rank of an engine."""

    def __init__(self, context: zmq.Context[Any], address: str, index: int = 0) -> None:
        self.index = index
        self._context = context
        self._handshake = self._dealer(address)
        self.input: zmq.Socket[bytes] | None = None
        self.output: zmq.Socket[bytes] | None = None

    def _dealer(self, address: str, hwm: int = 1000) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.set(zmq.IDENTITY, identity_of(self.index))
        socket.set(zmq.RCVHWM, hwm)
        socket.connect(address)
        return socket

    def hello(self) -> None:
        """Introduce itself."""
        self._handshake.send(status("HELLO"))

    async def init(self) -> Status:
        """Take the INIT."""
        init: Status = msgpack.unpackb((await receive(self._handshake))[-1])
        return init

    async def quiet(self) -> bool:
        """Whether no INIT comes."""
        return await nothing(self._handshake)

    async def connect(self, hwm: int = 1000, **ready: Any) -> Addresses:
        """Take the INIT, and go on to the end of the handshake."""
        addresses = (await self.init())["addresses"]
        self._handshake.send(status("READY"))
        self.input = self._dealer(addresses["inputs"][0], hwm)
        self.input.send(msgpack.packb({**READY, **ready}))
        self.output = self._context.socket(zmq.PUSH)
        self.output.linger = 0
        self.output.connect(addresses["outputs"][0])
        return Addresses(addresses["inputs"][0], addresses["outputs"][0])

    async def receive(self) -> Frames:
        """The next message for the engine."""
        assert self.input is not None
        return await receive(self.input)

    def send(self, rids: list[str], reasons: list[str]) -> bytes:
        """Send a batch of outputs; returns its bytes."""
        n = len(rids)
        columns = [[[7]] * n, reasons, [1] * n, [1] * n, [0] * n, [[]] * n, [[]] * n, self.index, 1, 0, 10, 4096]
        batch: bytes = msgpack.packb(["BatchTokenIDOutSlim", rids, *columns])
        self.send_raw(batch)
        return batch

    def send_raw(self, frame: bytes) -> None:
        """Send a frame on the output socket."""
        assert self.output is not None
        self.output.send(frame)

    def die(self) -> None:
        """Leave without a word."""
        for socket in (self._handshake, self.input, self.output):
            if socket is not None:
                socket.close(0)
