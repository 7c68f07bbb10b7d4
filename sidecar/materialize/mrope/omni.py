"""Qwen2.5-Omni and Qwen3-Omni as transformers computes them: what both share.

Both give a grid that starts at position p its clock, rows and columns counted from p; text and audio
count on all axes alike; whatever follows goes on one above the last position. With
use_audio_in_video, a video's frames and its audio track alternate in the prompt by their times. They
differ in three things: Qwen3 keeps fractions of a position (float32 throughout) where Qwen2.5
truncates, they cut the interleaved track differently, and Qwen2.5 gives the two markers at either end
of an interleaved video one position, not two.

Source: transformers 5.24, `get_rope_index` of `Qwen2_5OmniPreTrainedModelForConditionalGeneration` and
`Qwen3OmniMoePreTrainedModelForConditionalGeneration`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sidecar.errors import Reason, Rejection
from sidecar.wire.tokenspeed import Modality

from .media import MediaItem, check_ticks, merged_grids, metadata, mismatch, seconds_per_row
from .omni_walk import Clip, Piece, Run, Vision, Walk
from .plan import INT64, Pattern, Plan
from .planner import Ids, Planner


class Omni(Planner):
    """Gathers the clips of a request and walks over them in prompt order.

    `rate` is `position_id_per_seconds`; `default_seconds` holds for videos that state no seconds.
    """

    zero: ClassVar[float]
    markers: ClassVar[Pattern]
    dtype: ClassVar[np.dtype[Any]]

    def __init__(self, merge: int, rate: float, default_seconds: float) -> None:
        self.merge = merge
        self.rate = rate
        self.default_seconds = default_seconds

    @staticmethod
    @abstractmethod
    def rounding(value: Any) -> Any:
        """What a sum of two positions becomes: itself for integers, else the nearest float32."""

    @abstractmethod
    def audio_tokens(self, length: int) -> int:
        """The tokens that the audio encoder makes of `length` mel frames."""

    @abstractmethod
    def clock(self, t: int, seconds: float | None) -> npt.NDArray[Any]:
        """The t axis of t frames, counted from 0; `seconds` None for images."""

    @abstractmethod
    def interleave(self, video: Vision, audio: int, base: float) -> tuple[list[Piece], float]:
        """How a video and its `audio` tokens alternate, and the highest position of the last piece."""

    def plan(self, n: int, items: Sequence[MediaItem], ids: Ids) -> Plan:
        """See `Planner.plan`. `ids` is never called."""
        clips = pair_tracks([clip for item in items for clip in self.clips(item)])
        walk = Walk(self.zero, self.rounding, self.markers)
        for clip in clips:
            if clip.start < walk.cursor:
                raise Rejection(
                    Reason.OFFSETS_INVALID,
                    f"item {clip.item.index}: span starts at {clip.start}, inside one that ends at {walk.cursor - 1}",
                )
            walk.text_before(clip)
            if clip.vision is not None and clip.audio is not None:
                pieces, last = self.interleave(clip.vision, clip.audio.tokens, walk.position)
                walk.track(clip, clip.audio, pieces, last)
            else:
                walk.clip(clip)
        if walk.cursor > n:
            raise Rejection(
                Reason.OFFSETS_INVALID,
                f"item {clips[-1].item.index}: span ends at {walk.cursor - 1}, the prompt has {n} tokens",
            )
        walk.text_after(n)
        delta = self.rounding(self.rounding(walk.top + 1) - n)
        return Plan(n, 3, self.dtype, delta if self.dtype is INT64 else np.float32(delta), tuple(walk.segments))

    def clips(self, item: MediaItem) -> Iterator[Clip]:
        """The clips of one item, with everything checked that the item alone can tell."""
        if item.modality is Modality.AUDIO:
            yield from self.audio_clips(item)
            return
        if not item.offsets and not item.grids:
            return
        rows = merged_grids(item, self.merge)
        seconds = seconds_per_row(item, len(rows))
        video = item.modality is Modality.VIDEO
        interleaved = video and item.use_audio_in_video
        if not interleaved and len(rows) != len(item.offsets):
            raise mismatch(item, f"{len(item.offsets)} spans for {len(rows)} grid rows; one a span")
        runs = iter(item.offsets)
        for row, (t, height, width) in enumerate(rows):
            size = t * height * width
            taken = take_runs(runs, size if interleaved else 0)
            found = sum(stop - start for start, stop in taken)
            if found != size:
                where = f"span [{taken[0][0]}, {taken[-1][1] - 1}]" if taken else "no span left:"
                raise mismatch(item, f"{where} has {found} tokens, grid {item.grids[row]} makes {size}")
            pace = None
            if video:
                pace = self.default_seconds if seconds is None else seconds[row]
            check_ticks(item, t, self.rate if pace is None else pace * self.rate)
            yield Clip(item, taken, size, Vision(t, height, width, self.clock(t, pace)), interleaved)
        if next(runs, None) is not None:
            raise mismatch(item, f"more spans than the grids {item.grids[:8]} make")

    def audio_clips(self, item: MediaItem) -> Iterator[Clip]:
        """Audio: a span a clip; or, where lengths are stated, the runs that add up to each."""
        if item.grids:
            raise mismatch(item, f"audio with {len(item.grids)} grid rows; audio has none")
        if item.audio_lengths is None:
            for start, end in item.offsets:
                if end < start:
                    raise Rejection(
                        Reason.OFFSETS_INVALID, f"item {item.index}: span [{start}, {end}] ends before it starts"
                    )
                yield Clip(item, [(start, end + 1)], end - start + 1)
            return
        runs = iter(item.offsets)
        for length in item.audio_lengths:
            size = self.audio_tokens(length) if length > 0 else 0
            taken = take_runs(runs, size)
            found = sum(stop - start for start, stop in taken)
            if size < 1 or found != size:
                raise metadata(item, f"audio length {length} makes {size} tokens, its spans have {found}")
            yield Clip(item, taken, size)
        if next(runs, None) is not None:
            raise metadata(item, f"{len(item.offsets)} spans are more than {len(item.audio_lengths)} lengths make")


def take_runs(runs: Iterator[tuple[int, int]], size: int) -> list[Run]:
    """The next spans, until they hold `size` tokens; a single one for size 0. Sorted."""
    taken = []
    held = 0
    for start, end in runs:
        taken.append((start, end + 1))
        held += end + 1 - start
        if held >= size:
            break
    taken.sort()
    return taken


def pair_tracks(clips: list[Clip]) -> list[Clip]:
    """The clips in prompt order, with the audio of each interleaved video moved from the list into it.

    Raises:
        Rejection: `metadata_invalid` for a video that no audio follows, `grid_mismatch` for an audio
            clip in several runs that belongs to no video.
    """
    clips.sort(key=lambda clip: clip.start)
    paired: list[Clip] = []
    waiting: Clip | None = None
    for clip in clips:
        if waiting is not None:
            if clip.vision is not None:
                break
            waiting.audio, waiting = clip, None
            continue
        if clip.interleaved:
            waiting = clip
        elif len(clip.runs) > 1:
            raise mismatch(clip.item, f"audio in {len(clip.runs)} runs does not belong to a video")
        paired.append(clip)
    if waiting is not None:
        raise metadata(waiting.item, f"use_audio_in_video, but no audio follows the start {waiting.start}")
    return paired
