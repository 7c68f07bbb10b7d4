"""Faults: shutdown with messages held, engines that are killed, a network that breaks, everybody killed at random."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import threading
import time
from pathlib import Path

from sidecar.cli import main
from tests.e2e.harness import Producer, Scheduler, Sidecar, wait_until
from tests.service.fakes import read
from tests.service.messages import text
from tests.soak.report import Report
from tests.soak.scenarios import MODEL, lag
from tests.soak.watch import settled
from tests.soak.workers import SPAWN, ImageTemplate, count_arrivals, flood_texts, stand_still, start


def shutdown(report: Report, folder: Path, scale: float) -> None:
    """SIGTERM with 500 queued, with a scheduler that reads and with none."""
    for reading in (True, False):
        here = folder / ("reading" if reading else "absent")
        here.mkdir(mode=0o700)
        report.title(f"SIGTERM with 500 queued, {'a scheduler that reads' if reading else 'no scheduler'}")
        grace = 5.0
        template = ImageTemplate(1 << 20)
        settings = {"shutdown__grace_s": grace, "shutdown__spill_dir": here / "spill", "model__path": MODEL}
        with Sidecar(here, **settings) as sidecar, Producer(sidecar.ingress, 4) as producer:
            sidecar.wait_until_up()
            for number in range(500):
                frames = template.make(f"q{number}", number) if number % 10 == 0 else [text(f"q{number}")]
                producer.send(*frames)
            wait_until(lambda: sidecar.metrics().received == 500)
            began = time.monotonic()
            sidecar.signal()
            if reading:
                with Scheduler(sidecar.egress) as scheduler:
                    code = sidecar.wait()
                    took = time.monotonic() - began
                    rids = {rid for message in scheduler.wait_for(500) for _, rid in read(message[:1])}
            else:
                code = sidecar.wait()
                took = time.monotonic() - began
                (recording,) = (here / "spill").iterdir()
                report.number("spill", recording.stat().st_size / 2**20, "MiB")
        if not reading:
            (here / "log").unlink()
            with Sidecar(here, model__path=MODEL) as successor, Scheduler(successor.egress) as scheduler:
                successor.wait_until_up()
                replayed = main(["replay", str(recording), "--to", successor.ingress])
                report.check("replay's exit code", replayed, replayed == 0, "== 0")
                rids = {rid for message in scheduler.wait_for(500) for _, rid in read(message[:1])}
        report.check("exit code", code, code == 0, "== 0")
        report.check("time to exit", took, took <= grace + 0.5, f"<= {grace:g} s (+ 0.5)")
        report.check("requests delivered in the end", len(rids), len(rids) == 500, "== 500")


def restarts(report: Report, folder: Path, scale: float) -> None:
    """An engine that is killed ten times under load: what is lost, and what the books say."""
    kills = max(int(10 * scale), 3)
    count = kills * 20_000
    for hwm in (8, 1000):
        here = folder / f"hwm{hwm}"
        here.mkdir(mode=0o700)
        report.title(f"an engine killed and restarted {kills} times under {count} texts, high-water marks {hwm}")
        done = SPAWN.Event()
        journal = here / "journal"
        journal.touch()
        settings = {"ingress__hwm": hwm, "egress__hwm": hwm, "model__path": MODEL}
        with Sidecar(here, **settings) as sidecar:
            sidecar.wait_until_up()
            engine = start(count_arrivals, sidecar.egress, hwm, str(journal))
            producer = start(flood_texts, sidecar.ingress, count, hwm, "t", done)
            worst = 0
            for _ in range(kills):
                _wait_for_more(sidecar, 3000, count)
                engine.kill()
                engine.join()
                balance = sidecar.metrics().balance
                worst = max(worst, abs(balance) if sidecar.metrics()["sidecar_engine_connected"] == 0 else 0)
                engine = start(count_arrivals, sidecar.egress, hwm, str(journal))
            metrics = settled(sidecar, count, 300)
            _wait_for_silence(journal)
            seen = journal.read_text().split("\n")[:-1]
            lost = metrics.outcome("forwarded") - len(set(seen))
            report.number("forwarded", metrics.outcome("forwarded"))
            report.number("lost in a broken pipe", lost)
            report.number("lost a kill", lost / kills)
            # Our pipe, the engine's pipe, and the kernel's two buffers full of messages of about 200 bytes.
            bound = kills * (2 * hwm + 2 * 212_992 // 200)
            report.check("losses within the bound", lost, 0 <= lost <= bound, f"<= {bound}")
            report.check("arrived twice", len(seen) - len(set(seen)), len(seen) == len(set(seen)), "== 0")
            report.check("identity, worst of all steps", worst, worst == 0, "== 0")
            report.check("identity at the end", metrics.balance, metrics.balance == 0, "== 0")
            lag(report, sidecar)
            done.set()
            producer.join()
            engine.kill()
            report.check("exit code", code := sidecar.stop(), code == 0, "== 0")


def broken_pipe(report: Report, folder: Path, scale: float) -> None:
    """An engine that hangs and is then killed: what it takes with it is what had been handed over."""
    kinds = {"text of 250 bytes": 0, "text of 20 kB": 20_000, "image of 1 MB": 1 << 20, "image of 12 MB": 12 << 20}
    report.title("messages that are lost with an engine that hangs and is killed, by high-water mark on both sides")
    for hwm in (1, 8, 1000):
        for name, nbytes in kinds.items():
            here = folder / f"{hwm}-{nbytes}"
            here.mkdir(mode=0o700)
            template = ImageTemplate(nbytes) if nbytes >= 1 << 20 else None
            settings = {
                "ingress__hwm": 8,
                "egress__hwm": hwm,
                "model__path": MODEL,
                "limits__inflight_bytes": 512 << 20,
            }
            with Sidecar(here, **settings) as sidecar, Producer(sidecar.ingress, 8) as producer:
                sidecar.wait_until_up()
                engine = start(stand_still, sidecar.egress, hwm)
                wait_until(lambda: sidecar.metrics()["sidecar_engine_connected"] == 1)
                for number in range(12_000 if template is None else 60):
                    if template is not None:
                        frames = template.make(f"r{number}", number)
                    else:
                        frames = [text(f"r{number}", input_text="x" * nbytes)]
                    if not producer.offer(*frames, timeout=1.0):
                        break
                time.sleep(1.0)
                engine.kill()
                engine.join()
                lost = sidecar.metrics().outcome("forwarded")
                report.number(f"{name}, high-water marks {hwm}", lost, "messages")


def _wait_for_more(sidecar: Sidecar, messages: int, total: int) -> None:
    goal = min(sidecar.metrics().received + messages, total)
    wait_until(lambda: sidecar.metrics().received >= goal, 60)


def _wait_for_silence(file: Path) -> None:
    size = -1
    while file.stat().st_size != size:
        size = file.stat().st_size
        time.sleep(0.5)


def _wait_for_growth(file: Path) -> None:
    size = file.stat().st_size
    wait_until(lambda: file.stat().st_size > size + 1000, 30)


class BadNetwork:
    """A TCP proxy that delays, and that resets its connections when told to."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """Cut every connection with a RST."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    connection.shutdown(socket.SHUT_RD)  # lets go of the thread that reads it
                connection.close()
            self._open.clear()

    def close(self) -> None:
        """Accept no more, and cut what is there."""
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if random.random() < 0.01:
                    time.sleep(0.02)
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.close()


