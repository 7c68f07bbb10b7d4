"""Receiving: a reader callback that takes what is there, a batch at a time, and never waits for a message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import zmq

from sidecar.transport.egress import BULK_BYTES, REFERENCE_BYTES
from sidecar.wire.msgpack import Buffer

Handler = Callable[[list[Buffer], int], None]
"""Takes a message's frames and their bytes. What it raises is logged and ends nothing."""

BATCH_MESSAGES: Final = 64
BATCH_S: Final = 0.001
"""The loop is given to others after so many messages or so much time."""

CLOCK_MESSAGES: Final = 8
"""The time is looked at after every large message, and after so many small ones."""

_NOBLOCK: Final = int(zmq.NOBLOCK)
_EVENTS: Final = int(zmq.EVENTS)

logger = logging.getLogger(__name__)


class Ingress:
    """Reads a socket that has POLLIN (PULL, DEALER, ROUTER) on the running event loop.

    libzmq's descriptor is edge-triggered: it becomes readable when something happened, not while
    something is there. So after every event the socket is read until it says EAGAIN, and a batch that
    ends earlier schedules the next one.

    Frames below `REFERENCE_BYTES` are copied into bytes, larger ones are views of libzmq's own buffer,
    which lives as long as any view of it.

    libzmq hears of a peer that has begun to send when its socket is found empty, and otherwise after a
    hundred messages: a hundred images of a peer that always has another are half a second. It is made to
    listen before every batch and after every large message, so that all peers have their turns.

    `on_batch_end()` is called after the last message of each batch, which may be its only one, and
    `on_bulk()` after every message of `BULK_BYTES` or more.
    """

    def __init__(
        self,
        socket: zmq.Socket[Any],
        handler: Handler,
        on_batch_end: Callable[[], None] | None = None,
        on_bulk: Callable[[], object] | None = None,
    ) -> None:
        self.messages = 0
        self.empty = False
        """Whether the last look found nothing more to read."""
        self._socket = socket
        self._handler = handler
        self._on_batch_end = on_batch_end
        self._on_bulk = on_bulk
        self._loop = asyncio.get_running_loop()
        self._descriptor = socket.fileno()
        self._reading = False
        self._scheduled: asyncio.Handle | None = None

    @property
    def reading(self) -> bool:
        """Whether messages are taken as they arrive."""
        return self._reading

    def resume(self) -> None:
        """Read from now on."""
        if not self._reading:
            self._reading = True
            self._loop.add_reader(self._descriptor, self._drain)
            self._schedule()

    def pause(self) -> None:
        """Read no more; takes effect before the next message. Nothing that is there is lost."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._descriptor)
            if self._scheduled is not None:
                self._scheduled.cancel()
                self._scheduled = None

    def close(self) -> None:
        """Pause, and close the socket. What peers had in our receive buffers is lost."""
        self.pause()
        self._socket.close(linger=0)

    def _schedule(self) -> None:
        if self._scheduled is None:
            self._scheduled = self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._scheduled = None
        self._drain()

    def _drain(self) -> None:
        self._take_batch()
        if self._on_batch_end is not None:
            try:
                self._on_batch_end()
            except Exception:
                logger.exception("the end of a batch could not be handled")

    def _take_batch(self) -> None:
        receive, handler, listen = self._socket.recv, self._handler, self._socket.get
        deadline = perf_counter() + BATCH_S
        nbytes = REFERENCE_BYTES
        for taken in range(BATCH_MESSAGES):
            if nbytes >= REFERENCE_BYTES:
                listen(_EVENTS)
            try:
                frame = receive(_NOBLOCK, False)
            except zmq.Again:
                self._count(taken, True)
                return
            nbytes = len(frame)
            frames: list[Buffer] = [frame.bytes if nbytes < REFERENCE_BYTES else frame.buffer]
            while frame.more:
                frame = receive(_NOBLOCK, False)
                size = len(frame)
                nbytes += size
                frames.append(frame.bytes if size < REFERENCE_BYTES else frame.buffer)
            try:
                handler(frames, nbytes)
            except Exception:
                logger.exception("a message of %d frames and %d bytes could not be handled", len(frames), nbytes)
            if nbytes >= BULK_BYTES and self._on_bulk is not None:
                self._on_bulk()
            if not self._reading:
                self._count(taken + 1, False)
                return
            if (nbytes >= REFERENCE_BYTES or not taken % CLOCK_MESSAGES) and perf_counter() > deadline:
                break
        self._count(taken + 1, False)
        self._schedule()

    def _count(self, taken: int, empty: bool) -> None:
        self.messages += taken
        self.empty = empty
