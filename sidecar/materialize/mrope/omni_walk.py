"""The walk over an Omni prompt: chunks of text, markers and media, each counted from the one before.

Transformers concatenates such chunks, each counted from one above the last of the chunk before. In
float32 every chunk rounds by itself, so chunks are joined here only while all positions are whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .media import MediaItem, mismatch
from .plan import CONSTANT, LINEAR, Pattern, Segment, frames, grid

FLOAT32_WHOLE: Final = 1 << 24
"""Up to here, float32 holds every whole number, so sums of them do not round."""

Run = tuple[int, int]
"""Tokens [start, stop) of the prompt."""

Rounding = Callable[[Any], Any]
"""What a sum of two positions becomes: itself for Qwen2.5's integers, the nearest float32 for Qwen3."""


def to_float32(value: float) -> float:
    """The nearest float32, as a Python float. A double holds the exact sum of two of them."""
    return value if value.is_integer() and value < FLOAT32_WHOLE else float(np.float32(value))


class Vision(NamedTuple):
    """An image or video of t frames of `height` × `width` tokens; `times` [t] is its t axis, from 0."""

    t: int
    height: int
    width: int
    times: npt.NDArray[Any]


@dataclass(slots=True)
class Clip:
    """One image, video or audio clip (`vision` None): the runs where it stands, and its tokens.

    `runs` has one element, but for interleaved clips. `audio` is the track of an interleaved video.
    """

    item: MediaItem
    runs: list[Run]
    tokens: int
    vision: Vision | None = None
    interleaved: bool = False
    audio: Clip | None = None

    @property
    def start(self) -> int:
        """The first token."""
        return self.runs[0][0]

    @property
    def pattern(self) -> Pattern:
        """The clip's positions, counted from its own first."""
        if self.vision is None:
            return LINEAR
        t, height, width, times = self.vision
        return grid(height, width) if t == 1 else frames(times, height, width)

    @property
    def reach(self) -> Any:
        """The clip's highest position, counted from its own first."""
        if self.vision is None:
            return self.tokens - 1
        _, height, width, times = self.vision
        return max(times[-1].item(), height - 1, width - 1)


class Piece(NamedTuple):
    """Tokens [first, last) of an interleaved video (or of its audio track) that stand together."""

    video: bool
    first: int
    last: int


