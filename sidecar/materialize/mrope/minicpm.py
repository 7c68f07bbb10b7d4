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
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sidecar.errors import ConfigError, Reason, Rejection
from sidecar.wire.tokenspeed import Modality

from .media import MAX_PATCHES, MediaItem, invalid, mismatch
from .plan import INT64, Axis, Pattern, Plan
from .planner import Block, Ids, Placed, Planner, lay_out

MARKERS: Final = ("slice_start_id", "slice_end_id", "image_start_id", "image_end_id", "newline_id")

KEPT_TOKENS: Final = 8192
"""Pictures of more tokens are laid out anew each time: 128 that are kept hold 16 MB at most."""


KEPT_STEPS: Final = 256
"""The sides of thumbnails up to this many tokens are kept, stretched: 4096 of them hold 8 MB at most."""


class Crop(NamedTuple):
    """A thumbnail or slice of `height` × `width` tokens, from token `start` on."""

    start: int
    height: int
    width: int

    @property
    def stop(self) -> int:
        """One past the last token."""
        return self.start + self.height * self.width


class MiniCpm(Planner):
    """minicpmv4_7. `merge` is 4 in downsample mode "16x" and 2 in "4x"; `markers` are the ids of `MARKERS`."""

    def __init__(self, merge: int, markers: Sequence[int]) -> None:
        self.merge = merge
        self.slice_start = markers[0]
        self.markers = frozenset(markers)

    def plan(self, n: int, items: Sequence[MediaItem], ids: Ids) -> Plan:
        """See `Planner.plan`. `ids` is called where there are crops."""
        crops = self.crops(n, items)
        placed: list[Placed] = []
        if crops:
            prompt = ids()
            pictures = self.pictures(crops, prompt)
            limits = [picture[0].start - 1 for picture in pictures[1:]]
            for picture, limit in zip(pictures, [*limits, n], strict=True):
                start = picture[0].start - 1
                # The markers after a picture may include the one that starts the next: it is the next's.
                stop = min(self.markers_end(prompt, picture[-1].stop), limit)
                shape = tuple(Crop(first - start, height, width) for first, height, width in picture)
                placed.append((start, stop, picture_block(shape, stop - start, start == 0), 0))
        segments, _, top = lay_out(n, placed)
        return Plan(n, 3, INT64, top + 1 - n, segments)

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
                crops.append((Crop(start, height, width), item.index))
        crops.sort()
        cursor = 0
        for crop, index in crops:
            # A marker stands in front of every crop, so none is the first token or touches another.
            if crop.start <= cursor or crop.stop > n:
                raise Rejection(
                    Reason.OFFSETS_INVALID,
                    f"item {index}: span [{crop.start}, {crop.stop - 1}] leaves no token for a marker "
                    f"behind {cursor - 1}, or is not inside a prompt of {n} tokens",
                )
            cursor = crop.stop
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

    def pictures(self, crops: Sequence[Crop], ids: npt.NDArray[np.int64]) -> list[list[Crop]]:
        """A crop behind `<slice>` belongs to the picture before it; any other starts a new one."""
        before = ids[np.array([crop.start for crop in crops]) - 1].tolist()
        pictures: list[list[Crop]] = []
        for crop, marker in zip(crops, before, strict=True):
            if pictures and marker == self.slice_start:
                pictures[-1].append(crop)
            else:
                pictures.append([crop])
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


def picture_block(shape: tuple[Crop, ...], length: int, first: bool) -> Block:
    """A picture of `length` tokens: its thumbnail and slices, counted from its `<image>` marker.

    `first` says that it begins the prompt, where no position lies below the canvas.
    """
    make = _picture_block if length <= KEPT_TOKENS else _picture_block.__wrapped__
    return make(shape, length, first)


@lru_cache(maxsize=128)
def _picture_block(shape: tuple[Crop, ...], length: int, first: bool) -> Block:
    thumbnail, *slices = shape
    columns = row_length(slices)
    _, height, width = slices[0] if slices else thumbnail
    tall = height * (len(slices) // columns) if slices else height
    wide = width * columns if slices else width
    rows = np.zeros(length, np.int64)
    cols = np.zeros(length, np.int64)

    def mark(token: int | slice, row: int, col: int) -> None:
        rows[token] = row
        cols[token] = col

    def lay(crop: Crop, row: Any, col: Any) -> None:
        rows[crop.start : crop.stop].reshape(crop.height, crop.width)[...] = row
        cols[crop.start : crop.stop].reshape(crop.height, crop.width)[...] = col

    mark(0, *((0, 0) if first else (-1, -1)))
    if thumbnail.stop < length:
        mark(thumbnail.stop, tall, wide)
    lay(thumbnail, linspace(tall, thumbnail.height)[:, None], linspace(wide, thumbnail.width))
    for k, crop in enumerate(slices):
        row, col = k // columns * height, k % columns * width
        mark(crop.start - 1, row, col)
        if crop.stop < length:
            mark(crop.stop, row + crop.height - 1, col + crop.width - 1)
        lay(crop, linspace(crop.height, crop.height)[:, None] + row, linspace(crop.width, crop.width) + col)
    for k, (crop, after) in enumerate(pairwise(slices)):
        if after.start - crop.stop > 2:
            mark(slice(crop.stop + 1, after.start - 1), (k // columns + 1) * height - 1, wide)
    axes = (Axis(length, 1), Axis(1, length, rows), Axis(1, length, cols))
    reach = max(0, int(rows.max()), int(cols.max()))
    return Block(Pattern(axes, length), reach, max(tall, wide) + 1)


def row_length(slices: Sequence[Crop]) -> int:
    """How many slices a row has: as many as precede the first gap of more than two markers, if that fits."""
    for k, (crop, after) in enumerate(pairwise(slices), 1):
        if after.start - crop.stop > 2:
            return k if len(slices) % k == 0 else len(slices)
    return len(slices)


def linspace(size: int, steps: int) -> npt.NDArray[np.int64]:
    """`torch.linspace(0, size - 1, steps).round().long()`: float32, counted from both ends, ties to even."""
    return _linspace(size, steps) if steps <= KEPT_STEPS else _linspace.__wrapped__(size, steps)


@lru_cache(maxsize=4096)
def _linspace(size: int, steps: int) -> npt.NDArray[np.int64]:
    if steps in (1, size):
        return np.arange(steps)
    last = np.float32(size - 1)
    step = last / np.float32(steps - 1)
    index = np.arange(steps, dtype=np.float32)
    values = np.where(np.arange(steps) < steps // 2, index * step, last - index[::-1] * step)
    return np.rint(values).astype(np.int64)