def bad_network(report: Report, folder: Path, scale: float) -> None:
    """Frontend and engine over TCP through proxies that delay, cut and reset."""
    count = max(int(20_000 * scale), 4000)
    report.title(f"{count} texts over TCP, through proxies that delay and reset both sides")
    ports = [_free_port() for _ in range(2)]
    settings = {
        "ingress__bind": f"tcp://127.0.0.1:{ports[0]}",
        "egress__bind": f"tcp://127.0.0.1:{ports[1]}",
        "model__path": MODEL,
    }
    with Sidecar(folder, **settings) as sidecar:
        sidecar.wait_until_up()
        frontend, engine = BadNetwork(ports[0]), BadNetwork(ports[1])
        resets = 0
        with (
            Scheduler(f"tcp://127.0.0.1:{engine.port}") as scheduler,
            Producer(f"tcp://127.0.0.1:{frontend.port}", 8) as producer,
        ):
            for number in range(count):
                producer.send(text(f"r{number}"), timeout=60)
                if number % 20 == 19:
                    time.sleep(0.005)  # else the kernel's buffers hold most of them when they are cut
                if number % 500 == 499:
                    (frontend if number % 1000 == 499 else engine).reset()
                    resets += 1
            wait_until(lambda: _quiet(scheduler), 60)
            metrics = settled(sidecar, 0)
            rids = [rid for message in scheduler.received for _, rid in read(message)]
            report.number("resets", resets)
            report.number("received", metrics.received)
            report.number("lost between sidecar and engine", metrics.outcome("forwarded") - len(set(rids)))
            report.check("arrived twice", len(rids) - len(set(rids)), len(rids) == len(set(rids)), "== 0")
            report.check("identity", metrics.balance, metrics.balance == 0, "== 0")
            producer.send(text("after"))
            wait_until(lambda: read(scheduler.received[-1]) == [("add", "after")], 20)
            report.check("it still passes messages", True, True)
        lag(report, sidecar)
        frontend.close()
        engine.close()
        report.check("exit code", code := sidecar.stop(), code == 0, "== 0")


