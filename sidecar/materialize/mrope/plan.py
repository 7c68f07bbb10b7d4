"""What a plan is: the positions of a prompt, written down as a few segments instead of as 3·n numbers.

Every position of every axis follows one formula. For token i of a segment, with k = i − start + skip,

    position = base + values[(k // run) % period]

where `run`, `period` and `values` come from the segment's pattern, an axis each, and `values` is
0, 1, …, period − 1 unless it is given. The fills (numpy_fill, torch_fill) know this formula and
nothing about any model; the families know their model and nothing about arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

OPEN: Final = 1 << 62
"""The period of an axis that never starts again."""

INT64: Final = np.dtype(np.int64)
FLOAT32: Final = np.dtype(np.float32)


class Axis(NamedTuple):
    """How one axis counts inside a pattern: `values[(k // run) % period]`.

    `run` tokens share a value; after `period` values it starts again. `values` None means 0, 1, 2, ….
    """

    run: int
    period: int
    values: tuple[float, ...] | None = None


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


@lru_cache(maxsize=512)
def frames(times: tuple[float, ...], height: int, width: int) -> Pattern:
    """len(times) frames of `height` × `width` tokens in one span; `times` are the frames' t values."""
    area = height * width
    count = len(times)
    steps = None if times == tuple(range(count)) else times
    return Pattern((Axis(area, count, steps), Axis(width, height), Axis(1, width)), area * count)


class Segment(NamedTuple):
    """Tokens [start, stop) of the prompt. `base` is one number for all axes, or one an axis.

    `skip` is the number of tokens of the pattern that came before `start`.
    """

    start: int
    stop: int
    base: Any
    pattern: Pattern
    skip: int = 0


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
        cut = []
        for s in self.segments:
            first, last = max(s.start, start), min(s.stop, stop)
            if first < last:
                skip = s.skip + first - s.start
                cut.append(Segment(first - start, last - start, s.base, s.pattern, skip))
        return Plan(stop - start, self.axes, self.dtype, self.delta, tuple(cut))