class Walk:
    """Segments in prompt order, with the position arithmetic of one model.

    `zero` is the first position, an int or a float; `rounding` rounds every sum. `markers` is the
    pattern of the two markers at either end of an interleaved video. `cursor` is the next token,
    `position` its position, `top` the highest position so far.
    """

    def __init__(self, zero: float, rounding: Rounding, markers: Pattern) -> None:
        self.rounding = rounding
        self.markers = markers
        self.segments: list[Segment] = []
        self.cursor = 0
        self.position = zero
        self.top = zero - 1
        self._ending = 0
        self._text = (0, zero)  # where the text that is not yet a segment begins

    def text_before(self, clip: Clip) -> None:
        """Everything up to a clip: the end markers of the clip before, text, its own begin markers."""
        self._end_markers(clip.start)
        count = 2 if clip.audio else 1
        begin = min(count, clip.start - self.cursor)
        self._chunk(clip.start - begin, LINEAR)
        self._chunk(clip.start, self.markers if begin == 2 else LINEAR)
        self._ending = count

    def text_after(self, n: int) -> None:
        """Everything from the last clip to the end."""
        self._end_markers(n)
        self._chunk(n, LINEAR)
        self._flush()

    def clip(self, clip: Clip) -> None:
        """A clip in one run."""
        whole = self._whole(self.position)
        lead = self._flush(keep=whole)
        start = self.cursor - lead
        segment = Segment(start, lead + clip.tokens, self.position, clip.pattern, -lead)
        if not (whole and self._repeats(segment)):
            self.segments.append(segment)
        self._after(self.cursor + clip.tokens, self.rounding(self.position + clip.reach))

    def track(self, video: Clip, audio: Clip, pieces: list[Piece], last: float) -> None:
        """A video and its audio, piece by piece; `last` is the highest position of the last piece.

        The runs stated must be the ones that the pieces make, or one run of frames with one of audio
        behind it: transformers gives a track's tokens their positions in order of time, whatever
        their ids.

        Raises:
            Rejection: `grid_mismatch` where frames and audio alternate in another way.
        """
        self._flush()
        made: tuple[list[Run], list[Run]] = ([], [])
        pattern = video.pattern
        cursor = video.start
        for piece in pieces:
            length = piece.last - piece.first
            if length < 1:
                continue
            runs = made[piece.video]
            if runs and runs[-1][1] == cursor:
                runs[-1] = (runs[-1][0], cursor + length)
            else:
                runs.append((cursor, cursor + length))
            kind = pattern if piece.video else LINEAR
            self.segments.append(Segment(cursor, length, self.position, kind, piece.first))
            cursor += length
        apart = [video.runs, audio.runs] == [
            [(video.start, video.start + video.tokens)],
            [(video.start + video.tokens, cursor)],
        ]
        for clip, runs in ((video, made[True]), (audio, made[False])):
            if not apart:
                _check_runs(clip, runs)
            self.top = max(self.top, self.rounding(self.position + clip.reach))
        self._after(cursor, last)

    def _after(self, cursor: int, last: float) -> None:
        self.top = max(self.top, last)
        self.position = self.rounding(last + 1)
        self.cursor = cursor
        self._text = (cursor, self.position)

    def _end_markers(self, stop: int) -> None:
        ending = min(self._ending, stop - self.cursor)
        self._chunk(self.cursor + ending, self.markers if ending == 2 else LINEAR)

    def _chunk(self, stop: int, pattern: Pattern) -> None:
        length = stop - self.cursor
        if length < 1:
            return
        if pattern is CONSTANT:
            self._flush()
            self.segments.append(Segment(self.cursor, length, self.position, CONSTANT))
            self._after(stop, self.position)
            return
        if not (self._whole(self._text[1]) and self._whole(self.position)):
            self._flush()
        self.top = max(self.top, self.rounding(self.position + (length - 1)))
        self.position = self.rounding(self.position + length)
        self.cursor = stop

    def _flush(self, keep: bool = False) -> int:
        """Make the open text a segment; or keep it for the next one and return its length."""
        start, base = self._text
        length = self.cursor - start
        self._text = (self.cursor, self.position)
        if keep and self._whole(base):
            return length
        if length:
            self.segments.append(Segment(start, length, base, LINEAR))
        return 0

    def _repeats(self, segment: Segment) -> bool:
        """Whether a segment is one more unit of the last one; it is then counted there."""
        last = self.segments[-1] if self.segments else None
        if last is None or segment[3:5] != last[3:5] or segment.length != last.length or last.stop != segment.start:
            return False
        rise = segment.base - last.base - (last.count - 1) * last.rise
        if last.pattern is LINEAR or (last.count > 1 and rise != last.rise) or not self._whole(last.base):
            return False
        self.segments[-1] = last._replace(count=last.count + 1, rise=rise)
        return True

    @staticmethod
    def _whole(position: float) -> bool:
        return isinstance(position, int) or (position.is_integer() and position < FLOAT32_WHOLE)


def _check_runs(clip: Clip, due: list[Run]) -> None:
    if clip.runs == due:
        return
    k = 0
    while k < min(len(clip.runs), len(due)) - 1 and clip.runs[k] == due[k]:
        k += 1
    raise mismatch(
        clip.item,
        f"{len(clip.runs)} runs for the {len(due)} of an interleaved video; run {k} is "
        f"[{clip.runs[k][0]}, {clip.runs[k][1] - 1}], by its times it is [{due[k][0]}, {due[k][1] - 1}]",
    )
