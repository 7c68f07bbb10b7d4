"""Load: many messages, much memory, aborts in the middle of work, text beside images."""

from __future__ import annotations

import statistics
import time
import zlib
from pathlib import Path

from tests.e2e.harness import Producer, Scheduler, Sidecar, wait_until
from tests.service.fakes import read
from tests.service.messages import abort
from tests.soak.report import Report
from tests.soak.watch import Watch, settled
from tests.soak.workers import (
    SPAWN,
    ImageTemplate,
    consume,
    flood_images,
    flood_texts,
    measure,
    pace_texts,
    start,
)

MODEL = "config/models/qwen3_5"
LAG_BOUND_S = 0.010


def lag(report: Report, sidecar: Sidecar) -> None:
    """The event loop's lag, from the sidecar's own histogram."""
    quantile = sidecar.metrics().lag_quantile(0.99)
    report.check("loop lag p99 (bucket)", quantile, quantile <= LAG_BOUND_S, f"<= {LAG_BOUND_S} s")


def million(report: Report, folder: Path, scale: float, loop: str) -> None:
    """Small messages as fast as they are taken, with scrapes at 20 Hz beside them."""
    count = int((1_000_000 if loop == "uvloop" else 100_000) * scale)
    report.title(f"{count} small messages on {loop}, scraped 20 times a second")
    results, stop, done = SPAWN.Queue(), SPAWN.Event(), SPAWN.Event()
    hwm = {"ingress__hwm": 1000, "egress__hwm": 1000}
    with Sidecar(folder, loop=loop, model__path=MODEL, **hwm) as sidecar:
        sidecar.wait_until_up()
        consumer = start(consume, sidecar.egress, 1000, results, stop, count)
        wait_until(lambda: sidecar.ready)
        began = time.monotonic()
        producers = [start(flood_texts, sidecar.ingress, count // 2, 1000, f"p{n}-", done) for n in range(2)]
        with Watch(sidecar) as watch:
            got = results.get(timeout=3600)
        took = time.monotonic() - began
        metrics = settled(sidecar, count // 2 * 2)
        report.number("rate", count / took, "messages/s")
        report.check("messages that arrived", got["count"], got["count"] == count // 2 * 2, f"== {count // 2 * 2}")
        report.check("messages that arrived twice", got["twice"], got["twice"] == 0, "== 0")
        report.check("longest silence", got["longest"], got["longest"] < 1.0, "< 1 s")
        report.check("identity", metrics.balance, metrics.balance == 0, "== 0")
        report.check(f"slowest of {watch.scrapes} scrapes", watch.slowest, watch.slowest < 0.25, "< 0.25 s")
        lag(report, sidecar)
        done.set()
        for process in (*producers, consumer):
            process.join()
        report.check("exit code", code := sidecar.stop(), code == 0, "== 0")


def stalled_memory(report: Report, folder: Path, scale: float) -> None:
    """A scheduler that stands still while far more is offered than may be held."""
    bound = 256 << 20
    size = 12 << 20
    count = max(int((4 << 30) * scale / size), 40)
    report.title(f"{count} messages of 12 MB for a scheduler that is paused, inflight_bytes 256 MiB")
    template = ImageTemplate(size)
    sent, done = SPAWN.Value("q", 0), SPAWN.Event()
    with Sidecar(folder, model__path=MODEL, limits__inflight_bytes=bound) as sidecar:
        sidecar.wait_until_up()
        idle = sidecar.rss()
        scheduler = Scheduler(sidecar.egress)
        scheduler.pause()
        wait_until(lambda: sidecar.metrics()["sidecar_engine_connected"] == 1)
        producer = start(flood_images, sidecar.ingress, size, count, "m", sent, done)
        with Watch(sidecar) as watch:
            time.sleep(max(20 * scale, 6))
        report.number("idle memory", idle / 2**20, "MiB")
        report.number("most in flight", watch.peak_inflight / 2**20, "MiB")
        limit = 1.5 * bound + idle
        report.check("peak memory, MiB", watch.peak_rss / 2**20, watch.peak_rss < limit, f"< {limit / 2**20:.0f}")
        report.check(f"slowest of {watch.scrapes} scrapes", watch.slowest, watch.slowest < 0.25, "< 0.25 s")
        report.check("identity", balance := sidecar.metrics().balance, balance == 0, "== 0")
        crc, got = 0, 0
        scheduler.resume()
        twice: dict[str, int] = {}
        deadline = time.monotonic() + 300
        while got < count and time.monotonic() < deadline:
            while scheduler.received:
                frames = scheduler.received.pop(0)
                (_, rid) = read(frames[:1])[0]
                twice[rid] = twice.get(rid, 0) + 1
                crc = (crc + zlib.crc32(frames[1])) & 0xFFFFFFFF
                got += 1
            time.sleep(0.005)
        expected = 0
        for number in range(count):
            expected = (expected + zlib.crc32(template.make("x", number)[1])) & 0xFFFFFFFF
        report.check("arrived after resuming", len(twice), len(twice) == count, f"== {count}")
        report.check("arrived twice", got - len(twice), got == len(twice), "== 0")
        report.check("checksum of all features", hex(crc), crc == expected, hex(expected))
        metrics = settled(sidecar, count)
        report.check("identity at the end", metrics.balance, metrics.balance == 0, "== 0")
        lag(report, sidecar)
        done.set()
        producer.join()
        scheduler.close()
        report.check("exit code", code := sidecar.stop(), code == 0, "== 0")


def abort_rounds(report: Report, folder: Path, scale: float) -> None:
    """Add, abort, add of one rid, with gaps of 0 to 10 ms, through slow hashing."""
    rounds = max(int(300 * scale), 30)
    report.title(f"{rounds} rounds of add, abort, add through the hashing of 12 MB and 2 MB")
    templates = [ImageTemplate(12 << 20), ImageTemplate(2 << 20)]
    with Sidecar(folder, model__path=MODEL) as sidecar, Producer(sidecar.ingress, 4) as producer:
        sidecar.wait_until_up()
        with Scheduler(sidecar.egress) as scheduler:
            wait_until(lambda: sidecar.ready)
            events: dict[str, list[str]] = {}

            def drain() -> None:
                while scheduler.received:
                    for what, rid in read(scheduler.received.pop(0)[:1]):
                        events.setdefault(rid, []).append(what)

            for number in range(rounds):
                rid = f"r{number}"
                template = templates[number % 2]
                producer.send(*template.make(rid, 2 * number))
                time.sleep(number % 11 / 1000)
                producer.send(abort(rid))
                time.sleep(number // 11 % 11 / 1000)
                producer.send(*template.make(rid, 2 * number + 1))
                drain()
            metrics = settled(sidecar, 2 * rounds)
            time.sleep(0.5)
            drain()
            clean = sum(seen == ["add"] for seen in events.values())
            live = sum(seen == ["add", "abort"] for seen in events.values())
            report.number("first add taken back, second forwarded", clean)
            report.number("first add forwarded, aborted, second dropped", live)
            report.check("rounds that ended in one of these", clean + live, clean + live == rounds, f"== {rounds}")
            cancelled, dropped = metrics.outcome("cancelled"), metrics.outcome("dropped")
            report.check("cancelled", cancelled, cancelled == clean, f"== {clean}")
            report.check("dropped as duplicates", dropped, dropped == live, f"== {live}")
            report.check("identity", metrics.balance, metrics.balance == 0, "== 0")
            lag(report, sidecar)
        report.check("exit code", code := sidecar.stop(), code == 0, "== 0")


def fairness(report: Report, folder: Path, scale: float) -> None:
    """Text latency beside images that have to be hashed: at a steady rate, and as fast as they are taken."""
    runs, seconds = (5, 5.0) if scale >= 1 else (3, 3.0)
    report.title(f"text at 100/s alone and beside 12 MB images without a hash, {runs} runs of {seconds:g} s")
    loads = {"alone": None, "beside 20 images/s": 20.0, "beside 40 images/s": 40.0, "beside a flood": 0.0}
    with Sidecar(folder, model__path=MODEL) as sidecar:
        sidecar.wait_until_up()
        found: dict[str, list[float]] = {name: [] for name in loads}
        images: list[float] = []
        for number in range(runs):
            for name, rate in loads.items():
                latencies, others = _text_latencies(sidecar, f"{number}{name[-3:]}", rate, seconds)
                found[name].append(statistics.quantiles(latencies, n=100)[98])
                if rate == 0:
                    images.append(others / seconds)
        report.number("images in the flood", statistics.median(images), "a second")
        alone = statistics.median(found["alone"])
        report.number("p99 alone, median of the runs", alone * 1000, "ms")
        limit = max(3 * alone, 0.010)
        for name in list(loads)[1:]:
            p99 = statistics.median(found[name])
            report.check(f"p99 {name}, ms", p99 * 1000, p99 <= limit, f"<= {limit * 1000:.3g}")
        report.check("identity", balance := settled(sidecar, 0).balance, balance == 0, "== 0")
        lag(report, sidecar)
        report.check("exit code", code := sidecar.stop(), code == 0, "== 0")


def _text_latencies(sidecar: Sidecar, prefix: str, rate: float | None, seconds: float) -> tuple[list[float], int]:
    """Latencies of texts in seconds, and how many images passed beside them; `rate` None: none, 0: a flood."""
    results, stop, done, sent = SPAWN.Queue(), SPAWN.Event(), SPAWN.Event(), SPAWN.Value("q", 0)
    scheduler = start(measure, sidecar.egress, 8, results, stop)
    wait_until(lambda: sidecar.ready)
    workers = []
    if rate is not None:
        workers.append(start(flood_images, sidecar.ingress, 12 << 20, 1 << 30, f"i{prefix}", sent, done, rate))
        wait_until(lambda: sent.value > 2, 20)
    texts = start(pace_texts, sidecar.ingress, 100.0, seconds, f"t{prefix}")
    texts.join()
    done.set()
    for worker in workers:
        worker.join()
    time.sleep(0.5)
    stop.set()
    got = results.get(timeout=60)
    scheduler.join()
    (latencies,) = got["latencies"].values()
    return latencies, got["others"]
