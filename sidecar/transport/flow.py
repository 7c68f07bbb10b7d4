"""Back-pressure as one small object: what is held, its bounds, and when to stop and to go on reading."""

from __future__ import annotations

from collections.abc import Callable


class FlowControl:
    """Counts the bytes and the messages that are held, and pauses reading at either bound.

    A message's bytes count from its receipt until libzmq has let go of its last buffer, the message
    itself until it is handed over. Since a message's size is known only once it is here, the bound is
    passed by at most one message; a message larger than the bound is taken when nothing else is held.
    `clock` is a steady one, in seconds. For the event loop's thread alone.
    """

    __slots__ = ("_clock", "_paused_at", "_paused_s", "bytes", "max_bytes", "max_messages", "messages", "on_change")

    def __init__(self, max_bytes: int, max_messages: int, clock: Callable[[], float]) -> None:
        self.max_bytes = max_bytes
        self.max_messages = max_messages
        self.bytes = 0
        self.messages = 0
        self.on_change: Callable[[bool], None] | None = None
        self._clock = clock
        self._paused_at: float | None = None
        self._paused_s = 0.0

    @property
    def paused(self) -> bool:
        """Whether reading has been stopped."""
        return self._paused_at is not None

    @property
    def paused_seconds(self) -> float:
        """For how long reading has been stopped so far, all pauses together."""
        since = self._paused_at
        return self._paused_s + (self._clock() - since if since is not None else 0.0)

    def take(self, nbytes: int, messages: int = 1) -> None:
        """Something more is held."""
        self.bytes += nbytes
        self.messages += messages
        if self._paused_at is None and self._full():
            self._paused_at = self._clock()
            if self.on_change is not None:
                self.on_change(True)

    def give(self, nbytes: int, messages: int = 0) -> None:
        """Something is held no more."""
        self.bytes -= nbytes
        self.messages -= messages
        if self._paused_at is not None and not self._full():
            self._paused_s += self._clock() - self._paused_at
            self._paused_at = None
            if self.on_change is not None:
                self.on_change(False)

    def _full(self) -> bool:
        return self.bytes >= self.max_bytes or self.messages >= self.max_messages
