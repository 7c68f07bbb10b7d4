"""What a request says about one multimodal item, and the checks of it that every family shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from sidecar.errors import Reason, Rejection
from sidecar.wire.tokenspeed import Modality

MAX_PATCHES: Final = (1 << 31) - 1
"""The most patches that one grid row may state: t·h·w. No engine can hold more, and int32 cannot."""

MAX_TICKS: Final = (1 << 31) - 1
"""The largest t value, relative to its video's start, that seconds and frame count may make."""


class MediaItem(NamedTuple):
    """One multimodal item, as the request states it.

    index: its place in mm_items; messages name it.
    offsets: inclusive [start, end] placeholder spans in the item's own order, which may be unsorted.
    grids: (t, h, w) rows in patches, before merging; () where the item has none.
    seconds: seconds per temporal patch, one a grid row or one for all; None for the model's default.
    seconds_dtype: the dtype that the request stated for `seconds` ("float32", "float64", "bfloat16",
        "int64", …); None where they came as plain msgpack numbers. `seconds` itself holds the exact
        values as Python numbers; the references round differently by dtype, so both are needed.
    audio_lengths: mel frames of each audio clip, before the encoder shortens them.
    use_audio_in_video: the item's audio track is interleaved with its frames (Omni models).
    target_sizes: (h, w) patches of each crop, in the order of `offsets` (MiniCPM-V).
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    modality: Modality
    offsets: tuple[tuple[int, int], ...]
    grids: tuple[tuple[int, int, int], ...] = ()
    seconds: tuple[float, ...] | None = None
    seconds_dtype: str | None = None
    audio_lengths: tuple[int, ...] | None = None
    use_audio_in_video: bool = False
    target_sizes: tuple[tuple[int, int], ...] | None = None


def invalid(item: MediaItem, message: str) -> Rejection:
    """A `grid_invalid` rejection of an item."""
    return Rejection(Reason.GRID_INVALID, f"item {item.index}: {message}")


def mismatch(item: MediaItem, message: str) -> Rejection:
    """A `grid_mismatch` rejection of an item."""
    return Rejection(Reason.GRID_MISMATCH, f"item {item.index}: {message}")


def metadata(item: MediaItem, message: str) -> Rejection:
    """A `metadata_invalid` rejection of an item."""
    return Rejection(Reason.METADATA_INVALID, f"item {item.index}: {message}")


def merged_grids(item: MediaItem, merge: int, temporal_merge: int = 1) -> list[tuple[int, int, int]]:
    """The item's grid rows in tokens: (t / temporal_merge, h / merge, w / merge).

    Raises:
        Rejection: `grid_mismatch` where there is no row, `grid_invalid` for a row that is not three
            positive integers, whose sides the merge sizes do not divide, or whose product is absurd.
            Nothing is allocated in proportion to a row's numbers.
    """
    if not item.grids:
        raise mismatch(item, f"{item.modality.name.lower()} with {len(item.offsets)} spans but without a grid")
    merged = []
    for row in item.grids:
        if len(row) != 3 or not all(type(side) is int and side > 0 for side in row):
            raise invalid(item, f"grid row {row} is not three positive integers (t, h, w)")
        t, h, w = row
        if h % merge or w % merge:
            raise invalid(item, f"grid {row}: h and w must be divisible by the spatial merge size {merge}")
        if t % temporal_merge:
            raise invalid(item, f"grid {row}: t must be divisible by the temporal merge size {temporal_merge}")
        if t * h * w > MAX_PATCHES:
            raise invalid(item, f"grid {row} states {t * h * w} patches, more than {MAX_PATCHES}")
        merged.append((t // temporal_merge, h // merge, w // merge))
    return merged


def seconds_per_row(item: MediaItem, rows: int) -> Sequence[float] | None:
    """The item's seconds, one a grid row; None where it states none.

    Raises:
        Rejection: `metadata_invalid` for another count, or a value that is negative or not finite.
    """
    seconds = item.seconds
    if seconds is None:
        return None
    if len(seconds) not in (1, rows):
        raise metadata(item, f"{len(seconds)} seconds per grid for {rows} grid rows")
    for value in seconds:
        if not (value >= 0 and math.isfinite(value)):
            raise metadata(item, f"seconds per grid is {value}; it must be finite and not negative")
    return seconds * rows if len(seconds) == 1 else seconds


def check_ticks(item: MediaItem, frames: int, step: float) -> None:
    """Refuse a video whose last t value, or whose step from frame to frame, would not be a sane position.

    Raises:
        Rejection: `metadata_invalid`.
    """
    if max(frames - 1, 1) * step > MAX_TICKS:
        raise metadata(item, f"{frames} frames of {step:g} positions each exceed the largest position {MAX_TICKS}")
