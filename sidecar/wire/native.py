"""The scans in C, where they were compiled.

`scan` is None where they were not (see `sidecar.native`): then the functions in Python that it stands in for
do all of the work, with the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias, cast

from sidecar.native import compiled

_Bytes: TypeAlias = bytes | memoryview


class Tail(NamedTuple):
    """What stands behind the ids in requests of so many fields, and what takes its place.

    `edited` is None if it leaves as it came, else the bytes before a number, the number, None for the CRC-32 of
    the rid, and the bytes behind it.
    """

    fields: int
    edited: tuple[bytes, bytes | None, bytes] | None


class Scan(Protocol):
    """What `_scan.c` offers. Positions are those of the buffer; nothing outside of [pos, end) is read.

    Nothing is raised for what the bytes hold: -1 or None says that they are not what was asked for, and
    the function in Python then says why.
    """

    def skip(self, buf: _Bytes, pos: int, end: int, max_depth: int, max_values: int, /) -> int:
        """The position after a value, -1 if it is truncated, unknown, too deep or of too many values."""
        ...

    def bounds(
        self, buf: _Bytes, pos: int, end: int, count: int, max_depth: int, max_values: int, /
    ) -> list[int] | None:
        """The positions of `count` values and the position after the last."""
        ...

    def measure(self, buf: _Bytes, pos: int, end: int, count: int, /) -> tuple[int, int, int] | None:
        """(position after, least, most) of `count` integers, None if they are not all integers.

        What int64 does not hold counts as its ends. Of no integers the least is 0 and the most -1.
        """
        ...

    def holds(self, buf: _Bytes, pos: int, end: int, ids: Sequence[int], /) -> bool | None:
        """Whether one of the integers in [pos, end) is one of up to 16 ids; None if they are not all integers."""
        ...

    def text(
        self,
        payload: bytes,
        tag: bytes,
        tails: dict[bytes, Tail],
        max_tail: int,
        limit: int | None,
        longest: int | None,
        /,
    ) -> tuple[str, bytes] | None:
        """(string, what becomes of the payload) of an array with a known tail; see `wire.text.pass_text`.

        It begins with the tag, a string of up to 255 bytes, two nils and a list of 1 to `longest` integers in
        [0, limit). None if the payload has another form, more than `max_tail` bytes behind the list, or
        `tails` nothing for them.
        """
        ...


scan: Final = cast("Scan | None", compiled("sidecar.wire._scan"))
