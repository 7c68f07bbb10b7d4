"""Relay mode between a gateway and an engine that are played here: every way in which one of the three ends."""

from __future__ import annotations

import asyncio
import logging
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from sidecar.context import Context
from sidecar.service import Service, rank
from sidecar.settings import load
from sidecar.wire.framing import TYPE_ABORT, TYPE_ADD
from sidecar.wire.tokenspeed import ENGINE_DEAD
from tests.build import KIMI, QWEN
from tests.service.loops import Run
from tests.service.messages import text
from tests.service.relay_peers import FakeEngine, FakeGateway, nothing, receive, until

ABORTED = ["abort"]

one_loop = pytest.mark.parametrize("run", ["uvloop"], indirect=True)
"""For what is not about the event loop."""


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "BURY_S", 0.1)
    monkeypatch.setattr(rank, "REDIAL_S", 0.1)


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Scene:
    """The three parties. `service` may be ended and made again."""

    zmq_context: zmq.Context[Any]
    gateway: FakeGateway
    handshake: str
    sets: list[str]
    spec: Any
    service: Service
    engines: list[FakeEngine] = field(default_factory=list)

    def make_engine(self, index: int = 0) -> FakeEngine:
        """An engine's rank that has said HELLO."""
        engine = FakeEngine(self.zmq_context, self.handshake, index)
        engine.hello()
        self.engines.append(engine)
        return engine

    async def attach(self, index: int = 0, hwm: int = 1000, **ready: Any) -> FakeEngine:
        """An engine's rank that is through with its handshake, as is the gateway."""
        engine = self.make_engine(index)
        assert (await receive(self.gateway.handshake))[1:]
        self.gateway.send_init(index)
        await engine.connect(hwm, **ready)
        assert (await receive(self.gateway.handshake))[1:]
        await self.gateway.registered(index)
        return engine

    def restart(self) -> None:
        """Make the service again, after its end."""
        self.service = make_service(self.sets, self.spec)
        self.service.start()

    def request(self, outcome: str) -> int:
        """How many requests have come to an end of this kind."""
        return self.service.metrics.requests["tokenspeed", outcome]


def make_service(sets: list[str], spec: Any) -> Service:
    """A service in relay mode."""
    settings = load(None, {}, sets).settings
    exact = settings.relay.observe_outputs
    return Service(settings, Context.from_settings(settings, spec, now=time.monotonic, exact_rids=exact))


