"""The Qwen-VL line and the models that took over its positions.

A grid of (t, h, w) tokens that starts at position p gets t, h and w counted from p. Text goes on at
p + max(h, w), so a video may reach higher on its t axis than the text that follows it. Source:
transformers 5.24, `Qwen2VLModel.get_rope_index` and `get_vision_position_ids`, and their copies.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sidecar.wire.tokenspeed import Modality

from .media import MediaItem, check_ticks, merged_grids
from .plan import frames
from .planner import Block, GridPlanner, image_block


class Qwen2Vl(GridPlanner):
    """qwen2_vl and paddleocr_vl: a video is one span, its frames lie one position apart."""

    def block(self, item: MediaItem, t: int, height: int, width: int, seconds: float | None) -> Block:
        """Text goes on at max(h, w)."""
        return image_block(t, height, width, max(height, width))


class Qwen3Vl(Qwen2Vl):
    """qwen3_vl, glm4v and the like: a video of T frames is T spans with timestamps between them."""

    frame_spans = True


class Qwen35Engine(GridPlanner):
    """TokenSpeed's qwen3_5, qwen3_5_moe and qwen4_exp.

    They differ from `Qwen3Vl` in one case: after an image of t > max(h, w) frames, text goes on at
    max(t, h, w). Source: tokenspeed 0.1.1, `runtime/multimodal/mrope.py`,
    `_compute_qwen35_mrope_positions_from_offsets` and `_build_qwen35_mrope_positions`.
    """

    frame_spans = True

    def block(self, item: MediaItem, t: int, height: int, width: int, seconds: float | None) -> Block:
        """Text goes on above the highest position."""
        return image_block(t, height, width, max(t, height, width))

    def delta(self, n: int, position: int, top: int) -> int:
        """The next position minus the prompt's length."""
        return position - n


class Ernie45Vl(Qwen2Vl):
    """ernie4_5_vl_moe: as `Qwen2Vl`, but the vision tower merges `temporal_merge` frames of a video into one."""

    def __init__(self, merge: int, temporal_merge: int) -> None:
        super().__init__(merge)
        self.temporal_merge = temporal_merge

    def rows(self, item: MediaItem) -> list[tuple[int, int, int]]:
        """The item's grid rows in tokens; t is merged for videos only."""
        return merged_grids(item, self.merge, self.temporal_merge if item.modality is Modality.VIDEO else 1)


class Qwen25Vl(Qwen2Vl):
    """qwen2_5_vl: a video's frames lie `tokens_per_second` · seconds per grid apart, truncated to integers."""

    def __init__(self, merge: int, tokens_per_second: float) -> None:
        super().__init__(merge)
        self.tokens_per_second = tokens_per_second

    def block(self, item: MediaItem, t: int, height: int, width: int, seconds: float | None) -> Block:
        """As `Qwen2Vl`, with the video's clock on the t axis."""
        if item.modality is not Modality.VIDEO:
            return image_block(t, height, width, max(height, width))
        step = 1 if seconds is None else seconds
        check_ticks(item, t, self.tokens_per_second * step)
        if t == 1:
            return image_block(1, height, width, max(height, width))
        times = _clock(t, self.tokens_per_second, step, None if seconds is None else item.seconds_dtype)
        return Block(frames(times, height, width), max(int(times[-1]), height - 1, width - 1), max(height, width))


def _clock(t: int, rate: float, seconds: float, dtype: str | None) -> npt.NDArray[np.int64]:
    """`(torch.arange(t) * (rate * seconds)).long()`, by torch's rules of type promotion.

    A Python number multiplies in float32 after `rate * seconds` was taken in double precision; a
    float32 tensor is float32 throughout, a float64 tensor float64 throughout, integers stay integers.
    Half-precision values are widened to float32 first: transformers would round every t to 8 or 11 bits.
    """
    index = np.arange(t, dtype=np.int64)
    if isinstance(seconds, int) and isinstance(rate, int):
        ticks = index * (rate * seconds)
    elif dtype == "float64":
        ticks = (index * (np.float64(rate) * np.float64(seconds))).astype(np.int64)
    else:
        step = np.float32(rate * seconds) if dtype is None else np.float32(rate) * np.float32(seconds)
        ticks = (index.astype(np.float32) * step).astype(np.int64)
    return ticks
