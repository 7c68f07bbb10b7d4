"""The span editor: the byte spans of an array's or a map's parts, and edits that leave the rest verbatim.

A view knows where each part stands in the buffer. An edit is `(start, end, replacement)` in positions
of that buffer. Edits of every nesting level go into one list and are applied by one `splice`, so what
no edit names, unknown trailing fields at any level included, leaves as the bytes that came in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from sidecar.errors import Reason, Rejection
from sidecar.wire.msgpack import (
    MAX_VALUES,
    SIZE,
    Buffer,
    pack_array_header,
    pack_map_header,
    pack_str,
    read_array_header,
    read_map_header,
    read_str,
    skip,
    too_many,
    truncated,
)
from sidecar.wire.native import scan

Edit: TypeAlias = tuple[int, int, bytes]
"""Replace the bytes from start to end (exclusive) by these; start == end inserts."""


class ArrayView(NamedTuple):
    """Where the fields of an array stand: field i is `buf[bounds[i]:bounds[i + 1]]`.

    `start` is the position of the header; `bounds` has one entry more than the array has fields.
    """

    buf: Buffer
    start: int
    bounds: list[int]

    @property
    def end(self) -> int:
        """The position after the array."""
        return self.bounds[-1]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def span(self, index: int) -> Buffer:
        """The bytes of a field that is there, as a slice of the buffer."""
        return self.buf[self.bounds[index] : self.bounds[index + 1]]

    def is_nil(self, index: int) -> bool:
        """Whether a field is nil or lies behind the end of a short array."""
        bounds = self.bounds
        return index >= len(bounds) - 1 or self.buf[bounds[index]] == 0xC0


class MapView(NamedTuple):
    """Where the entries of a string-keyed map stand: key -> (key start, value start, value end)."""

    buf: Buffer
    start: int
    end: int
    body: int
    entries: Mapping[str, tuple[int, int, int]]


def array_view(buf: Buffer, pos: int, end: int, max_depth: int = 32) -> ArrayView | None:
    """The view of the array at `pos`, None if another type stands there.

    Raises `Rejection` as `wire.msgpack.skip` does for its elements.
    """
    count, body = read_array_header(buf, pos, end)
    if count < 0:
        return None
    return ArrayView(buf, pos, element_bounds(buf, body, end, count, max_depth))


def element_bounds(buf: Buffer, pos: int, end: int, count: int, max_depth: int = 32) -> list[int]:
    """The positions of `count` values that begin at `pos`, and the position after the last."""
    if count > MAX_VALUES:
        raise too_many(pos)
    if scan is not None:
        found = scan.bounds(buf, pos, end, count, max_depth, MAX_VALUES)
        if found is not None:
            return found
    bounds = [pos]
    append = bounds.append
    sizes = SIZE
    for _ in range(count):
        if pos >= end:
            raise truncated(pos, end)
        size = sizes[buf[pos]]
        if size:
            pos += size
            if pos > end:
                raise truncated(bounds[-1], end)
        else:
            pos = skip(buf, pos, end, max_depth)
        append(pos)
    return bounds


def map_view(buf: Buffer, pos: int, end: int, max_depth: int = 32) -> MapView | None:
    """The view of the string-keyed map at `pos`, None if another type stands there.

    Raises `Rejection(malformed_request)` for a key that is no string or comes twice.
    """
    count, body = read_map_header(buf, pos, end)
    if count < 0:
        return None
    bounds = element_bounds(buf, body, end, 2 * count, max_depth)
    entries: dict[str, tuple[int, int, int]] = {}
    for i in range(0, 2 * count, 2):
        key = read_str(buf, bounds[i], bounds[i + 1])
        if key is None:
            raise Rejection(Reason.MALFORMED_REQUEST, f"the map at byte {pos} has a key that is no string")
        if key in entries:
            raise Rejection(Reason.MALFORMED_REQUEST, f"the map at byte {pos} has the key {key!r:.80} twice")
        entries[key] = (bounds[i], bounds[i + 1], bounds[i + 2])
    return MapView(buf, pos, bounds[-1], body, entries)


def set_fields(view: ArrayView, fields: Mapping[int, bytes], default: Callable[[int], bytes]) -> Iterator[Edit]:
    """Edits that give fields of an array new bytes.

    A field behind the end of a short array is reached by extending it with `default(index)` for every
    field before it that is not in `fields`; only then does the header change.
    """
    count = len(view)
    last = max(fields, default=-1)
    for index, data in fields.items():
        if index < count:
            yield view.bounds[index], view.bounds[index + 1], data
    if last >= count:
        yield view.start, view.bounds[0], pack_array_header(last + 1)
        tail = b"".join(fields[i] if i in fields else default(i) for i in range(count, last + 1))
        yield view.end, view.end, tail


def set_entries(view: MapView, entries: Mapping[str, bytes]) -> Iterator[Edit]:
    """Edits that give entries of a map new values; a key that is not there is added at the end."""
    added: list[bytes] = []
    for key, data in entries.items():
        place = view.entries.get(key)
        if place is None:
            added += (pack_str(key), data)
        else:
            yield place[1], place[2], data
    if added:
        yield view.start, view.body, pack_map_header(len(view.entries) + len(added) // 2)
        yield view.end, view.end, b"".join(added)


def splice(buf: Buffer, edits: Iterable[Edit]) -> bytes:
    """The buffer with all edits applied.

    Insertions at one position keep the order in which they were given. Raises `ValueError` for edits
    that overlap: that is a fault of the caller, never of the input.
    """
    chunks: list[Buffer] = []
    pos = 0
    view = memoryview(buf)
    for start, end, data in sorted(edits, key=_place):
        if start < pos:
            raise ValueError(f"the edit at {start} overlaps the one that ends at {pos}")
        chunks.append(view[pos:start])
        chunks.append(data)
        pos = end
    chunks.append(view[pos:])
    return b"".join(chunks)


def _place(edit: Edit) -> tuple[int, int]:
    return edit[0], edit[1]
