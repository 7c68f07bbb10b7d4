"""A sidecar under traffic, as a user would start it: sink, serve and replay as processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.ops import traffic

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(url: str) -> tuple[int, bytes]:
    """Status and body of a GET."""
    try:
        with urlopen(url, timeout=5) as response:
            return response.status, response.read()
    except HTTPError as error:
        return error.code, error.read()


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first true value of a condition that is asked ten times a second."""
    deadline = time.monotonic() + seconds
    problem: Exception | None = None
    while time.monotonic() < deadline:
        try:
            if value := condition():
                return value
        except OSError as error:
            problem = error
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {seconds:g} s ({problem})")


class Processes:
    """Child processes that end with the test run, whatever happens. Their output goes to files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, name: str, *command: str, **env: str) -> subprocess.Popen[bytes]:
        """Start a program; `name` names its log."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env={**os.environ, **env}, process_group=0
            )
        self._running.append((name, process))
        return process

    def log(self, name: str) -> str:
        """What a program has said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def check(self) -> None:
        """Fail if a program has ended by itself."""
        for name, process in self._running:
            assert process.poll() is None, f"{name} ended with {process.returncode}:\n{self.log(name)[-3000:]}"

    def stop(self) -> None:
        """End all, the last one first."""
        for _, process in reversed(self._running):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


class Stack:
    """Sink, sidecar and replaying frontend. `url` is the admin server's, without the slash at the end."""

    def __init__(self, processes: Processes) -> None:
        sidecar = (sys.executable, "-m", "sidecar")
        self.processes = processes
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.ingress = f"ipc://{processes.folder}/ingress.sock"
        scheduler = f"ipc://{processes.folder}/scheduler.sock"
        self.sidecar = processes.start(
            "sidecar",
            *(*sidecar, "serve"),
            *("--set", f"ingress.bind={self.ingress}", "--set", f"egress.bind={scheduler}"),
            *("--set", f"admin.bind=127.0.0.1:{self.port}", "--set", "log.format=json"),
            *("--set", f"quarantine.dir={processes.folder}/quarantine"),
        )
        processes.start("sink", *sidecar, "sink", "--connect", scheduler, "--quiet")
        wait_for("the sidecar is ready", lambda: fetch(f"{self.url}/readyz")[0] == 200)
        recording = traffic.write(processes.folder / "traffic.rec")
        processes.start(
            "frontend",
            *sidecar,
            "replay",
            str(recording),
            "--to",
            self.ingress,
            "--rids",
            "fresh",
            "--rate",
            "100",
            "--loop",
        )

    def series(self) -> set[str]:
        """Every series on the metrics page, without its value."""
        text = fetch(f"{self.url}/metrics")[1].decode()
        return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}

    def status(self) -> dict[str, Any]:
        """The status page's numbers."""
        shown: dict[str, Any] = json.loads(fetch(f"{self.url}/status.json")[1])
        return shown


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Programs of this test run."""
    started = Processes(tmp_path_factory.mktemp("ops"))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def stack(processes: Processes) -> Stack:
    """A sidecar with traffic flowing through it."""
    running = Stack(processes)
    wait_for("requests flow", lambda: running.status()["outcomes"]["forwarded"] > 100)
    processes.check()
    return running
