"""The walk over an Omni prompt: chunks of text, markers and media, each counted from the one before.

Transformers concatenates such chunks, each counted from one above the last of the chunk before. In
float32 every chunk rounds by itself, so they are kept apart here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt

from .media import MediaItem, mismatch
from .plan import CONSTANT, LINEAR, Pattern, Segment, frames, grid

Number = Any
"""A position: a Python int for Qwen2.5, a numpy float32 for Qwen3 (every sum rounds, as torch's do)."""

Run = tuple[int, int]
"""Tokens [start, stop) of the prompt."""


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
        return grid(height, width) if t == 1 else frames(tuple(times.tolist()), height, width)


class Piece(NamedTuple):
    """Tokens [first, last) of an interleaved video (or of its audio track) that stand together."""

    video: bool
    first: int
    last: int


class Walk:
    """Segments in prompt order, with the position arithmetic of one number type.

    `markers` is the pattern of the two markers at either end of an interleaved video. `cursor` is
    the next token, `position` its position, `top` the highest position so far.
    """

    def __init__(self, number: type[Any], markers: Pattern) -> None:
        self.number = number
        self.markers = markers
        self.segments: list[Segment] = []
        self.cursor = 0
        self.position: Number = number(0)
        self.top: Number = number(-1)
        self._ending = 0

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

    def clip(self, clip: Clip) -> None:
        """A clip in one run."""
        start, stop = clip.runs[0]
        self.segments.append(Segment(start, stop, self.position, clip.pattern))
        self.cursor = stop
        self._after(self._highest(clip))

    def track(self, video: Clip, audio: Clip, pieces: list[Piece], last: Number) -> None:
        """A video and its audio, piece by piece; `last` is the highest position of the last piece.

        The runs stated must be the ones that the pieces make, or one run of frames with one of audio
        behind it: transformers gives a track's tokens their positions in order of time, whatever
        their ids.

        Raises:
            Rejection: `grid_mismatch` where frames and audio alternate in another way.
        """
        made: tuple[list[Run], list[Run]] = ([], [])
        pattern = video.pattern
        cursor = video.start
        for piece in pieces:
            stop = cursor + piece.last - piece.first
            runs = made[piece.video]
            if runs and runs[-1][1] == cursor:
                runs[-1] = (runs[-1][0], stop)
            else:
                runs.append((cursor, stop))
            kind = pattern if piece.video else LINEAR
            self.segments.append(Segment(cursor, stop, self.position, kind, piece.first))
            cursor = stop
        apart = [video.runs, audio.runs] == [
            [(video.start, video.start + video.tokens)],
            [(video.start + video.tokens, cursor)],
        ]
        for clip, runs in ((video, made[True]), (audio, made[False])):
            if not apart:
                _check_runs(clip, runs)
            self.top = max(self.top, self._highest(clip))
        self.cursor = cursor
        self._after(last)

    def _highest(self, clip: Clip) -> Number:
        number = self.number
        if clip.vision is None:
            return number(self.position + number(clip.tokens - 1))
        _, height, width, times = clip.vision
        return number(self.position + max(number(times[-1]), number(height - 1), number(width - 1)))

    def _after(self, last: Number) -> None:
        self.top = max(self.top, last)
        self.position = self.number(last + self.number(1))

    def _end_markers(self, stop: int) -> None:
        ending = min(self._ending, stop - self.cursor)
        self._chunk(self.cursor + ending, self.markers if ending == 2 else LINEAR)

    def _chunk(self, stop: int, pattern: Pattern) -> None:
        length = stop - self.cursor
        if length < 1:
            return
        self.segments.append(Segment(self.cursor, stop, self.position, pattern))
        steps = 1 if pattern is CONSTANT else length
        self.top = max(self.top, self.number(self.position + self.number(steps - 1)))
        self.position = self.number(self.position + self.number(steps))
        self.cursor = stop


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
