"""A real gateway: one of the pinned builds, as its own process, and the HTTP requests that tests send to it."""

from __future__ import annotations

import base64
import http.client
import json
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.interop.processes import Program, free_port, wait_for

BUILDS: Final = ("smg-1.13.0", "tokenspeed-smg-1.13.0.post20261027", "tokenspeed-smg-1.10.1.post20260920")
TIMEOUT_S: Final = 40.0


@dataclass
class Answer:
    """An HTTP answer: `body` is the parsed JSON, `events` are those of a stream, `seconds` the time it took."""

    status: int
    body: Any = None
    events: list[Any] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The content of all choices, in the order of their index."""
        if self.body is not None:
            return "|".join(choice["message"]["content"] or "" for choice in self.body["choices"])
        return "".join(
            choice["delta"].get("content") or "" for event in self.events for choice in event.get("choices", ())
        )

    @property
    def finish_reasons(self) -> list[str | None]:
        """Why each choice ended."""
        bodies = [self.body] if self.body is not None else self.events
        return [
            choice["finish_reason"]
            for body in bodies
            for choice in body.get("choices", ())
            if choice.get("finish_reason") is not None
        ]


class Gateway:
    """One gateway in front of one worker URL. `restart` starts the same command line again."""

    def __init__(self, build: str, home: Path, model: Path, run: Path, *, ranks: int = 1) -> None:
        self.build = build
        self.model = model
        self.url = f"ipc://{run}/gw"
        self.port = free_port()
        self._log = run / "gateway.log"
        self._command: list[str | Path] = [
            home / build / "bin" / "smg", "launch",
            "--worker-urls", self.url,
            "--backend", "tokenspeed",
            "--model-path", model,
            "--host", "127.0.0.1", "--port", str(self.port),
            "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()),
            "--policy", "passthrough" if ranks == 1 else "round_robin",
            "--disable-retries", "--disable-circuit-breaker",
            "--health-check-interval-secs", "2",
            "--log-level", "debug",
            *(("--zmq-engine-count", str(ranks)) if ranks > 1 else ()),
        ]  # fmt: skip
        self.program = self._start()

    def _start(self) -> Program:
        return Program(self._command, self._log, {"HF_HUB_OFFLINE": "1"})

    def restart(self) -> None:
        """Kill it and start it again on the same ports."""
        self.program.close()
        self.program = self._start()

    def close(self) -> None:
        """End it."""
        self.program.close()

    def is_ready(self) -> bool:
        """Whether its readiness probe says 200."""
        try:
            return self._get("/readiness") == 200
        except OSError:
            return False

    def wait_ready(self, *others: Program, timeout: float = 60.0) -> float:
        """Wait until it is ready; the seconds that it took."""
        return wait_for(f"{self.build} ready", self.is_ready, timeout, logs=(self.program, *others))

    def _get(self, path: str) -> int:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)) as connection:
            connection.request("GET", path)
            return connection.getresponse().status

    def chat(self, *parts: str | bytes, timeout: float = TIMEOUT_S, **options: Any) -> Answer:
        """One chat completion; a part is text or an image's bytes. `stream=True` reads the whole stream."""
        begin = time.monotonic()
        if options.get("stream"):
            with self.stream(*parts, timeout=timeout, **options) as stream:
                answer = Answer(stream.status, None, list(stream))
        else:
            with closing(self._post(parts, options, timeout)) as connection:
                response = connection.getresponse()
                answer = Answer(response.status, json.loads(response.read() or b"null"))
        answer.seconds = time.monotonic() - begin
        return answer

    def stream(self, *parts: str | bytes, timeout: float = TIMEOUT_S, **options: Any) -> Stream:
        """A chat completion whose events are read one by one; leaving the block closes the connection."""
        return Stream(self._post(parts, {**options, "stream": True}, timeout))

    def _post(
        self, parts: tuple[str | bytes, ...], options: dict[str, Any], timeout: float
    ) -> http.client.HTTPConnection:
        content: Any = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else [_part(part) for part in parts]
        body = {
            "model": str(self.model),
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 32,
            "temperature": 0,
            **options,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection


class Stream:
    """The server-sent events of one answer."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._response = connection.getresponse()
        self.status = self._response.status

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
        self._connection.close()

    def __iter__(self) -> Iterator[Any]:
        for line in self._response:
            if line.startswith(b"data: ") and b"[DONE]" not in line:
                yield json.loads(line[6:])


def _part(part: str | bytes) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(part).decode()}"}}


def png(width: int, height: int, seed: int = 0) -> bytes:
    """A gradient, as an RGB PNG."""
    rows = b"".join(
        b"\0" + b"".join(bytes((x * 255 // width, y * 255 // height, (seed * 37 + 64) % 256)) for x in range(width))
        for y in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
