"""How a family turns offsets and grids into a plan: the interface, and the walk that most families share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from sidecar.errors import Reason, Rejection
from sidecar.wire.tokenspeed import Modality

from .media import MediaItem, merged_grids, mismatch, seconds_per_row
from .plan import INT64, LINEAR, Pattern, Plan, Segment, grid, stack

Ids = Callable[[], npt.NDArray[np.int64]]
"""Returns the unpadded prompt, int64 [n]. A function, because most families never look at it."""


class Planner(ABC):
    """Plans the positions of prompts for one model. Made by `bind`, immutable, safe to share."""

    @abstractmethod
    def plan(self, n: int, items: Sequence[MediaItem], ids: Ids) -> Plan:
        """The plan of a prompt of `n` tokens that holds `items`.

        Raises:
            Rejection: whatever in the items does not fit together, or does not fit the prompt.
        """


class Block(NamedTuple):
    """What one placeholder span becomes.

    `reach` is its highest position and `advance` the position of the token after it, both relative
    to the span's first position.
    """

    pattern: Pattern
    reach: int
    advance: int


Placed = tuple[int, int, Block, int]
"""Start, stop (exclusive), block, and the index of the item that the span belongs to."""


def lay_out(n: int, placed: list[Placed]) -> tuple[tuple[Segment, ...], int, int]:
    """Blocks, each with the text before it, in prompt order; equal ones in a row become one segment.

    Returns the segments, the position that the next token after the prompt would have, and the
    highest position.

    Raises:
        Rejection: `offsets_invalid` where spans overlap or leave the prompt.
    """
    placed.sort(key=itemgetter(0))
    segments = []
    cursor = position = first = base = count = rise = lead = 0
    top = -1
    last: Block | None = None
    for start, stop, block, index in placed:
        text = start - cursor
        if block is last and text == lead:
            count += 1
        else:
            if text < 0:
                raise Rejection(
                    Reason.OFFSETS_INVALID,
                    f"item {index}: span [{start}, {stop - 1}] overlaps one that ends at {cursor - 1}",
                )
            if last is not None:
                length = (cursor - first) // count
                segments.append(Segment(first, length, base, last.pattern, -lead, count, rise))
            first, count, lead, last = cursor, 1, text, block
            base, rise = position + text, text + block.advance
        reach = position + text + block.reach
        if reach > top:
            top = reach
        position += rise
        cursor = stop
    if last is not None:
        if cursor > n:
            raise Rejection(
                Reason.OFFSETS_INVALID,
                f"item {placed[-1][3]}: span ends at {cursor - 1}, the prompt has {n} tokens",
            )
        segments.append(Segment(first, (cursor - first) // count, base, last.pattern, -lead, count, rise))
    if cursor < n:
        segments.append(Segment(cursor, n - cursor, position, LINEAR))
        position += n - cursor
        top = max(top, position - 1)
    return tuple(segments), position, top


@lru_cache(maxsize=4096)
def image_block(t: int, height: int, width: int, advance: int) -> Block:
    """A grid of t frames that lie one position apart."""
    pattern = grid(height, width) if t == 1 else stack(t, height, width)
    return Block(pattern, max(t, height, width) - 1, advance)


class GridPlanner(Planner):
    """A family whose spans each follow from their own grid row, whatever surrounds them.

    A family says in `block` what a row becomes, and in `frame_spans` whether a video row of T frames
    stands in the prompt as T spans (with timestamps between them) or as a single one.
    """

    modalities: ClassVar[frozenset[Modality]] = frozenset({Modality.IMAGE, Modality.VIDEO})
    frame_spans: ClassVar[bool] = False

    def __init__(self, merge: int) -> None:
        self.merge = merge

    def plan(self, n: int, items: Sequence[MediaItem], ids: Ids) -> Plan:
        """See `Planner.plan`. `ids` is never called."""
        placed: list[Placed] = []
        for item in items:
            self.place(item, placed)
        segments, position, top = lay_out(n, placed)
        return Plan(n, 3, INT64, self.delta(n, position, top), segments)

    def place(self, item: MediaItem, placed: list[Placed]) -> None:
        """Add an item's blocks to `placed`, after checking rows against spans."""
        if item.modality not in self.modalities:
            self.place_other(item)
            return
        if not item.offsets and not item.grids:
            return
        split = self.frame_spans and item.modality is Modality.VIDEO
        rows = self.rows(item)
        seconds = seconds_per_row(item, len(rows))
        offsets = item.offsets
        expected = sum(t for t, _, _ in rows) if split else len(rows)
        if expected != len(offsets):
            what = "frames" if split else "grid rows"
            raise mismatch(item, f"{len(offsets)} spans for {expected} {what} in grids {item.grids[:8]}; one a span")
        first = 0
        for row, (t, height, width) in enumerate(rows):
            spans = offsets[first : first + t] if split else offsets[first : first + 1]
            frames = 1 if split else t
            size = self.size(frames, height, width)
            for start, end in spans:
                if end - start + 1 != size:
                    raise mismatch(
                        item,
                        f"span [{start}, {end}] has {end - start + 1} tokens, grid {item.grids[row]} makes {size}"
                        + (" a frame" if split else ""),
                    )
            block = self.block(item, frames, height, width, None if seconds is None else seconds[row])
            index = item.index
            placed += [(start, end + 1, block, index) for start, end in spans]
            first += len(spans)

    def place_other(self, item: MediaItem) -> None:
        """An item of a modality without axes of its own: audio is plain text here.

        Raises:
            Rejection: `modality_unsupported` for anything else.
        """
        if item.modality is not Modality.AUDIO:
            raise Rejection(
                Reason.MODALITY_UNSUPPORTED,
                f"item {item.index}: this model has no {item.modality.name.lower()} positions",
            )
        if item.grids:
            raise mismatch(item, f"audio with {len(item.grids)} grid rows; audio has none")

    def rows(self, item: MediaItem) -> list[tuple[int, int, int]]:
        """The item's grid rows in tokens."""
        return merged_grids(item, self.merge)

    def size(self, t: int, height: int, width: int) -> int:
        """The tokens that a merged row makes in the prompt."""
        return t * height * width

    @abstractmethod
    def block(self, item: MediaItem, t: int, height: int, width: int, seconds: float | None) -> Block:
        """What a merged row of t frames becomes. Called after its span's length was checked."""

    def delta(self, n: int, position: int, top: int) -> Any:
        """Transformers' rule: the highest position of the prompt, plus one, minus its length."""
        return top + 1 - n
