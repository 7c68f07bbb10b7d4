"""What is remembered of forwarded requests: rids, contents and segments, bounded in size and in time.

The caller passes the time, in seconds of any steady clock, so that nothing here reads one. Entries
stand in the order in which they were remembered, so the oldest is always the first. Rids, which come by
the ten thousand a second, are kept in another way: see `recent_keys`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from sidecar.admission.recent_keys import recent_keys, shorten
from sidecar.errors import Reason, Rejection
from sidecar.wire.tokenspeed import Modality

V = TypeVar("V")

RID_CAPACITY: Final = 1 << 21
"""At least half of them are remembered."""

CONTENT_CAPACITY: Final = 1 << 17
SEGMENT_CAPACITY: Final = 1 << 16
SEGMENT_WINDOW_S: Final = 600.0
"""How long a forwarded segment is the engine's: it unlinks it when it consumes it, long before this."""

MAX_FORGOTTEN: Final = 4
"""More than one, so that what has aged goes faster than what is new comes."""


class Recent(Generic[V]):
    """A map whose entries are forgotten after `window` seconds, or earlier if it holds more than `capacity`.

    An OrderedDict, because the first entry of a dict whose front has been deleted is found by passing
    over every deleted one: with 200k of them, 6 s for a single `put`.
    """

    __slots__ = ("_entries", "capacity", "window")

    def __init__(self, window: float, capacity: int) -> None:
        self.window = window
        self.capacity = capacity
        self._entries: OrderedDict[Hashable, tuple[float, V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, now: float) -> V | None:
        """The value remembered under a key, None if there is none or its time is over."""
        entry = self._entries.get(key)
        if entry is None or now - entry[0] >= self.window:
            return None
        return entry[1]

    def put(self, key: Hashable, value: V, now: float) -> None:
        """Remember a value from now on, and forget some of what is too old, or too much.

        At most `MAX_FORGOTTEN` entries go at a time, so that no call takes long after an idle hour.
        """
        entries = self._entries
        entries.pop(key, None)
        entries[key] = (now, value)
        for _ in range(MAX_FORGOTTEN):
            oldest = next(iter(entries))
            if len(entries) <= self.capacity and now - entries[oldest][0] < self.window:
                return
            del entries[oldest]
            if not entries:
                return

    def discard(self, key: Hashable) -> None:
        """Forget a key."""
        self._entries.pop(key, None)


class RidMemory:
    """The rids that may be live in the engine: forwarded within the window, or not yet finished.

    With `exact`, nothing ages: a rid is live until `finish` says that its terminal output passed.
    A window of 0 remembers nothing.
    """

    __slots__ = ("_live", "_recent", "_window", "exact")

    def __init__(self, window: float, *, exact: bool = False) -> None:
        self.exact = exact
        self._window = window
        self._recent = recent_keys(window, RID_CAPACITY)
        self._live: set[str | bytes] = set()

    def __len__(self) -> int:
        return len(self._live) if self.exact else len(self._recent)

    def is_live(self, rid: str, now: float) -> bool:
        """Whether a request with this rid may still be running in the engine."""
        return shorten(rid) in self._live if self.exact else self._recent.holds(rid, now)

    def claim(self, rid: str, now: float) -> bool:
        """Make a rid that is being handed over live. False, and nothing, if it may be live already."""
        return self.claim_each([rid], now) == 1

    def claim_each(self, rids: Sequence[str], now: float) -> int:
        """`claim` for rids in their order, up to the first that may be live already: how many come before it."""
        if not self.exact:
            return self._recent.add_each(rids, now) if self._window > 0 else len(rids)
        live = self._live
        for count, rid in enumerate(rids):
            key = shorten(rid)
            if key in live:
                return count
            live.add(key)
        return len(rids)

    def withdraw(self, rid: str) -> None:
        """A request with this rid has not been handed over after all."""
        self._live.discard(shorten(rid))
        self._recent.discard(rid)

    def finish(self, rid: str) -> None:
        """The engine has sent the last output of this rid."""
        self._live.discard(shorten(rid))


class Content(NamedTuple):
    """What an item's hash and pad value stand for.

    `dtype` and `shape` are None for an item whose feature is elsewhere. `tokens` is the number of
    prompt positions that it covers.
    """

    ordinal: int
    modality: Modality
    hash: int | None
    pad_value: int
    tokens: int
    dtype: str | None
    shape: tuple[int, ...] | None

    def differs(self, other: Content) -> str | None:
        """What keeps two items from being the same content, None if nothing that is known does."""
        for name in ("modality", "tokens", "dtype", "shape"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs is not None and mine != theirs:
                return f"{name} {_plain(mine)}, not {_plain(theirs)}"
        return None


def _plain(value: object) -> object:
    return value.name.lower() if isinstance(value, Modality) else list(value) if isinstance(value, tuple) else value


class ContentMemory:
    """The contents that the engine's caches may hold, by hash and by pad value."""

    __slots__ = ("_by_hash", "_by_pad")

    def __init__(self, window: float) -> None:
        self._by_hash: Recent[Content] = Recent(window, CONTENT_CAPACITY)
        self._by_pad: Recent[Content] = Recent(window, CONTENT_CAPACITY)

    def __len__(self) -> int:
        return len(self._by_pad)

    def check(self, contents: Sequence[Content], now: float) -> None:
        """`hash_conflict`: a hash that stands for something else here or in a remembered request, or a
        pad value that another hash has.

        The prefix cache compares pad values, so two contents under one are one image to the engine.
        """
        by_hash: dict[int, Content] = {}
        by_pad: dict[int, Content] = {}
        for content in contents:
            if content.hash is not None:
                known = by_hash.setdefault(content.hash, content)
                if known is content:
                    known = self._by_hash.get(content.hash, now) or content
                difference = content.differs(known) if known is not content else None
                if difference is not None:
                    raise _conflict(f"item {content.ordinal}: the hash {content.hash} is known with {difference}")
            known = by_pad.setdefault(content.pad_value, content)
            if known is content:
                known = self._by_pad.get(content.pad_value, now) or content
            if content.hash is not None and known.hash is not None and content.hash != known.hash:
                raise _conflict(
                    f"item {content.ordinal}: the pad value {content.pad_value} of the hash {content.hash} is live "
                    f"for another content, whose hash is {known.hash}"
                )
            difference = content.differs(known) if known is not content else None
            if difference is not None:
                raise _conflict(f"item {content.ordinal}: the pad value {content.pad_value} is live with {difference}")

    def forwarded(self, contents: Sequence[Content], now: float) -> None:
        """These contents have been handed over."""
        if self._by_pad.window <= 0:
            return
        for content in contents:
            if content.hash is not None:
                self._by_hash.put(content.hash, content, now)
            self._by_pad.put(content.pad_value, content, now)


def _conflict(what: str) -> Rejection:
    return Rejection(Reason.HASH_CONFLICT, what)
