"""`sidecar serve` as a process: messages through real sockets, probes, and refusals to start."""

from __future__ import annotations

import socket
import stat
import time
from pathlib import Path

import pytest

from sidecar.recording import Reader
from sidecar.transport.egress import BULK_BYTES
from tests.e2e.harness import Producer, Scheduler, Sidecar, maps_torch, wait_until
from tests.service.fakes import read
from tests.service.messages import abort, control, slow, text
from tests.transport.test_threads import nice_threads


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_messages_pass_and_are_counted(folder: Path, loop: str) -> None:
    with Sidecar(folder, loop=loop, quarantine__dir=folder / "quarantine") as sidecar:
        sidecar.wait_until_up()
        assert time.monotonic() - sidecar.started < 10
        assert stat.S_IMODE((folder / "in.sock").stat().st_mode) == 0o600
        assert sidecar.get("healthz")[0] == 200
        assert "no engine is connected" in sidecar.get("readyz")[1]
        with Producer(sidecar.ingress) as producer, Scheduler(sidecar.egress) as scheduler:
            for number in range(200):
                producer.send(text(f"t{number}"))
                if number % 20 == 0:
                    producer.send(slow(f"s{number}", number))
            producer.send(b"\xc1 nobody can read this")
            producer.send(b"")
            producer.send(text("t0"))
            producer.send(abort("t1"))
            producer.send(control())
            events = [event for message in scheduler.wait_for(212) for event in read(message)]
            assert sorted(events) == sorted(
                [("add", f"t{number}") for number in range(200)]
                + [("add", f"s{number}") for number in range(0, 200, 20)]
                + [("abort", "t1"), ("control", "FlushCacheReqInput")]
            )
            assert events[-1] == ("control", "FlushCacheReqInput")
            wait_until(lambda: sidecar.ready)
            metrics = sidecar.metrics()
            assert metrics.balance == 0
            assert metrics["sidecar_inflight_requests"] == 0
            assert metrics["sidecar_inflight_bytes"] == 0
            assert metrics.outcome("forwarded") == 210
            assert metrics.outcome("dropped") == 3
            assert metrics.of("sidecar_media_items_total", modality="image") == 10
            assert metrics["sidecar_engine_connected"] == 1
            assert not maps_torch(sidecar.process.pid)
            assert nice_threads(sidecar.process.pid) == []
            assert sidecar.rss() < 100 << 20
            assert sidecar.stop() == 0
    (recording,) = (folder / "quarantine").iterdir()
    with Reader(recording) as reader:
        kept = [(bytes(record.frames[0])[:1], record.metadata["reason"]) for record in reader]
    assert [reason for _, reason in kept] == ["malformed_request", "malformed_request", "duplicate_rid"]
    assert not (folder / "in.sock").exists()
    assert not (folder / "out.sock").exists()
    (end,) = [entry for entry in sidecar.log if entry["message"] == "ended"]
    assert (end["received"], end["forwarded"], end["dropped"]) == (213, 210, 3)


def test_receiving_gives_way_from_the_first_large_message_on(folder: Path) -> None:
    with Sidecar(folder) as sidecar, Producer(sidecar.ingress) as producer, Scheduler(sidecar.egress) as scheduler:
        for size, nice in ((BULK_BYTES // 2, []), (BULK_BYTES, ["ZMQbg/IO/0"]), (10, ["ZMQbg/IO/0"])):
            producer.send(text(f"of {size}", tail=("x" * size,)))
            scheduler.wait_for(len(scheduler.received) + 1)
            assert nice_threads(sidecar.process.pid) == nice
        assert sidecar.stop() == 0


def test_a_second_one_on_the_same_path_fails(folder: Path) -> None:
    with Sidecar(folder) as first:
        first.wait_until_up()
        (folder / "other").mkdir(mode=0o700)
        with Sidecar(folder / "other", "--set", f"ingress.bind={first.ingress}") as second:
            assert second.wait() == 4
            assert "another sidecar uses it" in second.log[-1]["message"]
            assert not (folder / "other" / "out.sock").exists()
        with Producer(first.ingress) as producer, Scheduler(first.egress) as scheduler:
            producer.send(text("a"))
            assert read(scheduler.wait_for(1)[0]) == [("add", "a")]


def test_a_file_in_the_way_stays_and_a_stale_socket_does_not(folder: Path) -> None:
    (folder / "in.sock").write_text("precious")
    with Sidecar(folder) as sidecar:
        assert sidecar.wait() == 4
        assert "no socket" in sidecar.log[-1]["message"]
    assert (folder / "in.sock").read_text() == "precious"
    (folder / "in.sock").unlink()
    for name in ("in.sock", "out.sock"):
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(str(folder / name))
    (folder / "log").unlink()
    with Sidecar(folder) as sidecar:
        sidecar.wait_until_up()
        assert sidecar.stop() == 0


@pytest.mark.parametrize(
    ("setting", "code", "what"),
    [
        ("egress.hwm=0", 3, "egress.hwm"),
        ("model.path=/nowhere", 3, "model.path"),
        ("ingress.bind=tcp://0.0.0.0:9999", 3, "allow_remote"),
        ("admin.bind=127.0.0.1:1", 4, "admin.bind"),
    ],
)
def test_what_keeps_it_from_starting_is_said(folder: Path, setting: str, code: int, what: str) -> None:
    if setting.startswith("admin"):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            setting = f"admin.bind=127.0.0.1:{taken.getsockname()[1]}"
            with Sidecar(folder, "--set", setting) as sidecar:
                assert sidecar.wait() == code
    else:
        with Sidecar(folder, "--set", setting) as sidecar:
            assert sidecar.wait() == code
    assert what in sidecar.log[-1]["message"]
    assert not (folder / "in.sock").exists()
