"""The end: everything delivered, or written down, or said to be lost."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from sidecar.cli import main
from sidecar.recording import Reader
from tests.e2e.harness import Producer, Scheduler, Sidecar, wait_until
from tests.service.fakes import read
from tests.service.messages import abort, slow, text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def queue(sidecar: Sidecar, producer: Producer, count: int) -> list[str]:
    """Have the sidecar hold requests, some of them slow; returns their rids."""
    rids = []
    for number in range(count):
        rids.append(f"q{number}")
        producer.send(slow(rids[-1], number) if number % 25 == 0 else text(rids[-1]))
    return rids


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_with_a_reading_scheduler_all_is_delivered(folder: Path, loop: str) -> None:
    with Sidecar(folder, loop=loop) as sidecar, Producer(sidecar.ingress) as producer:
        sidecar.wait_until_up()
        rids = queue(sidecar, producer, 500)
        sidecar.signal()
        with Scheduler(sidecar.egress) as scheduler:
            wait_until(lambda: not sidecar.ready)
            late = [f"late{number}" for number in range(5)]  # what arrives while it drains is read as well
            for rid in late:
                producer.send(text(rid))
            assert sidecar.wait() == 0
            got = sorted(rid for message in scheduler.wait_for(505) for _, rid in read(message))
            assert got == sorted(rids + late)
    (end,) = [entry for entry in sidecar.log if entry["message"] == "ended"]
    assert (end["received"], end["forwarded"]) == (505, 505)


def test_with_no_scheduler_all_is_written_down_and_can_be_replayed(folder: Path) -> None:
    with Sidecar(folder, shutdown__grace_s=1.5, shutdown__spill_dir=folder / "spill") as sidecar:
        sidecar.wait_until_up()
        with Producer(sidecar.ingress) as producer:
            rids = queue(sidecar, producer, 500)
            producer.send(abort("elsewhere"))
            producer.send(abort(rids[-1]))
            wait_until(lambda: sidecar.metrics().received == 500)
            before = time.monotonic()
            assert sidecar.stop() == 0
            assert time.monotonic() - before <= 2.5
    (end,) = [entry for entry in sidecar.log if entry["message"] == "ended"]
    assert (end["received"], end["spilled"], end["cancelled"]) == (500, 499, 1)
    (recording,) = (folder / "spill").iterdir()
    (folder / "log").unlink()
    with Sidecar(folder) as successor, Scheduler(successor.egress) as scheduler:
        successor.wait_until_up()
        assert main(["replay", str(recording), "--to", successor.ingress]) == 0
        got = [rid for message in scheduler.wait_for(500) for _, rid in read(message)]
        assert sorted(got) == sorted([*rids[:-1], "elsewhere"])
        metrics = successor.metrics()
        assert metrics.outcome("forwarded") == 499
        assert metrics.balance == 0


def test_what_the_bound_kept_outside_is_written_down_too(folder: Path) -> None:
    settings = {"limits__inflight_requests": 20, "shutdown__grace_s": 2, "shutdown__spill_dir": folder / "spill"}
    with Sidecar(folder, **settings) as sidecar, Producer(sidecar.ingress) as producer:
        sidecar.wait_until_up()
        for number in range(60):
            producer.send(text(f"r{number}"))
        wait_until(lambda: sidecar.metrics().received == 20)
        assert sidecar.stop() == 0
    (recording,) = (folder / "spill").iterdir()
    with Reader(recording) as reader:
        got = [rid for record in reader for _, rid in read(record.frames)]
    assert got == [f"r{number}" for number in range(60)]


def test_without_a_place_to_write_the_loss_is_said(folder: Path) -> None:
    with Sidecar(folder, shutdown__grace_s=1) as sidecar, Producer(sidecar.ingress) as producer:
        sidecar.wait_until_up()
        producer.send(text("a"))
        producer.send(text("b"))
        wait_until(lambda: sidecar.metrics().received == 2)
        assert sidecar.stop() == 4
    assert "2 messages were neither delivered nor written down" in sidecar.log[-1]["message"]
    (end,) = [entry for entry in sidecar.log if entry["message"] == "ended"]
    assert (end["received"], end["lost"]) == (2, 2)


def test_a_place_that_cannot_be_written_to(folder: Path) -> None:
    (folder / "spill").touch()
    settings = {"shutdown__grace_s": 1, "shutdown__spill_dir": folder / "spill" / "below"}
    with Sidecar(folder, **settings) as sidecar, Producer(sidecar.ingress) as producer:
        sidecar.wait_until_up()
        producer.send(text("a"))
        wait_until(lambda: sidecar.metrics().received == 1)
        assert sidecar.stop() == 4
    assert any("cannot write" in entry["message"] for entry in sidecar.log)


def test_a_second_signal_leaves_at_once(folder: Path) -> None:
    with Sidecar(folder, shutdown__grace_s=60) as sidecar, Producer(sidecar.ingress) as producer:
        sidecar.wait_until_up()
        producer.send(text("a"))
        wait_until(lambda: sidecar.metrics().received == 1)
        sidecar.signal(signal.SIGINT)
        wait_until(lambda: "draining" in sidecar.get("readyz")[1])
        sidecar.signal(signal.SIGTERM)
        assert sidecar.wait(5) == 130
    assert not list(folder.glob("*.sock*"))
