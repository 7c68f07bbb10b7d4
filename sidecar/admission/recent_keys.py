"""Keys that are remembered for a time, as they come by the ten thousand a second: rids.

New keys go into a young generation. When that is as old as the window, or half of the capacity, it becomes
the old one, and the old one, in which every key has aged or is too much, fades. One look into each says
whether a key is there. No call takes long: a table of half a million keys takes 12 ms to grow and 80 to
free, so a generation is many small ones, and what fades is freed a little with every call.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, Protocol, cast

from sidecar.native import compiled

MAX_FORGOTTEN: Final = 4
"""Of the keys that fade, so many go with each that comes: faster than they come."""

TABLES: Final = 1 << 6
"""How many tables a generation is spread over."""

_TABLE: Final = TABLES - 1
_LONG_KEY: Final = 256


class RecentKeys(Protocol):
    """Strings that are forgotten after a window of seconds, or earlier if there are too many.

    The caller passes the time, in seconds of any steady clock that never goes back.
    """

    def __len__(self) -> int: ...

    def holds(self, key: str, now: float, /) -> bool:
        """Whether a key was added within the window."""
        ...

    def add(self, key: str, now: float, /) -> bool:
        """Remember a key from now on; False, and nothing, if it was added within the window."""
        ...

    def add_each(self, keys: Sequence[str], now: float, /) -> int:
        """`add` for the keys in their order, up to the first that was added within the window: how many come
        before it."""
        ...

    def discard(self, key: str, /) -> None:
        """Forget a key."""
        ...


class DictKeys:
    """The twin in Python."""

    __slots__ = ("_capacity", "_fading", "_old", "_old_size", "_since", "_window", "_young", "_young_size")

    def __init__(self, window: float, capacity: int) -> None:
        self._window = window
        self._capacity = capacity
        self._young = _tables()
        self._young_size = 0
        self._old = _tables()
        self._old_size = 0
        self._fading: list[dict[str | bytes, float]] = []
        self._since = -math.inf

    def __len__(self) -> int:
        return self._young_size + self._old_size

    def holds(self, key: str, now: float, /) -> bool:
        """Whether a key was added within the window."""
        short = shorten(key)
        table = hash(short) & _TABLE
        at = self._young[table].get(short)
        if at is None:
            at = self._old[table].get(short)
        return at is not None and now - at < self._window

    def add(self, key: str, now: float, /) -> bool:
        """Remember a key from now on; False, and nothing, if it was added within the window."""
        if now - self._since >= self._window or 2 * self._young_size >= self._capacity:
            self._turn(now)
        short = shorten(key)
        table = hash(short) & _TABLE
        if self._old_size:
            at = self._old[table].get(short)
            if at is not None and now - at < self._window:
                return False
        young = self._young[table]
        size = len(young)
        young.setdefault(short, now)
        if len(young) == size:
            return False
        self._young_size += 1
        if self._fading:
            self._fade()
        return True

    def add_each(self, keys: Sequence[str], now: float, /) -> int:
        """`add` for the keys in their order, up to the first that was added within the window."""
        for count, key in enumerate(keys):
            if not self.add(key, now):
                return count
        return len(keys)

    def discard(self, key: str, /) -> None:
        """Forget a key."""
        short = shorten(key)
        table = hash(short) & _TABLE
        if self._young[table].pop(short, None) is not None:
            self._young_size -= 1
        if self._old[table].pop(short, None) is not None:
            self._old_size -= 1

    def _turn(self, now: float) -> None:
        self._fading.extend(filter(None, self._old))
        self._old, self._old_size = self._young, self._young_size
        self._young, self._young_size = _tables(), 0
        self._since = now

    def _fade(self) -> None:
        fading = self._fading[-1]
        for _ in range(min(MAX_FORGOTTEN, len(fading))):
            fading.popitem()
        if not fading:
            self._fading.pop()


def _tables() -> list[dict[str | bytes, float]]:
    return [{} for _ in range(TABLES)]


def shorten(key: str) -> str | bytes:
    """A key, or its digest if it is so long that a million of them would not fit in memory."""
    return key if len(key) <= _LONG_KEY else blake2b(key.encode("utf-8", "surrogatepass"), digest_size=32).digest()


_native: Final = compiled("sidecar.admission._recent_keys")


def recent_keys(window: float, capacity: int) -> RecentKeys:
    """A memory of keys, in C where that was compiled: 0.1 us a key in place of 0.5 at a million of them."""
    if _native is not None:
        return cast(RecentKeys, _native.RecentKeys(window, capacity, os.urandom(16)))
    return DictKeys(window, capacity)
