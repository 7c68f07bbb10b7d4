"""TokenSpeed's Qwen3-Omni: int64 positions, the video clock truncated, audio never interleaved.

A grid that starts at position p gets its clock, rows and columns counted from p, and text goes on
one above the highest of them. Audio is text. Source: tokenspeed 0.1.1, `runtime/multimodal/mrope.py`,
`_omni_media_segments` and `_compute_qwen3_omni_mrope_positions`.
"""

from __future__ import annotations

import numpy as np

from sidecar.wire.tokenspeed import Modality

from .media import MediaItem, check_ticks, metadata
from .plan import frames
from .planner import Block, GridPlanner, Placed, image_block


class Qwen3OmniEngine(GridPlanner):
    """qwen3_omni_moe as TokenSpeed computes it.

    `rate` is `position_id_per_seconds`; `default_seconds` holds for videos that state no seconds.
    """

    def __init__(self, merge: int, rate: float, default_seconds: float) -> None:
        super().__init__(merge)
        self.rate = rate
        self.default_seconds = default_seconds

    def place(self, item: MediaItem, placed: list[Placed]) -> None:
        """As `GridPlanner.place`; refuses audio interleaved with video, as the engine does."""
        if item.modality is Modality.VIDEO and item.use_audio_in_video:
            raise metadata(item, "use_audio_in_video is true; this engine takes video and audio apart only")
        super().place(item, placed)

    def place_other(self, item: MediaItem) -> None:
        """Audio is text; its lengths must be one a span and no shorter than what they became."""
        super().place_other(item)
        check_audio_counts(item)

    def block(self, item: MediaItem, t: int, height: int, width: int, seconds: float | None) -> Block:
        """The t axis is `(arange(t, float32) * step).long()`, step in double precision."""
        step = self.rate
        if item.modality is Modality.VIDEO:
            pace = self.default_seconds if seconds is None else seconds
            check_ticks(item, t, pace * self.rate)
            # The engine casts stated seconds to float32; its default stays a Python float.
            step *= pace if seconds is None else float(np.float32(pace))
        return _block(t, height, width, step)

    def delta(self, n: int, position: int, top: int) -> int:
        """The next position minus the prompt's length."""
        return position - n


def check_audio_counts(item: MediaItem) -> None:
    """Audio lengths, where stated, must be positive and one a span.

    An encoder shortens its input, so a span may not be longer than its clip either.

    Raises:
        Rejection: `metadata_invalid`.
    """
    lengths = item.audio_lengths
    if lengths is None:
        return
    if len(lengths) != len(item.offsets):
        raise metadata(item, f"{len(lengths)} audio lengths for {len(item.offsets)} spans")
    for length, (start, end) in zip(lengths, item.offsets, strict=True):
        tokens = end - start + 1
        if length < tokens or length < 1:
            raise metadata(item, f"audio length {length} cannot make the {tokens} tokens of [{start}, {end}]")


def _block(t: int, height: int, width: int, step: float) -> Block:
    if t == 1:
        return image_block(1, height, width, max(height, width))
    times = (np.arange(t, dtype=np.float32) * np.float32(step)).astype(np.int64)
    reach = max(int(times[-1]), height - 1, width - 1)
    return Block(frames(times, height, width), reach, reach + 1)
