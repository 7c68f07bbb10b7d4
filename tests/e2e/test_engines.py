"""Schedulers that are absent, slow, stalled, gone and back, and the bounds on what is held meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.e2e.harness import Producer, Scheduler, Sidecar, wait_until
from tests.service.fakes import read
from tests.service.messages import abort, slow, text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def rids(scheduler: Scheduler) -> list[str]:
    """What a scheduler got, in order."""
    return [rid for message in scheduler.received for _, rid in read(message)]


def test_an_engine_that_comes_stalls_goes_and_comes_back(folder: Path) -> None:
    with Sidecar(folder, egress__stall_timeout_s=0.5) as sidecar:
        sidecar.wait_until_up()
        with Producer(sidecar.ingress) as producer:
            for number in range(100):
                producer.send(text(f"a{number}"))
            wait_until(lambda: sidecar.metrics().received == 100)
            metrics = sidecar.metrics()
            assert metrics.balance == 0
            assert metrics["sidecar_inflight_requests"] == 100
            assert not sidecar.ready

            with Scheduler(sidecar.egress) as scheduler:
                scheduler.wait_for(100)
                assert rids(scheduler) == [f"a{number}" for number in range(100)]
                wait_until(lambda: sidecar.ready)

                scheduler.pause()
                sent = 0
                while sidecar.ready:
                    producer.send(text(f"b{sent}", input_text="x" * 20_000))
                    sent += 1
                assert "nothing has moved" in sidecar.get("readyz")[1]
                assert sidecar.metrics().balance == 0
                assert sidecar.metrics()["sidecar_egress_stalled_seconds"] >= 0.5
                scheduler.resume()
                scheduler.wait_for(100 + sent)
                wait_until(lambda: sidecar.ready)
                assert rids(scheduler)[100:] == [f"b{number}" for number in range(sent)]

            wait_until(lambda: not sidecar.ready)
            assert sidecar.metrics()["sidecar_engine_connected"] == 0
            for number in range(10):
                producer.send(text(f"c{number}"))
            with Scheduler(sidecar.egress) as successor:
                successor.wait_for(10)
                assert rids(successor) == [f"c{number}" for number in range(10)]
            metrics = sidecar.metrics()
            assert metrics.balance == 0
            assert metrics.outcome("forwarded") == 110 + sent
            assert (metrics["sidecar_engine_connects_total"], metrics["sidecar_engine_disconnects_total"]) == (2, 2)
        assert sidecar.stop() == 0


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_reading_stops_at_the_bound_and_goes_on_without_loss(folder: Path, loop: str) -> None:
    bound = 4 << 20
    size = 100_000
    with Sidecar(folder, loop=loop, limits__inflight_bytes=bound) as sidecar, Producer(sidecar.ingress, 1) as producer:
        sidecar.wait_until_up()
        sent = 0
        while producer.offer(text(f"r{sent}"), bytes(size), timeout=0.5):
            sent += 1
        metrics = sidecar.metrics()
        assert bound <= metrics["sidecar_inflight_bytes"] <= bound + 2 * size
        assert metrics["sidecar_backpressure_seconds_total"] > 0
        assert metrics.balance == 0
        assert bound // size < sent < 2 * bound // size + 40
        with Scheduler(sidecar.egress) as scheduler:
            while len(scheduler.received) < 500:
                producer.send(text(f"r{sent}"), bytes(size))
                sent += 1
            scheduler.wait_for(sent)
            assert rids(scheduler) == [f"r{number}" for number in range(sent)]
            assert all(message[1] == bytes(size) for message in scheduler.received)
            wait_until(lambda: sidecar.metrics()["sidecar_inflight_bytes"] == 0)
        assert sidecar.metrics().balance == 0


def test_one_message_larger_than_the_bound_passes_alone(folder: Path) -> None:
    with Sidecar(folder, limits__inflight_bytes=1 << 20) as sidecar, Producer(sidecar.ingress) as producer:
        sidecar.wait_until_up()
        with Scheduler(sidecar.egress) as scheduler:
            for number in range(5):
                producer.send(text(f"big{number}"), bytes(8 << 20))
            scheduler.wait_for(5)
            assert [len(message[1]) for message in scheduler.received] == [8 << 20] * 5


def test_requests_are_bounded_too(folder: Path) -> None:
    with Sidecar(folder, limits__inflight_requests=50) as sidecar, Producer(sidecar.ingress, 1) as producer:
        sidecar.wait_until_up()
        sent = 0
        while producer.offer(text(f"r{sent}"), timeout=0.5):
            sent += 1
        assert sidecar.metrics()["sidecar_inflight_requests"] == 50
        with Scheduler(sidecar.egress) as scheduler:
            scheduler.wait_for(sent)
        assert rids(scheduler) == [f"r{number}" for number in range(sent)]


def test_add_abort_add_through_slow_work(folder: Path) -> None:
    """What may reach the engine is one of: nothing of a round's first request, or it and then its abort."""
    rounds = 40
    with Sidecar(folder) as sidecar, Producer(sidecar.ingress) as producer, Scheduler(sidecar.egress) as scheduler:
        sidecar.wait_until_up()
        for number in range(rounds):
            rid = f"r{number}"
            producer.send(slow(rid, 1))
            time.sleep(0.001 * (number % 5))
            producer.send(abort(rid))
            time.sleep(0.001 * (number % 3))
            producer.send(slow(rid, 2))
        producer.send(text("end"))
        wait_until(lambda: sidecar.metrics().received == 2 * rounds + 1)
        wait_until(lambda: sidecar.metrics()["sidecar_inflight_requests"] == 0)
        metrics = sidecar.metrics()
        scheduler.wait_for(metrics.outcome("forwarded") + int(metrics.of("sidecar_aborts_total", outcome="forwarded")))
        events: dict[str, list[str]] = {}
        for message in scheduler.received:
            for what, rid in read(message):
                events.setdefault(rid, []).append(what)
        for number in range(rounds):
            assert events[f"r{number}"] in (["add"], ["add", "abort"])
        assert metrics.balance == 0
        cancelled = metrics.outcome("cancelled")
        assert cancelled == sum(seen == ["add"] for seen in events.values()) - 1
        assert metrics.outcome("dropped") == rounds - cancelled
