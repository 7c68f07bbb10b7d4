"""Taps on the running service: opened and closed over the admin server, fed on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import zmq

from sidecar.errors import UsageError
from sidecar.recording import Direction, Framing
from sidecar.recording.tap import Tap, check_tap_address, parse_directions, tap_socket
from sidecar.wire.msgpack import Buffer

MAX_TAPS: Final = 4

_ANSWER_S: Final = 5.0


class NoTaps:
    """Where nothing can be tapped."""

    active: Final = False

    def offer(self, direction: Direction, frames: Sequence[Buffer], outcome: str = "") -> None:
        """Nobody wants it."""


class Taps:
    """The open taps, by the recorder's address. All but `post` and `delete` on the event loop's thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], ingress: Framing, egress: Framing) -> None:
        self.active = False
        """Whether there is any: asked for every message, before anything else is."""
        self._context = context
        self._framings = {Direction.INGRESS: ingress, Direction.EGRESS: egress, Direction.OUTPUT: egress}
        self._taps: dict[str, Tap] = {}
        self._dropped = 0
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._taps)

    @property
    def dropped(self) -> int:
        """Messages that recorders missed, those of closed taps included."""
        return self._dropped + sum(tap.dropped for tap in list(self._taps.values()))

    def offer(self, direction: Direction, frames: Sequence[Buffer], outcome: str = "") -> None:
        """Copy a message to whoever wants it. A recorder that is gone loses its tap."""
        for address, tap in list(self._taps.items()):
            tap.offer(direction, self._framings[direction], frames, outcome)
            if tap.abandoned:
                self._close(address)

    def post(self, query: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        """Open a tap: `POST /tap?direction=both&to=ipc://...`. From a thread of the admin server."""
        return self._on_loop(self._open, query)

    def delete(self, query: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        """Close a tap: `DELETE /tap?to=ipc://...`. From a thread of the admin server."""
        return self._on_loop(self._end, query)

    def close(self) -> None:
        """Close all."""
        for address in list(self._taps):
            self._close(address)

    def _open(self, query: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        address = query.get("to", "")
        if address not in self._taps and len(self._taps) >= MAX_TAPS:
            return 409, {"error": f"{MAX_TAPS} taps are open already"}
        try:
            directions = parse_directions(query.get("direction", "both"))
            socket = tap_socket(self._context, check_tap_address(address))
        except UsageError as error:
            return 400, {"error": str(error)}
        except zmq.ZMQError as error:
            return 500, {"error": f"cannot connect to the recorder: {error}"}
        self._close(address)
        self._taps[address] = Tap(socket, directions)
        self.active = True
        return 200, {"tap": address, "directions": sorted(directions)}

    def _end(self, query: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        address = query.get("to", "")
        if address not in self._taps:
            return 404, {"error": "there is no such tap"}
        self._close(address)
        return 200, {"closed": address}

    def _close(self, address: str) -> None:
        tap = self._taps.pop(address, None)
        if tap is not None:
            self._dropped += tap.dropped
            tap.close()
        self.active = bool(self._taps)

    def _on_loop(
        self,
        handler: Callable[[Mapping[str, str]], tuple[int, Mapping[str, Any]]],
        query: Mapping[str, str],
    ) -> tuple[int, Mapping[str, Any]]:
        answer: Future[tuple[int, Mapping[str, Any]]] = Future()
        self._loop.call_soon_threadsafe(lambda: answer.set_result(handler(query)))
        return answer.result(_ANSWER_S)
