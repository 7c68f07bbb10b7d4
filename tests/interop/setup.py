"""A gateway, an engine and, between them, a sidecar in relay mode or nothing."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from sidecar.wire.handshake import handshake_address
from tests.interop import models
from tests.interop.gateway import Gateway
from tests.interop.processes import Program, free_port, wait_for

HERE: Final = Path(__file__).parent
SIDECAR: Final = Path(sys.executable).with_name("sidecar")
HOME_VARIABLE: Final = "INTEROP_HOME"
"""Names the folder of the virtual environments that scripts/interop-venvs.sh has made."""


def home() -> Path:
    """The folder of the virtual environments."""
    return Path(os.environ[HOME_VARIABLE]).resolve()


class Pair:
    """A gateway and an engine of `ranks` ranks, with a sidecar between them if `relay` says so."""

    def __init__(self, build: str, model: str, *, relay: bool, ranks: int = 1, sets: Sequence[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="relay-", ignore_cleanup_errors=True)
        self.run = Path(self._folder.name)
        self.model = models.build(model, home() / "models")
        self.ranks = ranks
        self.gateway = Gateway(build, home(), self.model, self.run, ranks=ranks)
        self.sidecar: Program | None = None
        self._sidecar_command: list[str | Path] = []
        self._handshake = handshake_address(self.gateway.url)
        if relay:
            self._handshake = f"tcp://127.0.0.1:{free_port()}"
            self._sidecar_command = self._command(sets)
            self.start_sidecar()
        self.start_engine()

    def _command(self, sets: Sequence[str]) -> list[str | Path]:
        self.admin_port = free_port()
        keys = {
            "mode": "relay",
            "relay.frontend_handshake": self.gateway.url,
            "relay.engine_handshake": self._handshake,
            "relay.socket_dir": str(self.run / "sidecar"),
            "model.path": str(self.model),
            "admin.bind": f"127.0.0.1:{self.admin_port}",
        }
        options = [
            part for key in (*(f"{key}={value}" for key, value in keys.items()), *sets) for part in ("--set", key)
        ]
        return [SIDECAR, "serve", *options]

    def start_sidecar(self) -> None:
        """Start the sidecar, again after its end."""
        self.sidecar = Program(self._sidecar_command, self.run / "sidecar.log")

    def start_engine(self) -> None:
        """Start an engine, again after its end."""
        self.engine = Program(
            [
                home() / "engine" / "bin" / "python", HERE / "engine_process.py",
                "--handshake", self._handshake,
                "--events", self.run / "events",
                "--model", self.model,
                "--ranks", str(self.ranks),
            ],
            self.run / "engine.log",
            {"CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip

    @property
    def programs(self) -> list[Program]:
        """All processes, the gateway first."""
        return [self.gateway.program, *([self.sidecar] if self.sidecar is not None else []), self.engine]

    def wait_ready(self) -> float:
        """Wait until the gateway takes requests; the seconds that it took."""
        return self.gateway.wait_ready(*self.programs[1:])

    def wait_answer(self, timeout: float = 60.0) -> float:
        """Ask until a request is answered as it should; the seconds that it took."""

        def answered() -> bool:
            try:
                answer = self.gateway.chat("Say hi.", timeout=10)
            except (OSError, HTTPException):
                return False
            return answer.status == 200 and answer.text == "hello"

        return wait_for("an answer", answered, timeout, logs=self.programs)

    def events(self, kind: str = "request") -> list[dict[str, Any]]:
        """What the engines have written down, of one kind."""
        path = self.run / "events"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def wait_event(self, kind: str, count: int = 1, timeout: float = 15.0) -> list[dict[str, Any]]:
        """Wait for the engines' `count`-th event of a kind."""
        wait_for(f"{count} x {kind}", lambda: len(self.events(kind)) >= count, timeout, logs=self.programs)
        return self.events(kind)

    def wait_log(self, text: str, timeout: float = 30.0) -> None:
        """Wait until the sidecar's log holds a text."""
        sidecar = self.sidecar
        assert sidecar is not None
        wait_for(f"a log line with {text!r}", lambda: text in sidecar.output(), timeout, logs=self.programs)

    def metrics(self) -> dict[str, float]:
        """The sidecar's metrics, by name and labels."""
        with socket.create_connection(("127.0.0.1", self.admin_port), timeout=5) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
            text = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        lines = [line.rsplit(" ", 1) for line in text.split("\r\n\r\n", 1)[1].splitlines() if line[:1] not in ("#", "")]
        return {name: float(value) for name, value in lines}

    def close(self) -> None:
        """End everything."""
        for program in reversed(self.programs):
            program.close()
        self._folder.cleanup()
