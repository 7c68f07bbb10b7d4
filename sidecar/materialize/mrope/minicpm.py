"""MiniCPM-V 4.7: a picture is a canvas; its thumbnail and its slices are laid over the same rows and columns.

In the prompt a picture is `<image>` thumbnail `</image>`; large ones go on with `<slice>` crop `</slice>`,
row by row, with newlines between the rows. The thumbnail is stretched over the canvas that the slices
tile, and every marker gets a corner of what it marks. A picture ends with the last of the markers that
follow it, which only the ids tell, so this planner reads them.

Source: transformers 5.24, `MiniCPMV4_7Model.get_rope_index`, `_group_visual_frames` and
`get_vision_position_ids`. Its groups change nothing: inside one, the next picture starts where, or one
token before, the last one ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sidecar.errors import ConfigError, Reason, Rejection
from sidecar.wire.tokenspeed import Modality

from .media import MAX_PATCHES, MediaItem, invalid, mismatch
from .plan import CONSTANT, INT64, LINEAR, Axis, Pattern, Plan, Segment, grid
from .planner import Ids, Planner

MARKERS: Final = ("slice_start_id", "slice_end_id", "image_start_id", "image_end_id", "newline_id")


class Crop(NamedTuple):
    """A thumbnail or slice: tokens [start, stop) of `height` rows and `width` columns."""

    start: int
    stop: int
    height: int
    width: int


@dataclass(slots=True)
class Picture:
    """A thumbnail and its slices; the canvas that they share, in tokens."""

    thumbnail: Crop
    slices: list[Crop] = field(default_factory=list)

    @property
    def start(self) -> int:
        """The `<image>` marker."""
        return self.thumbnail.start - 1

    @property
    def columns(self) -> int:
        """How many slices a row has: up to the first gap that holds more than two markers."""
        count = len(self.slices)
        for k, (crop, after) in enumerate(pairwise(self.slices)):
            if after.start - crop.stop > 2:
                return k + 1 if count % (k + 1) == 0 else count
        return count

    @property
    def canvas(self) -> tuple[int, int]:
        """Rows and columns of the canvas: those of the slices, where there are any."""
        if not self.slices:
            return self.thumbnail.height, self.thumbnail.width
        columns = self.columns
        return len(self.slices) // columns * self.slices[0].height, columns * self.slices[0].width


class Canvas:
    """The segments so far; `top` is their highest position."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.top = -1

    def text(self, start: int, stop: int, position: int) -> int:
        """Text from `position` on; returns the position after it."""
        if stop > start:
            self.segments.append(Segment(start, stop, position, LINEAR))
            position += stop - start
            self.top = max(self.top, position - 1)
        return position

    def mark(self, start: int, stop: int, t: int, h: int, w: int) -> None:
        """Tokens that all have one position."""
        if stop > start:
            self.segments.append(Segment(start, stop, (t, h, w), CONSTANT))
            self.top = max(self.top, t, h, w)

    def crop(self, crop: Crop, pattern: Pattern, t: int, h: int, w: int, reach: int) -> None:
        """A crop whose top left corner is (h, w); `reach` is its highest position."""
        self.segments.append(Segment(crop.start, crop.stop, (t, h, w), pattern))
        self.top = max(self.top, t, reach)

    def picture(self, picture: Picture, stop: int, origin: int) -> int:
        """A picture whose markers end at `stop`; returns the position of the text after it."""
        height, width = picture.canvas
        thumbnail = picture.thumbnail
        before = max(origin - 1, 0)
        self.mark(picture.start, thumbnail.start, origin, before, before)
        stretched = _stretched(thumbnail.height, thumbnail.width, height, width)
        self.crop(thumbnail, stretched, origin, origin, origin, origin + max(height, width) - 1)
        # The corner of the token after the crop just laid, and where the gap after it lies.
        gap, corner_h, corner_w = thumbnail.stop, origin + height, origin + width
        between = (origin, origin)
        columns = picture.columns
        for k, crop in enumerate(picture.slices):
            h = origin + k // columns * picture.slices[0].height
            w = origin + k % columns * picture.slices[0].width
            if crop.start - gap > 1:
                self.mark(gap, gap + 1, origin, corner_h, corner_w)
                self.mark(gap + 1, crop.start - 1, origin, *between)
            self.mark(crop.start - 1, crop.start, origin, h, w)
            pattern = grid(crop.height, crop.width)
            corner_h, corner_w = h + crop.height - 1, w + crop.width - 1
            self.crop(crop, pattern, origin, h, w, max(corner_h, corner_w))
            gap = crop.stop
            row_end = origin + (k // columns + 1) * picture.slices[0].height - 1
            between = (row_end, origin + columns * picture.slices[0].width)
        if gap < stop:
            self.mark(gap, gap + 1, origin, corner_h, corner_w)
            self.mark(gap + 1, stop, origin, origin, origin)
        return origin + max(height, width) + 1


class MiniCpm(Planner):
    """minicpmv4_7. `merge` is 4 in downsample mode "16x" and 2 in "4x"; `markers` are the ids of `MARKERS`."""

    def __init__(self, merge: int, markers: Sequence[int]) -> None:
        self.merge = merge
        self.slice_start = markers[0]
        self.markers = frozenset(markers)

    def plan(self, n: int, items: Sequence[MediaItem], ids: Ids) -> Plan:
        """See `Planner.plan`. `ids` is called where there are crops."""
        canvas = Canvas()
        crops = self.crops(n, items)
        position = cursor = 0
        if crops:
            prompt = ids()
            pictures = self.pictures(crops, prompt)
            starts = [picture.start for picture in pictures[1:]]
            for picture, limit in zip(pictures, [*starts, n], strict=True):
                position = canvas.text(cursor, picture.start, position)
                last = (picture.slices or [picture.thumbnail])[-1]
                # The markers after a picture may include the one that starts the next: it is the next's.
                cursor = min(self.markers_end(prompt, last.stop), limit)
                position = canvas.picture(picture, cursor, position)
        canvas.text(cursor, n, position)
        return Plan(n, 3, INT64, canvas.top + 1 - n, tuple(canvas.segments))

    def crops(self, n: int, items: Sequence[MediaItem]) -> list[Crop]:
        """All crops in prompt order, each checked against its target size."""
        crops: list[tuple[Crop, int]] = []
        for item in items:
            if item.modality is Modality.AUDIO:
                continue
            sizes = item.target_sizes or ()
            if len(sizes) != len(item.offsets):
                raise mismatch(item, f"{len(item.offsets)} spans for {len(sizes)} target sizes; one a span")
            for (start, end), size in zip(item.offsets, sizes, strict=True):
                height, width = self.merged(item, size)
                if end - start + 1 != height * width:
                    raise mismatch(
                        item,
                        f"span [{start}, {end}] has {end - start + 1} tokens, target size {size} makes "
                        f"{height * width}",
                    )
                crops.append((Crop(start, end + 1, height, width), item.index))
        crops.sort()
        cursor = 0
        for crop, index in crops:
            # A marker stands in front of every crop, so none is the first token or touches another.
            if crop.start <= cursor:
                raise Rejection(
                    Reason.OFFSETS_INVALID,
                    f"mm_items[{index}]: span [{crop.start}, {crop.stop - 1}] leaves no token for a marker "
                    f"after {cursor - 1}",
                )
            cursor = crop.stop
        if cursor > n:
            raise Rejection(
                Reason.OFFSETS_INVALID,
                f"mm_items[{crops[-1][1]}]: span ends at {cursor - 1}, the prompt has {n} tokens",
            )
        return [crop for crop, _ in crops]

    def merged(self, item: MediaItem, size: tuple[int, int]) -> tuple[int, int]:
        """A target size in tokens."""
        if len(size) != 2 or not all(type(side) is int and side > 0 for side in size):
            raise invalid(item, f"target size {size} is not two positive integers (h, w)")
        height, width = size
        if height % self.merge or width % self.merge:
            raise invalid(item, f"target size {size} is not divisible by the merge size {self.merge}")
        if height * width > MAX_PATCHES:
            raise invalid(item, f"target size {size} states more than {MAX_PATCHES} patches")
        return height // self.merge, width // self.merge

    def pictures(self, crops: Sequence[Crop], ids: npt.NDArray[np.int64]) -> list[Picture]:
        """A crop behind `<slice>` belongs to the picture before it; any other starts a new one."""
        pictures: list[Picture] = []
        for crop in crops:
            if pictures and ids[crop.start - 1] == self.slice_start:
                pictures[-1].slices.append(crop)
            else:
                pictures.append(Picture(crop))
        return pictures

    def markers_end(self, ids: npt.NDArray[np.int64], start: int) -> int:
        """The first token from `start` on that is no marker."""
        while start < len(ids) and int(ids[start]) in self.markers:
            start += 1
        return start


def bind_minicpm(config: Mapping[str, Any]) -> MiniCpm:
    """The planner of a minicpmv4_7 config.

    Raises:
        ConfigError: a marker id is missing.
    """
    missing = [key for key in MARKERS if config.get(key) is None]
    if missing:
        raise ConfigError(f"model.path: the config of a minicpmv4_7 model lacks {', '.join(missing)}")
    merge = 2 if config.get("downsample_mode", "16x") == "4x" else 4
    return MiniCpm(merge, [int(config[key]) for key in MARKERS])


@lru_cache(maxsize=1024)
def _stretched(height: int, width: int, canvas_height: int, canvas_width: int) -> Pattern:
    if (height, width) == (canvas_height, canvas_width):
        return grid(height, width)
    rows = Axis(width, height, linspace(canvas_height, height))
    columns = Axis(1, width, linspace(canvas_width, width))
    return Pattern((Axis(height * width, 1), rows, columns), height * width)


def linspace(size: int, steps: int) -> tuple[int, ...]:
    """`torch.linspace(0, size - 1, steps).round().long()`: float32, counted from both ends, ties to even."""
    if steps == 1:
        return (0,)
    last = np.float32(size - 1)
    step = last / np.float32(steps - 1)
    index = np.arange(steps, dtype=np.float32)
    values = np.where(np.arange(steps) < steps // 2, index * step, last - index[::-1] * step)
    return tuple(np.rint(values).astype(np.int64).tolist())
