"""Qwen2.5-Omni: whole positions, video and audio interleaved in chunks of `seconds_per_chunk`.

Source: transformers 5.24, `Qwen2_5OmniPreTrainedModelForConditionalGeneration.get_rope_index` and
`get_chunked_index`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .omni import Omni
from .omni_walk import Piece, Vision
from .plan import CONSTANT, INT64


class Qwen25Omni(Omni):
    """qwen2_5_omni. `default_seconds` is `seconds_per_chunk`, which also cuts interleaved tracks."""

    zero = 0
    markers = CONSTANT
    dtype = INT64

    @staticmethod
    def rounding(value: Any) -> Any:
        """Integers do not round."""
        return value

    def audio_tokens(self, length: int) -> int:
        """Two halvings: a convolution of stride 2, then pooling by 2."""
        return ((length - 1) // 2 + 1 - 2) // 2 + 1

    def clock(self, t: int, seconds: float | None) -> npt.NDArray[Any]:
        """`(arange(t) * seconds * rate).long()` in float32; whole numbers for images."""
        if seconds is None and isinstance(self.rate, int):
            return np.arange(t, dtype=np.int64) * self.rate
        pace = np.float32(1 if seconds is None else seconds)
        return ((np.arange(t, dtype=np.float32) * pace) * np.float32(self.rate)).astype(np.int64)

    def interleave(self, video: Vision, audio: int, base: float) -> tuple[list[Piece], float]:
        """Chunk after chunk, frames first. What follows goes on above the last chunk, not the highest."""
        t, height, width, times = video
        area = height * width
        ticks = int(self.rate * self.default_seconds)
        cuts = list(chunk_cuts(t * area, ticks, lambda tick: int(np.searchsorted(times, tick)) * area))
        beats = list(chunk_cuts(audio, ticks, lambda tick: tick))
        pieces = []
        for k in range(max(len(cuts), len(beats)) - 1):
            if k < len(cuts) - 1:
                pieces.append(Piece(True, cuts[k], cuts[k + 1]))
            if k < len(beats) - 1:
                pieces.append(Piece(False, beats[k], beats[k + 1]))
        is_video, first, last = pieces[-1]
        if not is_video:
            return pieces, base + last - 1
        # Two frames' worth of tokens hold every row and column that a longer piece has.
        tokens = np.arange(max(first, last - 2 * area), last)
        rows, columns = tokens // width % height, tokens % width
        return pieces, base + int(max(times[(last - 1) // area], rows.max(), columns.max()))


def chunk_cuts(tokens: int, ticks: int, first_at: Callable[[int], int]) -> Iterator[int]:
    """The token at which each chunk of `ticks` positions begins, and at last `tokens`.

    `first_at(tick)` is the first token at or after a tick. A token ends one chunk at most, so where
    the clock jumps over several, chunks of a single token follow: so counts `get_chunked_index`.
    """
    cut, chunk = 0, 1
    yield cut
    while True:
        cut = max(cut + (chunk > 1), first_at(chunk * ticks))
        if cut >= tokens:
            break
        yield cut
        chunk += 1
    yield tokens
