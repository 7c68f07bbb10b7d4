"""Tencent's hunyuan_vl and hy_v4_vl: every image row ends with a line-break token, so W is w + 1.

Source: transformers 5.24, `HunYuanVLModel` and `HYV4VLModel`, `get_rope_index` and
`get_vision_position_ids`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from sidecar.errors import ConfigError, Reason, Rejection
from sidecar.wire.tokenspeed import Modality

from .media import MediaItem, invalid, merged_grids, mismatch
from .plan import INT64, LINEAR, Axis, Pattern, Plan, Segment
from .planner import Block, GridPlanner, Ids, Placed, image_block


class HyV4Vl(GridPlanner):
    """hy_v4_vl: frames follow each other as if they were images; text goes on above the last."""

    def size(self, t: int, height: int, width: int) -> int:
        """t frames of `height` rows of `width` tokens and a line break."""
        return t * height * (width + 1)

    def block(self, item: MediaItem, t: int, height: int, width: int, seconds: float | None) -> Block:
        """A single frame; `place` puts t of them in a row."""
        return image_block(1, height, width + 1, max(height, width + 1))

    def place(self, item: MediaItem, placed: list[Placed]) -> None:
        """As `GridPlanner.place`, with each span cut into its frames."""
        spans: list[Placed] = []
        super().place(item, spans)
        for start, stop, block, index in spans:
            size = block.pattern.size
            placed.extend((first, first + size, block, index) for first in range(start, stop, size))


class HunyuanVl(GridPlanner):
    """hunyuan_vl: text counts tokens, images count their columns and rows from 0, and their own number.

    The last three axes are (column, row, image number), and the first of four counts tokens. A span
    may include the image's start and end markers. Images only, of one frame.
    """

    modalities = frozenset({Modality.IMAGE})

    def __init__(self, merge: int, axes: int) -> None:
        super().__init__(merge)
        self.axes = axes

    def block(self, item: MediaItem, t: int, height: int, width: int, seconds: float | None) -> Block:
        """The image's own positions; text takes no notice of them."""
        size = height * (width + 1)
        return Block(_image(height, width + 1, self.axes), max(height - 1, width), size)

    def place(self, item: MediaItem, placed: list[Placed]) -> None:
        """One span a row, with or without its two markers."""
        if item.modality is not Modality.IMAGE:
            self.place_other(item)
            return
        if not item.offsets and not item.grids:
            return
        rows = merged_grids(item, self.merge)
        if len(rows) != len(item.offsets):
            raise mismatch(item, f"{len(item.offsets)} spans for {len(rows)} grid rows; one a span")
        for (start, end), row, (t, height, width) in zip(item.offsets, item.grids, rows, strict=True):
            if t != 1:
                raise invalid(item, f"grid {row} has {t} frames; this model takes images of one")
            size = height * (width + 1)
            held = end - start + 1
            if held not in (size, size + 2):
                raise mismatch(
                    item,
                    f"span [{start}, {end}] has {held} tokens, grid {row} makes {size}, or {size + 2} with markers",
                )
            first = start + (held - size) // 2
            placed.append((first, first + size, self.block(item, t, height, width, None), item.index))

    def plan(self, n: int, items: Sequence[MediaItem], ids: Ids) -> Plan:
        """See `Planner.plan`. `ids` is never called."""
        placed: list[Placed] = []
        for item in items:
            self.place(item, placed)
        placed.sort(key=itemgetter(0))
        segments = []
        cursor = 0
        top = n - 1 if self.axes > 3 else -1
        for image, (start, stop, block, index) in enumerate(placed):
            if start < cursor or stop > n:
                raise Rejection(
                    Reason.OFFSETS_INVALID,
                    f"item {index}: span [{start}, {stop - 1}] starts before {cursor} or ends after {n - 1}",
                )
            if start > cursor:
                segments.append(Segment(cursor, start - cursor, cursor, LINEAR))
                top = max(top, start - 1)
            base = (0, 0, image) if self.axes == 3 else (*(start,) * (self.axes - 3), 0, 0, image)
            segments.append(Segment(start, stop - start, base, block.pattern))
            top = max(top, block.reach, image)
            cursor = stop
        if cursor < n:
            segments.append(Segment(cursor, n - cursor, cursor, LINEAR))
            top = n - 1
        return Plan(n, self.axes, INT64, top + 1 - n, tuple(segments))


def hunyuan_axes(config: Mapping[str, Any]) -> int:
    """How many axes the config's `mrope_section` (formerly `xdrope_section`) has.

    Raises:
        ConfigError: it states none, or fewer than three.
    """
    text = config.get("text_config") or {}
    for parameters in (text.get("rope_parameters"), text.get("rope_scaling"), config.get("rope_scaling")):
        for key in ("mrope_section", "xdrope_section"):
            if parameters and parameters.get(key):
                axes = len(parameters[key])
                if axes >= 3:
                    return axes
    raise ConfigError(
        "model.path: the config of a hunyuan_vl model needs text_config.rope_parameters.mrope_section "
        "with three or four entries"
    )


@lru_cache(maxsize=1024)
def _image(height: int, width: int, axes: int) -> Pattern:
    size = height * width
    column, row, number = Axis(1, width), Axis(width, height), Axis(size, 1)
    return Pattern((*(Axis(1, size),) * (axes - 3), column, row, number), size)
