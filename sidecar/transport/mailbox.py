"""What other threads hand to the event loop: in order, with one wake-up for all that has come since the last."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Belongs to the running loop; `on_mail(letters)` is called there and takes them off the left."""

    def __init__(self, on_mail: Callable[[deque[T]], None]) -> None:
        self._letters: deque[T] = deque()
        self._on_mail = on_mail
        self._loop = asyncio.get_running_loop()
        self._woken = False
        self._closed = False

    def put(self, letter: T) -> None:
        """Hand something over, from any thread. Nobody takes it once the mailbox or the loop is closed."""
        self._letters.append(letter)
        if not self._woken and not self._closed:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._empty)

    def close(self) -> None:
        """Wake the loop no more."""
        self._closed = True

    def _empty(self) -> None:
        # Before they are taken: what comes meanwhile is taken now, or wakes the loop again.
        self._woken = False
        self._on_mail(self._letters)
