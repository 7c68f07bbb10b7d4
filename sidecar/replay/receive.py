"""Receiving until something ends it: a count, a time, silence, or a signal."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Final

import zmq

_WAKE_MS: Final = 100


class StopSignals:
    """While entered, the first SIGINT or SIGTERM only sets `stopped`; a second SIGINT interrupts.

    Elsewhere than on the main thread, where Python has no signals, it never stops by itself.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.stopped and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.stopped = True


def receive(
    socket: zmq.Socket[bytes],
    stop: StopSignals,
    *,
    count: int | None = None,
    duration_s: float | None = None,
    idle_s: float | None = None,
) -> Iterator[list[bytes]]:
    """The messages of a socket, as frames, until `count` have come, `duration_s` has passed, nothing came
    for `idle_s`, or a signal. What has arrived by then is still given out, so that closing loses nothing."""
    now = time.monotonic()
    deadline = None if duration_s is None else now + duration_s
    last, given = now, 0
    while count is None or given < count:
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            now = time.monotonic()
            if (
                stop.stopped
                or (deadline is not None and now >= deadline)
                or (idle_s is not None and now - last >= idle_s)
            ):
                return
            socket.poll(_WAKE_MS)
            continue
        given += 1
        yield frames
        if given & 63 == 0 or idle_s is not None:
            last = time.monotonic()
            if deadline is not None and last >= deadline + 1:  # a flood must not outlast the deadline
                return
