"""Small pictures for the terminal, in block characters: media in a prompt, and the axes of M-RoPE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sidecar.inspection.page import Span

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_FILLS: Final = {"image": "█", "video": "▓", "audio": "▒"}
_AXES: Final = ("t", "h", "w")


class Chart(NamedTuple):
    """The rows of one axis, top first, and the numbers at its edges."""

    name: str
    low: float
    high: float
    rows: tuple[str, ...]


def strip(n: int, spans: Sequence[Span], width: int) -> str:
    """A prompt of `n` ids in at most `width` characters: text as `·`, media as blocks.

    A character stands for the ids that fall into it; one id of media is enough to mark it.
    """
    width = min(width, n)
    cells = ["·"] * width
    for span in spans:
        if not 0 <= span.start <= span.end < n:
            continue
        first, last = span.start * width // n, span.end * width // n
        cells[first : last + 1] = [_FILLS.get(span.modality, "█")] * (last - first + 1)
    return "".join(cells)


def charts(positions: NDArray[Any], width: int, height: int = 4) -> Iterator[Chart]:
    """One chart an axis of positions [axes, n], all on one scale; at most `width` characters wide.

    A column stands for the tokens that fall into it. It is solid up to the smallest of their positions
    and shaded up to the largest.
    """
    axes, n = positions.shape
    if not n:
        return
    width = min(width, n)
    edges = np.arange(width) * n // width
    low, high = float(positions.min()), float(positions.max())
    names = _AXES if axes == len(_AXES) else tuple(map(str, range(axes)))
    for name, values in zip(names, positions, strict=True):
        least = _scale(np.minimum.reduceat(values, edges), low, high, height)
        most = _scale(np.maximum.reduceat(values, edges), low, high, height)
        rows = tuple(
            "".join(_cell(a, b, height - 1 - row) for a, b in zip(least, most, strict=True)) for row in range(height)
        )
        yield Chart(name, float(values.min()), float(values.max()), rows)


def _scale(values: NDArray[Any], low: float, high: float, height: int) -> list[int]:
    """Values as eighths of a cell, at least one, so that the lowest position is seen too."""
    span = high - low or 1.0
    return [1 + round((float(value) - low) / span * (8 * height - 1)) for value in values]


def _cell(least: int, most: int, row: int) -> str:
    """The character of a column that is solid up to `least` eighths and shaded up to `most`."""
    solid, shade = least - 8 * row, most - 8 * row
    if solid >= 8:
        return "█"
    if solid > 0 and shade < 8:
        return _EIGHTHS[solid]
    return "░" if shade > 0 else " "


def segments(positions: NDArray[Any], spans: Sequence[Span]) -> Iterator[tuple[int, int, str, list[str]]]:
    """(start, end, what, positions of each axis) of every stretch of text and media, ends inclusive."""
    n = positions.shape[1]
    place = 0
    for span in sorted(spans, key=lambda span: span.start):
        if not place <= span.start <= span.end < n:
            continue
        if place < span.start:
            yield place, span.start - 1, "text", _ranges(positions[:, place : span.start])
        yield (
            span.start,
            span.end,
            f"item {span.item}, {span.modality}",
            _ranges(positions[:, span.start : span.end + 1]),
        )
        place = span.end + 1
    if place < n:
        yield place, n - 1, "text", _ranges(positions[:, place:])


def _ranges(block: NDArray[Any]) -> list[str]:
    edges = zip(block.min(1), block.max(1), strict=True)
    return [f"{low:g}" if low == high else f"{low:g}..{high:g}" for low, high in edges]
