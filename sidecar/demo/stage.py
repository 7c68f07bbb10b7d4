"""One model's stage: a sink and a sidecar as processes of their own, and a sender, on ipc sockets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

import zmq

from sidecar.demo.cases import parse_metrics
from sidecar.errors import TransportError
from sidecar.recording import Framing, Reader, Record

START_S: Final = 30.0
ARRIVE_S: Final = 10.0
STOP_S: Final = 15.0
_POLL_S: Final = 0.002


class Child:
    """A process whose standard error is kept, and which never outlives its owner."""

    def __init__(self, name: str, arguments: list[str], log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sidecar", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env=_environment(),
            )

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    @property
    def said(self) -> str:
        """What it wrote to its standard error."""
        return self._log.read_text(errors="replace").strip()

    def stop(self) -> int:
        """SIGTERM, and SIGKILL if that is not enough; the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def kill(self) -> None:
        """End it now. Safe to call twice."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _environment() -> dict[str, str]:
    """This process's, without a configuration that somebody has set for another sidecar."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SIDECAR_")}


class Stage:
    """A sink and a sidecar for one model, in a private folder. Leaving the context ends both."""

    def __init__(self, model: Path, folder: Path, framing: Framing) -> None:
        folder.mkdir(mode=0o700)
        self._ingress = f"ipc://{folder}/in.sock"
        egress = f"ipc://{folder}/out.sock"
        self._recording = folder / "sink.rec"
        self._seen = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._admin = f"127.0.0.1:{_free_port()}"
        sink = ["sink", "--connect", egress, "--framing", framing.value, "--record", str(self._recording), "--quiet"]
        self.sink = Child("sink", sink, folder / "sink.log")
        settings = {
            "ingress.bind": self._ingress,
            "egress.bind": egress,
            "ingress.framing": framing.value,
            "model.path": str(model),
            "admin.bind": self._admin,
            "log.level": "warning",
        }
        serve = ["serve", *(f"--set={key}={value}" for key, value in settings.items())]
        try:
            self.sidecar = Child("sidecar", serve, folder / "sidecar.log")
        except BaseException:
            self.sink.kill()
            raise

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.destroy(linger=0)
        for child in (self.sidecar, self.sink):
            child.kill()

    def wait_ready(self) -> None:
        """Wait until the sidecar takes requests and its scheduler is connected. Raises `TransportError`."""
        self._wait(lambda: self._get("readyz") is not None, START_S, "the sidecar did not become ready")
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.set(zmq.IMMEDIATE, 1)  # or the first request's time would be that of the connection
        self._socket.connect(self._ingress)

    def send(self, record: Record) -> float:
        """Send the frames; the moment, in seconds of the monotonic clock that all processes share."""
        assert self._socket is not None
        if not self._socket.poll(int(ARRIVE_S * 1000), zmq.POLLOUT):
            raise TransportError(f"the sidecar took no message for {ARRIVE_S:g} s")
        sent = time.monotonic()
        self._socket.send_multipart([bytes(frame) for frame in record.frames])
        return sent

    def receive(self) -> Record:
        """The next message that the sink has recorded. Raises `TransportError` if none comes."""
        self._wait(lambda: self._next() is not None, ARRIVE_S, "nothing reached the scheduler")
        record = self._next()
        assert record is not None
        self._seen += 1
        return record

    def metrics(self, settled: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """A scrape that `settled` accepts, or the last one after a while."""
        deadline = time.monotonic() + ARRIVE_S
        while True:
            found = parse_metrics(self._get("metrics") or "")
            if settled(found) or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    def stop(self) -> list[str]:
        """End both in order; what was wrong with how they ended."""
        faults = []
        for child in (self.sidecar, self.sink):
            code = child.stop()
            if code != 0:
                faults.append(f"the {child.name} ended with exit code {code}")
        return faults

    @property
    def arrived(self) -> int:
        """Messages that the sink has recorded; to be asked after `stop`."""
        with Reader(self._recording) as reader:
            return reader.count()

    def _next(self) -> Record | None:
        if not self._recording.exists() or self._recording.stat().st_size < 32:
            return None
        with Reader(self._recording) as reader:
            reader.seek(self._seen)
            return next(iter(reader), None)

    def _get(self, path: str) -> str | None:
        """The body of an answer of the admin server, None if it is not 200."""
        try:
            with urllib.request.urlopen(f"http://{self._admin}/{path}", timeout=2) as answer:
                return str(answer.read(), "utf-8")
        except OSError:  # not there yet, or not ready
            return None

    def _wait(self, done: Callable[[], bool], limit_s: float, otherwise: str) -> None:
        deadline = time.monotonic() + limit_s
        while not done():
            for child in (self.sidecar, self.sink):
                if child.code is not None:
                    raise TransportError(f"the {child.name} ended with exit code {child.code}")
            if time.monotonic() > deadline:
                raise TransportError(f"{otherwise} within {limit_s:g} s")
            time.sleep(_POLL_S)


def _free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
