"""What is counted, logged and kept of each outcome."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgpack
import pytest
import zmq

from sidecar.recording import Direction, Framing
from sidecar.recording.tap import read_tapped
from sidecar.service.shm import SharedMemory
from sidecar.service.taps import MAX_TAPS, Taps
from tests.build import context, image_request, item, media, request
from tests.service.fakes import Bench
from tests.service.loops import Run
from tests.service.messages import text


def test_a_refusal_is_said_without_the_prompt(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        bench = Bench(context())
        bench.receive(msgpack.packb(request("r1", [1, 2, -77_777])))
        (refusal,) = bench.ledger.refusals.latest()
        assert (refusal.rid, refusal.reason) == ("r1", "token_ids_invalid")
        assert bench.metrics.rejected["token_ids_invalid"] == 1

    run(body())
    assert "token_ids_invalid" in caplog.text or "token_ids_invalid" in str(caplog.records[0].__dict__)


def test_logging_is_limited_and_counting_is_not(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        bench = Bench(context())
        for _ in range(1000):
            bench.receive(b"\xc1")
        assert bench.count("dropped") == 1000
        assert bench.ledger.log.suppressed > 900

    run(body())
    assert len(caplog.records) < 20


def test_media_and_orphaned_segments(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        probe = SharedMemory(tmp_path)
        lanes_context = context()
        lanes_context.probe = probe
        bench = Bench(lanes_context)
        bench.receive(msgpack.packb(image_request("a")))
        assert (bench.metrics.media_items["image"], bench.metrics.media_tokens["image"]) == (1, 4)
        (tmp_path / "psm_x").write_bytes(bytes(7))
        handle = {"shm_name": "psm_x", "shape": [16, 24], "dtype": "float32"}
        bench.receive(msgpack.packb(request("b", mm=media(item(shm=handle, hash=5)))))
        assert bench.metrics.rejected["shm_invalid"] == 1
        assert bench.metrics.unlinked_segments == 1
        assert list(tmp_path.iterdir()) == []

    run(body())


def test_shared_memory_shows_regular_files_only(tmp_path: Path) -> None:
    probe = SharedMemory(tmp_path)
    (tmp_path / "file").write_bytes(bytes(12))
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    found = probe.stat("file")
    assert found is not None
    assert found.size == 12
    assert [probe.stat(name) for name in ("link", "folder", "none", "x" * 300, "nul\0")] == [None] * 5
    probe.unlink("file")
    probe.unlink("file")
    assert probe.stat("file") is None


def test_taps_see_what_comes_and_what_leaves(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        recorder: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        pull = recorder.socket(zmq.PULL)
        address = f"ipc://{tmp_path}/tap.sock"
        pull.bind(address)
        service: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        taps = Taps(service, Framing.NATIVE, Framing.NATIVE)
        bench = Bench(context())
        bench.ledger.taps = taps
        bench.receive(text("unseen"))
        answer = await asyncio.to_thread(taps.post, {"direction": "both", "to": address})
        assert answer == (200, {"tap": address, "directions": ["egress", "ingress"]})
        await asyncio.sleep(0.1)
        bench.receive(text("a"))
        got = [read_tapped(await asyncio.to_thread(pull.recv_multipart))[0] for _ in range(2)]
        assert [record.direction for record in got] == [Direction.INGRESS, Direction.EGRESS]
        assert got[0].frames[0] == text("a")
        assert got[1].metadata == {"outcome": "forwarded"}
        assert (await asyncio.to_thread(taps.post, {"to": "tcp://127.0.0.1:1"}))[0] == 400
        for number in range(MAX_TAPS - 1):
            assert (await asyncio.to_thread(taps.post, {"to": f"ipc://{tmp_path}/{number}"}))[0] == 200
        assert (await asyncio.to_thread(taps.post, {"to": f"ipc://{tmp_path}/more"}))[0] == 409
        assert (await asyncio.to_thread(taps.delete, {"to": address}))[0] == 200
        assert (await asyncio.to_thread(taps.delete, {"to": address}))[0] == 404
        bench.receive(text("b"))  # to recorders that are not there
        assert bench.count("forwarded") == 3
        taps.close()
        assert not taps.active
        assert len(taps) == 0
        recorder.destroy(linger=0)
        service.destroy(linger=0)

    run(body())