@asynccontextmanager
async def scene(*sets: str, spec: Any = KIMI) -> AsyncIterator[Scene]:
    """A gateway and a service; the rest is the test's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o700)
        context: zmq.Context[Any] = zmq.Context()
        gateway = FakeGateway(context, folder)
        await gateway.bind()
        handshake = f"tcp://127.0.0.1:{free_port()}"
        keys = [
            "mode=relay",
            f"relay.frontend_handshake={gateway.url}",
            f"relay.engine_handshake={handshake}",
            f"relay.socket_dir={folder}/relay",
            f"admin.bind=127.0.0.1:{free_port()}",
            "shutdown.grace_s=0.3",
            *sets,
        ]
        made = Scene(context, gateway, handshake, keys, spec, make_service(keys, spec))
        made.service.start()
        try:
            yield made
        finally:
            await made.service.stop()
            context.destroy(0)


@one_loop
def test_the_handshake_passes_through(run: Run) -> None:
    async def main() -> None:
        async with scene(spec=QWEN) as it:
            engine = it.make_engine()
            assert (await receive(it.gateway.handshake))[0] == b"\0\0"
            it.gateway.send_init(new_key="kept")
            init = await engine.init()
            assert init["new_key"] == "kept"
            assert init["addresses"]["coordinator_input"] is None
            assert "relay/rank-0-in.sock" in init["addresses"]["inputs"][0]
            assert "relay/rank-0-out.sock" in init["addresses"]["outputs"][0]

    run(main())


@one_loop
def test_the_ready_message_gets_the_key_that_m_rope_needs(run: Run) -> None:
    async def main() -> None:
        for spec, sets, extra in (
            (QWEN, [], {"mrope_positions": False}),
            (KIMI, [], {}),
            (KIMI, ['relay.ready_overrides={dtype = "float16", new = [1, 2]}'], {"dtype": "float16", "new": [1, 2]}),
        ):
            async with scene(*sets, spec=spec) as it:
                engine = it.make_engine()
                await receive(it.gateway.handshake)
                it.gateway.send_init()
                await engine.connect(unknown={"a": 1})
                await receive(it.gateway.handshake)
                ready = await it.gateway.registered()
                base = {"max_model_len": 4096, "dtype": "bfloat16", "data_parallel_size": 1, "kv_events_config": None}
                assert ready == {**base, "unknown": {"a": 1}, **extra}

    run(main())


@one_loop
def test_an_engines_own_mrope_positions_stay(run: Run) -> None:
    async def main() -> None:
        async with scene(spec=QWEN) as it:
            engine = it.make_engine()
            await receive(it.gateway.handshake)
            it.gateway.send_init()
            await engine.connect(mrope_positions=True)
            await receive(it.gateway.handshake)
            assert (await it.gateway.registered())["mrope_positions"] is True

    run(main())


def test_requests_aborts_and_outputs_pass(run: Run) -> None:
    async def main() -> None:
        async with scene() as it:
            engine = await it.attach()
            it.gateway.send(TYPE_ADD, text("a"))
            assert await engine.receive() == [TYPE_ADD, text("a")]
            batch = engine.send(["a"], [""])
            assert await receive(it.gateway.output) == [batch]
            it.gateway.send(TYPE_ABORT, msgpack.packb(["a"]))
            assert await engine.receive() == [TYPE_ABORT, msgpack.packb(["a"])]
            it.gateway.send(b"\x07", b"whatever")
            assert await engine.receive() == [b"\x07", b"whatever"]
            engine.send_raw(b"no outputs")
            assert await receive(it.gateway.output) == [b"no outputs"]
            assert it.service.metrics.relayed_outputs == 2

    run(main())


@one_loop
def test_a_rid_is_live_until_its_last_output(run: Run) -> None:
    async def main() -> None:
        async with scene() as it:
            engine = await it.attach()
            it.gateway.send(TYPE_ADD, text("a"))
            await engine.receive()
            it.gateway.send(TYPE_ADD, text("a"))
            await until(lambda: it.request("dropped") == 1)
            engine.send(["a", "a"], ["", "stop"])
            await receive(it.gateway.output)
            it.gateway.send(TYPE_ADD, text("a"))
            assert await engine.receive() == [TYPE_ADD, text("a")]

    run(main())


@one_loop
def test_the_ready_message_feeds_the_length_rule(run: Run) -> None:
    async def main() -> None:
        async with scene("engine.max_model_len=100") as it:
            await it.attach(max_model_len=4)
            it.gateway.send(TYPE_ADD, text("a"))
            await until(lambda: it.request("rejected") == 1)
            assert it.service.metrics.rejected["prompt_too_long"] == 1

    run(main())


def test_a_dead_engine_ends_what_is_open(run: Run) -> None:
    async def main() -> None:
        async with scene() as it:
            engine = await it.attach()
            for rid in "abc":
                it.gateway.send(TYPE_ADD, text(rid))
                await engine.receive()
            last = engine.send(["b"], ["stop"])
            await until(lambda: it.service.metrics.relayed_outputs == 1)
            engine.die()
            assert await receive(it.gateway.output) == [last]
            assert await it.gateway.outputs() == (["a", "c"], ABORTED * 2)
            await it.gateway.take_death()
            # A new engine begins anew, and the rids are free.
            engine = await it.attach()
            it.gateway.send(TYPE_ADD, text("a"))
            assert await engine.receive() == [TYPE_ADD, text("a")]

    run(main())


@one_loop
def test_an_engine_that_says_goodbye(run: Run) -> None:
    async def main() -> None:
        async with scene() as it:
            engine = await it.attach()
            it.gateway.send(TYPE_ADD, text("a"))
            await engine.receive()
            engine.send_raw(ENGINE_DEAD)
            assert await it.gateway.outputs() == (["a"], ABORTED)
            assert await receive(it.gateway.output) == [ENGINE_DEAD]
            engine.die()
            assert await nothing(it.gateway.output)

    run(main())


@one_loop
def test_a_second_engine_waits_for_the_end_of_the_first(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with scene() as it:
            first = await it.attach()
            second = it.make_engine()
            assert await second.quiet()
            assert "another engine says HELLO" in caplog.text
            it.gateway.send(TYPE_ADD, text("a"))
            assert await first.receive() == [TYPE_ADD, text("a")]
            first.die()
            await receive(it.gateway.handshake)
            it.gateway.send_init()
            await second.connect()

    with caplog.at_level(logging.WARNING, "sidecar"):
        run(main())


def test_a_gateway_that_comes_back_finds_the_same_engine(run: Run) -> None:
    async def main() -> None:
        async with scene() as it:
            engine = await it.attach()
            it.gateway.send(TYPE_ADD, text("a"))
            await engine.receive()
            it.gateway.close()
            assert await engine.receive() == [TYPE_ABORT, msgpack.packb(["a"])]
            await it.gateway.bind()
            await it.gateway.shake()
            it.gateway.send(TYPE_ADD, text("b"))
            assert await engine.receive() == [TYPE_ADD, text("b")]

    run(main())


@one_loop
def test_a_frame_that_is_too_large_ends_the_connection_but_not_the_line(run: Run) -> None:
    """libzmq cuts the gateway off; a gateway that does not notice is told, and shakes hands again."""

    async def main() -> None:
        async with scene("limits.message_bytes=65536") as it:
            engine = await it.attach()
            it.gateway.send(TYPE_ADD, text("a"))
            await engine.receive()
            it.gateway.send(TYPE_ADD, b"\0" * 70_000)
            assert await engine.receive() == [TYPE_ABORT, msgpack.packb(["a"])]
            await receive(it.gateway.handshake)  # which this gateway does not answer
            await it.gateway.take_death()
            await it.gateway.shake()
            it.gateway.send(TYPE_ADD, text("b"))
            assert await engine.receive() == [TYPE_ADD, text("b")]

    run(main())


@one_loop
def test_a_gateway_that_binds_late(run: Run) -> None:
    async def main() -> None:
        async with scene() as it:
            it.gateway.close()
            engine = it.make_engine()
            assert await engine.quiet()
            await it.gateway.bind()
            await receive(it.gateway.handshake)
            it.gateway.send_init()
            await engine.connect()
            await receive(it.gateway.handshake)
            await it.gateway.registered()

    run(main())


@one_loop
def test_a_gateway_that_gives_up_its_handshake(run: Run) -> None:
    """It closes its sockets after HELLO and binds them again: it gets another HELLO."""

    async def main() -> None:
        async with scene() as it:
            it.make_engine()
            await receive(it.gateway.handshake)
            it.gateway.close()
            await it.gateway.bind()
            assert await receive(it.gateway.handshake)

    run(main())


@one_loop
def test_the_end_of_the_sidecar_ends_what_is_open(run: Run) -> None:
    async def main() -> None:
        async with scene() as it:
            engine = await it.attach()
            for rid in "ab":
                it.gateway.send(TYPE_ADD, text(rid))
                await engine.receive()
            task = asyncio.ensure_future(it.service.stop())
            await asyncio.sleep(0.05)
            it.gateway.send(TYPE_ADD, text("late"))
            assert await it.gateway.outputs() == (["late"], ABORTED)
            batch = engine.send(["a"], ["stop"])
            assert await receive(it.gateway.output) == [batch]
            assert await it.gateway.outputs() == (["b"], ABORTED)
            await it.gateway.take_death()
            assert await engine.receive() == [TYPE_ABORT, msgpack.packb(["b"])]
            await task
            assert it.request("answered") == 1
            assert it.request("forwarded") == 2
            # The engine stays as it is, and is taken to the gateway again by the next process.
            it.restart()
            await it.gateway.shake()
            it.gateway.send(TYPE_ADD, text("c"))
            assert await engine.receive() == [TYPE_ADD, text("c")]

    run(main())


@one_loop
def test_after_a_crash_the_earlier_life_is_ended(run: Run) -> None:
    async def main() -> None:
        async with scene() as it:
            engine = await it.attach()
            it.gateway.send(TYPE_ADD, text("a"))
            await engine.receive()
            crash(it.service)
            it.restart()
            # This gateway has not noticed, and does not answer HELLO.
            await receive(it.gateway.handshake)
            await it.gateway.take_death()
            await it.gateway.shake()
            # Outputs of a request that nobody waits for any more: the engine is told, once.
            engine.send(["a"], [""])
            assert await engine.receive() == [TYPE_ABORT, msgpack.packb(["a"])]
            engine.send(["a"], [""])
            it.gateway.send(TYPE_ADD, text("b"))
            assert await engine.receive() == [TYPE_ADD, text("b")]

    run(main())


def crash(service: Service) -> None:
    """Close the sockets of a service as the kernel does with those of a process that was killed."""
    service.line._timer.cancel()  # type: ignore[attr-defined]
    service.line._handshake.close()  # type: ignore[attr-defined]
    for one in service.line._ranks.values():  # type: ignore[attr-defined]
        one.close()
    service.vitals.close()
    service._sockets.close()
    service._pool.shutdown()
    service.admin.close()


@one_loop
def test_outputs_that_go_past_the_sidecar(run: Run) -> None:
    async def main() -> None:
        async with scene("relay.observe_outputs=false") as it:
            engine = it.make_engine()
            await receive(it.gateway.handshake)
            it.gateway.send_init()
            addresses = await engine.connect()
            assert addresses.output == it.gateway.addresses.output
            await receive(it.gateway.handshake)
            await it.gateway.registered()
            it.gateway.send(TYPE_ADD, text("a"))
            await engine.receive()
            batch = engine.send(["a"], ["stop"])
            assert await receive(it.gateway.output) == [batch]
            assert it.service.metrics.relayed_outputs == 0
            engine.die()
            assert await receive(it.gateway.output) == [ENGINE_DEAD]

    run(main())


@one_loop
def test_a_standing_engine(run: Run) -> None:
    """What it does not take is answered, what it has is ended, and it is taken to the gateway again later."""

    async def main() -> None:
        async with scene("egress.stall_timeout_s=0.3", "egress.hwm=1") as it:
            engine = await it.attach(hwm=1)
            pad = "x" * 200_000
            rids = [f"r{i}" for i in range(12)]
            for rid in rids:
                it.gateway.send(TYPE_ADD, text(rid, input_text=pad))
            ended: list[str] = []
            while set(ended) != set(rids):
                found, reasons = await it.gateway.outputs()
                assert set(reasons) == {"abort"}
                ended += found
            assert len(ended) == len(rids)
            await it.gateway.take_death()
            assert it.request("answered") > 0
            assert it.request("answered") + it.request("forwarded") == len(rids)
            taken = []
            while (frames := await engine.receive())[0] == TYPE_ADD:
                taken.append(msgpack.unpackb(frames[1])[1])
            assert msgpack.unpackb(frames[1]) == taken == rids[: len(taken)]
            await it.gateway.shake()

    run(main())


@one_loop
def test_ranks_have_their_own_sockets(run: Run) -> None:
    async def main() -> None:
        async with scene() as it:
            engines = [await it.attach(index) for index in (0, 1, 300)]
            for engine in engines:
                rid = f"r{engine.index}"
                it.gateway.send(TYPE_ADD, text(rid), index=engine.index)
                assert await engine.receive() == [TYPE_ADD, text(rid)]
                batch = engine.send([rid], [""])
                assert await receive(it.gateway.output) == [batch]
            assert it.service.line.engines == 3
            engines[1].die()
            assert await it.gateway.outputs() == (["r1"], ABORTED)
            assert await receive(it.gateway.output) == [ENGINE_DEAD]
            await until(lambda: it.service.line.engines == 2)

    run(main())


@one_loop
def test_nonsense_on_the_handshake(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with scene() as it:
            for number, (identity, payload) in enumerate(
                ((b"\0\0", b"\xc1"), (b"\0\0", b""), (b"stranger", b"\x80"), (b"\1\0", b"\x80"))
            ):
                with it.zmq_context.socket(zmq.DEALER) as peer:
                    peer.set(zmq.IDENTITY, identity)
                    peer.connect(it.handshake)
                    peer.send(payload)
                    await until(lambda n=number: caplog.text.count("WARNING") > n, "a warning for each")
            engine = await it.attach()
            it.gateway.send(TYPE_ADD, text("a"))
            assert await engine.receive() == [TYPE_ADD, text("a")]

    with caplog.at_level(logging.WARNING, "sidecar"):
        run(main())


@one_loop
def test_an_init_that_cannot_be_used(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with scene() as it:
            it.make_engine()
            await receive(it.gateway.handshake)
            it.gateway.handshake.send_multipart([b"\0\0", msgpack.packb({"addresses": {}})])
            await until(lambda: "names no address" in caplog.text)
            assert await receive(it.gateway.handshake), "dialled again"

    with caplog.at_level(logging.ERROR, "sidecar"):
        run(main())
