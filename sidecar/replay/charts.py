"""Charts as inline SVG: no script, no font, no file beside the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

WIDTH: Final = 860
HEIGHT: Final = 260
_LEFT: Final = 74
_RIGHT: Final = 16
_TOP: Final = 14
_BOTTOM: Final = 40
_TICKS: Final = 6


@dataclass(frozen=True, slots=True)
class Line:
    """A named line: y over x; nan leaves a gap."""

    name: str
    x: ArrayLike
    y: ArrayLike


def nice_ticks(high: float) -> list[float]:
    """From 0 to `high` in steps of 1, 2 or 5 · 10^k."""
    if high <= 0:
        return [0.0, 1.0]
    raw = high / (_TICKS - 1)
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * base for base in (1, 2, 5, 10) if power * base >= raw)
    return [step * n for n in range(math.ceil(high / step - 1e-9) + 1)]


class _Frame:
    """The axes of a chart: maps values to pixels, draws the grid."""

    def __init__(
        self, title: str, x_ticks: Sequence[tuple[float, str]], y_high: float, y_label: Callable[[float], str]
    ) -> None:
        ticks = nice_ticks(y_high)
        self._y_high = ticks[-1]
        self.parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
            f"<title>{escape(title)}</title>"
        ]
        for tick in ticks:
            y = self.y(tick)
            self.parts.append(
                f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(y_label(tick))}</text>'
            )
        for place, label in x_ticks:
            x = self.x(place)
            self.parts.append(
                f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - _BOTTOM}" y2="{HEIGHT - _BOTTOM + 5}"/>'
                f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 19}" text-anchor="middle">{escape(label)}</text>'
            )

    def x(self, place: float) -> float:
        """The pixel of a place from 0 to 1."""
        return _LEFT + place * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """The pixel of a value."""
        return HEIGHT - _BOTTOM - value / self._y_high * (HEIGHT - _TOP - _BOTTOM)

    def close(self) -> str:
        return "".join([*self.parts, "</svg>"])


def line_chart(
    title: str,
    lines: Sequence[Line],
    x_ticks: Sequence[tuple[float, str]],
    x_high: float,
    y_label: Callable[[float], str],
) -> str:
    """Lines over one x axis from 0 to `x_high`; `x_ticks` are (value, label)."""
    values = [np.asarray(line.y, np.float64) for line in lines]
    high = max((float(np.nanmax(y)) for y in values if y.size and not np.isnan(y).all()), default=0.0)
    frame = _Frame(title, [(x / x_high, label) for x, label in x_ticks], high, y_label)
    for number, (line, ys) in enumerate(zip(lines, values, strict=True)):
        pen, path = "M", []
        for x, y in zip(np.asarray(line.x, np.float64), ys, strict=True):
            if math.isnan(y):
                pen = "M"
                continue
            path.append(f"{pen}{frame.x(x / x_high):.1f} {frame.y(y):.1f}")
            pen = "L"
        frame.parts.append(f'<path class="line s{number}" d="{"".join(path)}"/>')
    legend = "".join(
        f'<span class="key"><i class="s{number}"></i>{escape(line.name)}</span>' for number, line in enumerate(lines)
    )
    return f"<figure><figcaption>{escape(title)}{legend}</figcaption>{frame.close()}</figure>"


def bar_chart(title: str, labels: Sequence[str], counts: Sequence[int]) -> str:
    """A bar a label, with its count in its tooltip."""
    n = max(len(labels), 1)
    shown = [(i + 0.5) / n for i in range(n)]
    frame = _Frame(title, list(zip(shown, labels, strict=True)), max(counts, default=0), lambda y: f"{y:g}")
    total = sum(counts) or 1
    for i, (label, count) in enumerate(zip(labels, counts, strict=True)):
        left, right, top = frame.x((i + 0.1) / n), frame.x((i + 0.9) / n), frame.y(count)
        frame.parts.append(
            f'<rect class="s0" x="{left:.1f}" width="{right - left:.1f}" y="{top:.1f}" '
            f'height="{frame.y(0) - top:.1f}">'
            f"<title>{escape(label)}: {count} ({100 * count / total:.2f}%)</title></rect>"
        )
    return f"<figure><figcaption>{escape(title)}</figcaption>{frame.close()}</figure>"
