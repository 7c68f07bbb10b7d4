"""Rules about grids of families without M-RoPE, whose planners would else check them."""

from __future__ import annotations

from typing import Final

from sidecar.errors import Reason, Rejection
from sidecar.model import GRID_TYPES, ModelSpec, grid_tokens
from sidecar.wire.media import ItemView

_MAX_PATCHES: Final = 2**31


def check_grid(item: ItemView, grids: tuple[tuple[int, int, int], ...], spec: ModelSpec) -> None:
    """`grid_invalid` and `grid_mismatch` for Kimi: a row a span, h·w / merge² tokens a row."""
    if spec.model_type not in GRID_TYPES:
        return
    where = f"item {item.ordinal}"
    merge = spec.spatial_merge_size
    offsets = item.offsets or ()
    if not grids:
        raise Rejection(Reason.GRID_MISMATCH, f"{where} has {len(offsets)} spans but no grid_thws")
    for row in grids:
        t, h, w = row
        if min(row) <= 0 or h % merge or w % merge or t * h * w >= _MAX_PATCHES:
            raise Rejection(
                Reason.GRID_INVALID,
                f"{where}: the grid {row} is not three positive integers with sides divisible by {merge}",
            )
    if len(grids) != len(offsets):
        raise Rejection(Reason.GRID_MISMATCH, f"{where} has {len(grids)} grid rows for {len(offsets)} spans")
    for (start, end), row in zip(offsets, grids, strict=True):
        size = grid_tokens(row, merge)
        if end - start + 1 != size:
            raise Rejection(
                Reason.GRID_MISMATCH,
                f"{where}: the span [{start}, {end}] has {end - start + 1} tokens, its grid {row} makes {size}",
            )