def _quiet(scheduler: Scheduler) -> bool:
    count = len(scheduler.received)
    time.sleep(1.0)
    return len(scheduler.received) == count


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def killed_at_random(report: Report, folder: Path, scale: float) -> None:
    """kill -9 of frontend, sidecar and engine in turn; whoever comes back goes on."""
    rounds = max(int(12 * scale), 3)
    report.title(f"kill -9 of frontend, sidecar and engine, {rounds} rounds, on both event loops")
    journal = folder / "journal"
    journal.touch()
    done = SPAWN.Event()
    sidecar = Sidecar(folder, model__path=MODEL).wait_until_up()
    engine = start(count_arrivals, sidecar.egress, 8, str(journal))
    producer = start(flood_texts, sidecar.ingress, 1 << 30, 8, "p0-", done)
    identity, rises = 0, 0
    for number in range(rounds):
        _wait_for_growth(journal)
        match number % 3:
            case 0:
                producer.kill()
                producer.join()
                metrics = settled(sidecar, 0)
                identity = max(identity, abs(metrics.balance))
                producer = start(flood_texts, sidecar.ingress, 1 << 30, 8, f"p{number}-", done)
            case 1:
                engine.kill()
                engine.join()
                engine = start(count_arrivals, sidecar.egress, 8, str(journal))
            case _:
                sidecar.signal(signal.SIGKILL)
                sidecar.wait()
                (folder / "log").unlink()
                sidecar = Sidecar(folder, loop=random.choice(["uvloop", "asyncio"]), model__path=MODEL).wait_until_up()
                rises += 1
    _wait_for_growth(journal)
    producer.kill()
    producer.join()
    metrics = settled(sidecar, 0)
    seen = journal.read_text().split("\n")[:-1]
    report.number("sidecars that took over a dead one's sockets", rises)
    report.check("arrived twice", len(seen) - len(set(seen)), len(seen) == len(set(seen)), "== 0")
    report.check("identity, worst of all rounds", identity, identity == 0, "== 0")
    report.check("identity at the end", metrics.balance, metrics.balance == 0, "== 0")
    engine.kill()
    report.check("exit code", code := sidecar.stop(), code == 0, "== 0")
