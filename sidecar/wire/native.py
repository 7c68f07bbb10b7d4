"""The scans in C, where they were compiled.

`scan` is None where they were not (see `sidecar.native`): then the functions in Python that it stands in for
do all of the work, with the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias, TypeVar, cast

from sidecar.native import compiled

T = TypeVar("T")

_Bytes: TypeAlias = bytes | memoryview


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

    def join(self, payload: bytes, end: int, /, *parts: bytes) -> bytes:
        """The first `end` bytes of a payload, and up to 8 parts behind them."""
        ...

    def text(
        self,
        payload: bytes,
        tag: bytes,
        tails: dict[bytes, T],
        max_tail: int,
        limit: int | None,
        longest: int | None,
        /,
    ) -> tuple[str, int, int, T] | None:
        """(string, fields, end of the list, what `tails` has for the bytes behind it) of an array of such a form.

        It begins with the tag, a string of up to 255 bytes, two nils and a list of 1 to `longest` integers in
        [0, limit). None if the payload has another form, more than `max_tail` bytes behind the list, or
        `tails` nothing for them.
        """
        ...


scan: Final = cast("Scan | None", compiled("sidecar.wire._scan"))
