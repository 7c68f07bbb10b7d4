"""What a plan is: the positions of a prompt, written down as a few segments instead of as 3·n numbers.

Every position of every axis follows one formula. A segment is a unit of `length` tokens, repeated
`count` times. For a token of unit j (0, 1, …), the k-th of its pattern, on each axis

    position = base + j · rise + (k                               where k < 0,
                                  values[(k // run) % period]     elsewhere)

where `run`, `period` and `values` come from the segment's pattern, an axis each, and `values` is
0, 1, …, period − 1 unless it is given. A unit begins at k = skip. A negative skip is the text in
front of an image, which counts up to the image's first position; a positive one cuts a pattern.

The fills (numpy_fill, torch_fill) know this formula and nothing about any model; the families know
their model and nothing about arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

OPEN: Final = 1 << 62
"""The period of an axis that never starts again."""

KEPT_FRAMES: Final = 2048
"""Videos of more frames are not cached: 512 of them could hold hundreds of megabytes."""

INT64: Final = np.dtype(np.int64)
FLOAT32: Final = np.dtype(np.float32)


class Axis(NamedTuple):
    """How one axis counts inside a pattern: `values[(k // run) % period]`.

    `run` tokens share a value; after `period` values it starts again. `values` None means 0, 1, 2, ….
    """

    run: int
    period: int
    values: npt.NDArray[Any] | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Pattern:
    """The shape of a segment: an `Axis` for every axis, or a single one that holds for all of them.

    `size` is the number of tokens after which the pattern ends; `run * period` of every axis divides
    it. It is 0 for patterns without an end. Patterns are compared by identity: make them through the
    functions below, which return the same object for the same arguments.
    """

    axes: tuple[Axis, ...]
    size: int = 0


LINEAR: Final = Pattern((Axis(1, OPEN),))
"""Text: all axes count 0, 1, 2, …."""

CONSTANT: Final = Pattern((Axis(1, 1),))
"""All tokens have the same position."""


@lru_cache(maxsize=4096)
def grid(height: int, width: int) -> Pattern:
    """One image or frame of `height` × `width` tokens: t stays, h counts rows, w counts columns."""
    size = height * width
    return Pattern((Axis(size, 1), Axis(width, height), Axis(1, width)), size)


@lru_cache(maxsize=4096)
def stack(count: int, height: int, width: int) -> Pattern:
    """`count` frames of `height` × `width` tokens in one span, one position apart on the t axis."""
    area = height * width
    return Pattern((Axis(area, count), Axis(width, height), Axis(1, width)), area * count)


def frames(times: npt.NDArray[Any], height: int, width: int) -> Pattern:
    """As `stack`, with the frames' own t values [count]. Kept for the next call unless there are very many."""
    make = _frames if len(times) <= KEPT_FRAMES else _frames.__wrapped__
    return make(times.tobytes(), times.dtype.str, height, width)


@lru_cache(maxsize=512)
def _frames(times: bytes, dtype: str, height: int, width: int) -> Pattern:
    values = np.frombuffer(times, dtype)
    area, count = height * width, len(values)
    return Pattern((Axis(area, count, values), Axis(width, height), Axis(1, width)), area * count)


class Segment(NamedTuple):
    """`count` units of `length` tokens each, the first at token `start`.

    `base` is one number for all axes, or one an axis. `skip` is the pattern's token at which a unit
    begins, `rise` what each unit's positions lie above those of the one before.
    """

    start: int
    length: int
    base: Any
    pattern: Pattern
    skip: int = 0
    count: int = 1  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    rise: int = 0

    @property
    def stop(self) -> int:
        """One past the last token."""
        return self.start + self.length * self.count

    def cut(self, first: int, last: int) -> Iterator[Segment]:
        """The segment's tokens [first, last), as up to three segments: a part, whole units, a part."""
        while first < last:
            unit, offset = divmod(first - self.start, self.length)
            count = max(1, (last - first) // self.length) if offset == 0 else 1
            length = min(self.length - offset, last - first)
            base = self.base + unit * self.rise if unit else self.base
            yield Segment(first, length, base, self.pattern, self.skip + offset, count, self.rise)
            first += length * count


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The positions of one prompt of `n` tokens, before they are written out.

    `segments` cover [0, n) without gaps, in order. `axes` is 3, or 4 for some configs of hunyuan_vl.
    `dtype` is int64, or float32 for the transformers reference of Qwen3-Omni. `delta` is what is
    added to a token's index to get its position during decoding: a Python int, or a numpy float32
    where `dtype` is float32.
    """

    n: int
    axes: int
    dtype: np.dtype[Any]
    delta: Any
    segments: tuple[Segment, ...]

    def chunk(self, start: int, stop: int) -> Plan:
        """The plan of tokens [start, stop) alone, with the positions that they have in the whole."""
        if not 0 <= start <= stop <= self.n:
            raise ValueError(f"chunk [{start}, {stop}) is not inside [0, {self.n})")
        parts = [
            part._replace(start=part.start - start)
            for segment in self.segments
            for part in segment.cut(max(segment.start, start), min(segment.stop, stop))
        ]
        return Plan(stop - start, self.axes, self.dtype, self.delta, tuple(parts))
