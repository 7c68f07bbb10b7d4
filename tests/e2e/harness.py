"""Real processes on real sockets: a sidecar, producers that stay, and schedulers that come and go."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import zmq

from tests.build import QWEN_CONFIG

START_S: Final = 20.0
STOP_S: Final = 30.0

_SAMPLE: Final = re.compile(r"^(\w+)(?:\{([^}]*)\})? ([^ ]+)$")


class Sidecar:
    """`sidecar serve` as a process. `folder` holds its sockets and its log; `settings` are `--set` pairs."""

    def __init__(self, folder: Path, *arguments: str, loop: str = "uvloop", **settings: Any) -> None:
        self.folder = folder
        self.ingress = f"ipc://{folder}/in.sock"
        self.egress = f"ipc://{folder}/out.sock"
        (folder / "config.json").write_text(json.dumps(QWEN_CONFIG))
        values = {
            "model.path": folder / "config.json",
            "ingress.bind": self.ingress,
            "egress.bind": self.egress,
            "admin.bind": "127.0.0.1:0",
            "log.format": "json",
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        sets = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        self._log = (folder / "log").open("a")
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sidecar", "serve", "--loop", loop, *sets, *arguments], stderr=self._log
        )
        self.url = ""

    def __enter__(self) -> Sidecar:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._log.close()

    @property
    def log(self) -> list[dict[str, Any]]:
        """What it said, an entry a line; lines that are no JSON are messages."""
        entries = []
        for line in (self.folder / "log").read_text().splitlines():
            try:
                entries.append(json.loads(line))
            except ValueError:
                entries.append({"message": line})
        return entries

    def wait_until_up(self) -> Sidecar:
        """Wait until it reads messages."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for entry in self.log:
                if "admin" in entry:
                    self.url = entry["admin"]
                    return self
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"the sidecar did not start: {self.log}")

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of an admin path."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    @property
    def ready(self) -> bool:
        """What /readyz says."""
        return self.get("readyz")[0] == 200

    def metrics(self) -> Metrics:
        """A scrape."""
        return Metrics(self.get("metrics")[1])

    def rss(self) -> int:
        """Resident memory in bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self, timeout: float = STOP_S) -> int:
        """The exit code."""
        return self.process.wait(timeout)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.signal()
        return self.wait()


class Metrics:
    """A parsed scrape: `metrics["name"]` sums all series, `metrics.of("name", label="value")` some."""

    def __init__(self, text: str) -> None:
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for line in text.splitlines():
            match = _SAMPLE.match(line)
            if match is not None:
                labels = frozenset(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                self.samples[match[1], labels] = float(match[3])

    def __getitem__(self, name: str) -> float:
        return self.of(name)

    def of(self, name: str, **labels: str) -> float:
        """The sum of the series that carry these labels."""
        wanted = set(labels.items())
        return sum(value for (other, has), value in self.samples.items() if other == name and wanted <= has)

    def outcome(self, outcome: str) -> int:
        """Requests with an outcome."""
        return int(self.of("sidecar_requests_total", outcome=outcome))

    @property
    def received(self) -> int:
        """Messages that must have exactly one outcome."""
        received = "sidecar_messages_received_total"
        return int(self.of(received, kind="generate") + self.of(received, kind="unreadable"))

    @property
    def balance(self) -> int:
        """Zero where the accounting identity holds."""
        return self.received - int(self["sidecar_requests_total"]) - int(self["sidecar_inflight_requests"])

    def lag_quantile(self, q: float) -> float:
        """The upper bound of the bucket that holds this quantile of the event loop's lag, in seconds."""
        name = "sidecar_event_loop_lag_seconds_bucket"
        buckets = sorted(
            (float(dict(labels)["le"]), value) for (other, labels), value in self.samples.items() if other == name
        )
        total = buckets[-1][1]
        return next(bound for bound, count in buckets if count >= q * total)


class Producer:
    """A PUSH socket that stays connected until it is closed."""

    def __init__(self, address: str, hwm: int = 1000) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.set_hwm(hwm)
        self._socket.linger = 0
        self._socket.immediate = 1
        self._socket.connect(address)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._context.destroy(linger=0)

    def send(self, *frames: bytes, timeout: float = 20.0) -> None:
        """Send, or fail after a while."""
        assert self.offer(*frames, timeout=timeout), "the sidecar does not take messages"

    def offer(self, *frames: bytes, timeout: float = 0.0) -> bool:
        """Send, unless it is not taken in time."""
        if not self._socket.poll(int(timeout * 1000), zmq.POLLOUT):
            return False
        self._socket.send_multipart(frames, copy=False)
        return True

    def send_all(self, messages: Iterable[Sequence[bytes]]) -> None:
        """Send many."""
        for frames in messages:
            self.send(*frames)


class Scheduler:
    """A PULL socket on a thread. `received` are the messages; `pause` stops reading, `close` goes away."""

    def __init__(self, address: str, hwm: int = 8, *, bind: bool = False) -> None:
        self.received: list[list[bytes]] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.set_hwm(hwm)
        self._socket.linger = 0
        self._reading = threading.Event()
        self._reading.set()
        self._closing = False
        if bind:
            self._socket.bind(address)
        else:
            self._socket.connect(address)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def pause(self) -> None:
        """Read no more."""
        self._reading.clear()

    def resume(self) -> None:
        """Read on."""
        self._reading.set()

    def wait_for(self, count: int, timeout: float = 20.0) -> list[list[bytes]]:
        """The messages, once there are so many."""
        wait_until(lambda: len(self.received) >= count, timeout, lambda: f"{len(self.received)} of {count} arrived")
        return self.received

    def close(self) -> None:
        """Leave."""
        self._closing = True
        self._reading.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _read(self) -> None:
        while not self._closing:
            self._reading.wait()
            if self._socket.poll(10):
                while self._reading.is_set() and not self._closing:
                    try:
                        self.received.append(self._socket.recv_multipart(zmq.NOBLOCK))
                    except zmq.Again:
                        break


def wait_until(condition: Callable[[], bool], timeout: float = 10.0, what: Callable[[], str] | None = None) -> None:
    """Wait for a condition, or fail."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, what() if what is not None else "it did not happen"
        time.sleep(0.01)


def maps_torch(pid: int) -> bool:
    """Whether a process has loaded torch."""
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def is_alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
