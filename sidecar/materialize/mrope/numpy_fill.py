"""Plans to positions with numpy: one add a segment, into memory that is written once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .plan import CONSTANT, LINEAR, Pattern, Plan, Segment

LEAD: Final = 32
"""Templates begin with this many tokens of text, so that an image and a short text before it are one add.

With 64 unequal images in 120k tokens: 133 µs, and 174 µs with text and images apart.
"""

BUFFER_TOKENS: Final = 256
"""numpy's buffer size during a fill. At its default, numpy moves rows shorter than 2,731 tokens through
buffers, although nothing is cast: 64 equal images in 120k tokens then take 138 µs, with this 38 µs.
"""

BUFFER_MATTERS: Final = 8192
"""The shortest prompt for which the buffer size is changed, which takes 1.3 µs itself."""

TEMPLATE_BYTES: Final = 32 << 20
"""How many bytes of templates are kept, for each dtype."""

RAMP_TOKENS: Final = 1 << 20
"""The longest ramp that is kept, 8 MB of int64: text whose positions lie below it is a plain copy."""


class Templates:
    """Patterns written out with base 0, [axes, LEAD + size], and the ramp 0, 1, 2, …, of one dtype."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.kept: dict[Pattern, npt.NDArray[Any]] = {}
        self.ramp = np.arange(1 << 16, dtype=dtype)
        self._bytes = 0

    def make(self, pattern: Pattern) -> npt.NDArray[Any]:
        """A new template, kept for the next time unless it is large."""
        template = np.empty((len(pattern.axes), LEAD + pattern.size), self.dtype)
        template[:, :LEAD] = np.arange(-LEAD, 0)
        for row, (run, period, values) in zip(template[:, LEAD:], pattern.axes, strict=True):
            counts = np.arange(period, dtype=self.dtype) if values is None else values
            row.reshape(-1, period, run)[...] = counts[:, None]
        if template.nbytes <= TEMPLATE_BYTES // 8:
            self._bytes += template.nbytes
            if self._bytes > TEMPLATE_BYTES:
                self.kept.clear()
                self._bytes = template.nbytes
            self.kept[pattern] = template
        return template

    def longer_ramp(self, length: int) -> npt.NDArray[Any]:
        """A ramp of at least `length` values."""
        ramp = np.arange(1 << (length - 1).bit_length(), dtype=self.dtype)
        if len(ramp) <= RAMP_TOKENS:
            self.ramp = ramp
        return ramp


_templates: dict[str, Templates] = {}


def fill_numpy(plan: Plan) -> npt.NDArray[Any]:
    """The plan's positions, [axes, n] of `plan.dtype`, in a new C-contiguous array."""
    out = np.empty((plan.axes, plan.n), plan.dtype)
    kind = plan.dtype.kind
    templates = _templates.get(kind)
    if templates is None:
        templates = _templates[kind] = Templates(plan.dtype)
    if plan.n < BUFFER_MATTERS:
        _fill(out, plan.segments, templates)
        return out
    before = np.setbufsize(BUFFER_TOKENS)  # of this thread, or task, alone
    try:
        _fill(out, plan.segments, templates)
    finally:
        np.setbufsize(before)
    return out


def _fill(out: npt.NDArray[Any], segments: tuple[Segment, ...], templates: Templates) -> None:
    kept = templates.kept
    add = np.add
    own = [segment.base for segment in segments if type(segment.base) is tuple]
    columns = iter(np.array(own, out.dtype).reshape(len(own), len(out), 1))
    for segment in segments:
        start, length, base, pattern, skip, count, _ = segment
        if pattern is LINEAR:
            _text(out, templates, start, length, base, skip)
        elif pattern is CONSTANT:
            out[:, start : start + length] = base
        elif count == 1 and skip >= -LEAD:
            template = kept.get(pattern)
            if template is None:
                template = templates.make(pattern)
            if type(base) is tuple:
                base = next(columns)
            first = LEAD + skip
            add(template[:, first : first + length], base, out[:, start : start + length])
        else:
            _units(out, templates, segment)


def _text(out: npt.NDArray[Any], templates: Templates, start: int, length: int, base: Any, skip: int) -> None:
    ramp = templates.ramp
    first, stop = base + skip, base + skip + length
    if type(base) is int and stop <= RAMP_TOKENS:
        if stop > len(ramp):
            ramp = templates.longer_ramp(stop)
        out[:, start : start + length] = ramp[first:stop]
        return
    if type(base) is not int and skip > 0:
        # base + k, and not (base + skip) + (k - skip): a float rounds at every sum.
        first, ramp = base, ramp[skip:] if skip + length <= len(ramp) else templates.longer_ramp(skip + length)[skip:]
    elif length > len(ramp):
        ramp = templates.longer_ramp(length)
    np.add(ramp[:length], first, out[:, start : start + length])


def _units(out: npt.NDArray[Any], templates: Templates, segment: Segment) -> None:
    """Repeated units, or one with a long text in front."""
    start, length, base, pattern, skip, count, rise = segment
    template = templates.kept.get(pattern)
    if template is None:
        template = templates.make(pattern)
    units = out[:, start : segment.stop].reshape(len(out), count, length)
    bases = (base + rise * np.arange(count))[:, None].astype(out.dtype)
    text = min(max(0, -skip - LEAD), length)
    if text:
        ramp = templates.ramp if text <= len(templates.ramp) else templates.longer_ramp(text)
        np.add(ramp[:text], bases + out.dtype.type(skip), units[:, :, :text])
    if text < length:
        first = LEAD + skip + text
        np.add(template[:, None, first : first + length - text], bases, units[:, :, text:])
